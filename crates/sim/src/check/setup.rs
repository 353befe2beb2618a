//! The configurations that the options of a run stand for.

use super::options::Options;
use super::options::fabric::NEAR;
use super::options::ring::RingsOptions;
use crate::address::SwitchId;
use crate::link::{Faults, LinkConfig};
use crate::rng::Rng;
use crate::switch::{SwitchConfig, forwarding_config};
use crate::world::WorldConfig;
use std::iter;
use tally_engine::queue::QueueConfig;
use tally_engine::switchml::SwitchmlConfig;
use tally_engine::{ForwardingConfig, JobConfig, Limits, PoolConfig, PoolJob, RegistryConfig};
use tally_kernels::Kernels;
use tally_wire::netreduce::DEFAULT_DSCP;
use tally_wire::{DEFAULT_PORT, JobId, Key};

/// MACs learnt at a port at most: more than there are hosts, and addresses of the hostile one.
pub(super) const ADDRESSES: u32 = 1024;

pub(super) fn key(job: usize) -> Key {
    key_of(job, 0)
}

/// The key of a job after so many rotations.
pub(super) fn key_of(job: usize, rotations: u8) -> Key {
    let mut key = [job as u8 + 1; 32];
    key[0] ^= rotations;
    Key::new(&key).expect("32 bytes make a key")
}

/// A job of the options as the switch knows it.
pub(super) fn job_config(options: &Options, job: usize, rotations: u8) -> JobConfig {
    JobConfig {
        id: job_id(job),
        key: key_of(job, rotations),
        previous_key: rotations.checked_sub(1).map(|before| key_of(job, before)),
        workers: options.jobs[job].workers,
        servers: 1,
        tree: None,
    }
}

pub(super) const fn job_id(job: usize) -> JobId {
    JobId(job as u16 * 3 + 1)
}

pub(super) fn link_config(options: &Options, faults: Faults) -> LinkConfig {
    LinkConfig {
        byte_ps: 8000 / options.gbit_per_s,
        delay: options.delay,
        backlog_bytes: options.backlog_bytes,
        faults,
    }
}

/// The job of sessions as the switch knows it, without limits of its own.
fn job_of_sessions(options: &Options) -> Option<JobConfig> {
    let place = options.jobs.len();
    let workers = options.sessions.as_ref()?.workers;
    Some(JobConfig {
        id: job_id(place),
        key: key(place),
        workers,
        previous_key: None,
        servers: 1,
        tree: None,
    })
}

/// The configuration of the world of an ordinary scenario.
pub(super) fn world_config(options: &Options, rng: &mut Rng) -> WorldConfig {
    WorldConfig {
        seed: rng.next(),
        units_max: options.units_max(),
        mtu: options.rings.as_ref().map_or(0, RingsOptions::mtu),
        nominal_payload_bytes: None,
    }
}

/// The configuration of a switch with its jobs.
pub(super) fn switch_config(
    options: &Options,
    switch: SwitchId,
    units: u8,
    rng: &mut Rng,
) -> SwitchConfig {
    let is_own = |(job, _): &(usize, _)| options.switch_of(*job) == switch;
    let jobs = options.jobs.iter().enumerate();
    let jobs = jobs.filter(|(job, _)| options.switch_of(*job) == switch);
    let mut jobs: Vec<_> = jobs.map(|(job, _)| job_config(options, job, 0)).collect();
    let min_held = options.held / (2 * options.jobs.len() as u32);
    let limits = options.limits.iter().enumerate().filter(is_own);
    let limits = limits.map(|(_, &(min_slots, max_slots))| Limits {
        min_slots,
        max_slots,
        min_held,
    });
    // Without limits of any job, or for each of them.
    let limits = limits.chain(iter::repeat(Limits::NONE));
    let in_pool = jobs.iter().map(|job| job.id).zip(limits);
    let in_pool = in_pool.map(|(id, limits)| PoolJob { id, limits });
    let mut in_pool: Vec<_> = in_pool.collect();
    if switch == NEAR
        && let Some(job) = job_of_sessions(options)
    {
        in_pool.push(PoolJob::unlimited(job.id));
        jobs.push(job);
    }
    let addresses = |config: ForwardingConfig| match options.fabric {
        Some(_) => ForwardingConfig {
            addresses: ADDRESSES,
            ..config
        },
        None => config,
    };
    let (frames, mark_frames, guard) = options.queue;
    SwitchConfig {
        pool: PoolConfig {
            slots: options.slots,
            ways: options.ways,
            held: options.held,
            window: options.switch_window,
            shards: options.shards,
            shard: 0,
            jobs: in_pool,
            policy: options.policy,
            places: jobs.len() as u16,
        },
        registry: RegistryConfig {
            mac: switch.mac(),
            base_port: DEFAULT_PORT,
            shards: options.shards,
            window: options.switch_window,
            units,
            member_timeout: options.member_timeout,
            secret: secret(rng),
            fabric: None,
        },
        jobs,
        queue: QueueConfig {
            frames,
            mark_frames,
            guard,
        },
        control_delay: options.control_delay,
        poll: options.poll,
        steering: options.steering,
        kernels: Kernels::best(),
        forwarding: addresses(forwarding_config(rng.next())),
        netreduce: options
            .rings
            .as_ref()
            .filter(|_| switch == NEAR)
            .map(|_| DEFAULT_DSCP),
        switchml: options
            .switchml
            .filter(|_| switch == NEAR)
            .map(|of| SwitchmlConfig {
                sessions: 2,
                slots: of.slots,
                held: 2 * u32::from(of.slots),
                shards: 1,
                shard: 0,
            }),
    }
}

pub(super) fn secret(rng: &mut Rng) -> [u8; 32] {
    let mut secret = [0; 32];
    for bytes in secret.chunks_exact_mut(8) {
        bytes.copy_from_slice(&rng.next().to_le_bytes());
    }
    secret
}
