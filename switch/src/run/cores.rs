//! Data cores: what they are built from, and their threads.

use crate::config::{Config, PortSection};
use crate::control_queue::ControlSender;
use crate::datapath::{Core, DataCore};
use crate::drain::Drains;
use crate::handover::{Inbox, Outbox, handover};
use crate::messages::{CoreCommand, CoreReport};
use crate::platform::{Driver, Memory, STAGE_FRAMES};
use crate::pools::{Pools, node_of_cpu};
use crate::ports::CoreQueues;
use crate::queues::Tx;
use anyhow::{Context as _, Result, bail};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;
use tally_dpdk::{Eal, EalThread};
use tally_engine::native::Native;
use tally_engine::netreduce::{NetreduceDialect, ServedRing};
use tally_engine::offload::{Offload, Pulse};
use tally_engine::queue::QueueConfig;
use tally_engine::switchml::{Switchml, SwitchmlDialect};
use tally_engine::{Aggregator, Context, Dialects, Forwarding, PortId, Ports, SwitchAddress};
use tally_kernels::Kernels;

/// What a data core tells the card's thread by.
#[derive(Clone)]
pub(super) struct CardEnds {
    pub(super) pulse: Arc<Pulse>,
    pub(super) probes: Sender<u16>,
}

impl CardEnds {
    fn dialect(&self, port: PortId) -> Box<Offload> {
        let probes = self.probes.clone();
        let on_probe = move |number| {
            // Only the last one is waited for.
            let _ = probes.try_send(number);
        };
        let pulse = Arc::clone(&self.pulse);
        Box::new(Offload::new(port, pulse, Box::new(on_probe)))
    }
}

/// What data cores are built from. Starting them consumes it, and with it its own senders to
/// control and to the card, so that their channels close when the last core ends.
pub(super) struct CoreBuilder<'a> {
    pub(super) config: &'a Config,
    pub(super) eal: Eal,
    pub(super) kernels: Kernels,
    pub(super) own: SwitchAddress,
    pub(super) forwarding: Forwarding,
    pub(super) pools: &'a Pools,
    /// Ports that send frames of several segments.
    pub(super) chains: Vec<bool>,
    pub(super) card: Option<CardEnds>,
    pub(super) to_control: ControlSender,
    pub(super) epoch: Instant,
    pub(super) stop: Arc<AtomicBool>,
}

impl CoreBuilder<'_> {
    /// Starts a data core for each queue of commands.
    pub(super) fn start(
        self,
        queues: Vec<CoreQueues>,
        commands: Vec<Receiver<CoreCommand>>,
    ) -> Result<Vec<JoinHandle<CoreReport>>> {
        let mut threads = Vec::new();
        let served: Vec<_> = self.rings().collect();
        let rings = handover(commands.len());
        for (number, ((rings, commands), queues)) in
            rings.into_iter().zip(commands).zip(queues).enumerate()
        {
            let core = self.core(number, queues, rings, commands, &served)?;
            threads.push(self.spawn(number, core)?);
        }
        Ok(threads)
    }

    fn core(
        &self,
        number: usize,
        queues: CoreQueues,
        (inbox, outbox): (Inbox, Outbox),
        commands: Receiver<CoreCommand>,
        served: &[ServedRing],
    ) -> Result<DataCore> {
        let (config, own) = (self.config, self.own);
        let cores = config.cores.len();
        let CoreQueues { rx, ready, tx } = queues;
        let (tx, waiting) = split(tx);
        let mut ports = Ports::new(waiting, cores, STAGE_FRAMES);
        let longest = config.ports.iter().map(PortSection::longest_frame);
        let spare = std::iter::repeat_n(0, config.ports_max() - config.ports.len());
        ports.set_longest_frames(longest.chain(spare).collect());
        let offload = config.card_port().zip(self.card.as_ref());
        let offload = offload.map(|(port, card)| {
            ports.set_hostless(port);
            card.dialect(port)
        });
        let aggregator = Aggregator::new(config.pool(number as u8), self.kernels);
        let shards = cores as u16;
        let dialects = Dialects {
            native: Native::new(aggregator, own.base_port, shards, config.ports_max()),
            switchml: self.switchml(number),
            netreduce: self.netreduce(number, served),
            offload,
        };
        let memory = Memory(self.pools.on(node_of_cpu(config.cores[number])).clone());
        let forwarding = self.forwarding.clone();
        let context = Context::new(own, number, shards, ports, memory, forwarding);
        Ok(DataCore {
            core: Core::new(context, dialects)?,
            rx,
            ready,
            driver: Driver {
                tx,
                outbox,
                capture: None,
            },
            inbox,
            commands,
            drains: Drains::default(),
            refused_before: Vec::new(),
            control: self.to_control.clone(),
            idle: config.idle,
            epoch: self.epoch,
            stop: Arc::clone(&self.stop),
        })
    }

    fn switchml(&self, number: usize) -> Option<Box<SwitchmlDialect<Memory>>> {
        let shard = self.config.switchml_shard(number as u8)?;
        let pool = Switchml::new(shard, self.kernels);
        let mut dialect = SwitchmlDialect::new(pool, self.chains.clone());
        let quiet = self.config.switchml_quiet().enumerate();
        for (port, _) in quiet.filter(|&(_, quiet)| quiet) {
            dialect.set_quiet(PortId(port as u16));
        }
        Some(Box::new(dialect))
    }

    /// The rings of all cores.
    fn rings(&self) -> impl Iterator<Item = ServedRing> {
        let section = self.config.netreduce.iter();
        let rings = section.flat_map(|section| &section.rings);
        let name = self.config.name.as_deref();
        rings.map(move |ring| ServedRing::from(ring.ring(name)))
    }

    fn netreduce(
        &self,
        number: usize,
        served: &[ServedRing],
    ) -> Option<Box<NetreduceDialect<Memory>>> {
        let section = self.config.netreduce.as_ref()?;
        let place = (number, self.config.cores.len() as u16);
        let rings = served.iter().cloned();
        let dialect = NetreduceDialect::new(section.dscp, self.kernels, place, rings);
        Some(Box::new(dialect))
    }

    /// Runs a data core in a thread of its own, once that is on its CPU.
    fn spawn(&self, number: usize, core: DataCore) -> Result<JoinHandle<CoreReport>> {
        let cpu = self.config.cores[number];
        let eal = self.eal.clone();
        let on_end = StopOnDrop(Arc::clone(&self.stop));
        let (started, wait) = bounded(1);
        let thread = std::thread::Builder::new()
            .name(format!("data{number}"))
            .spawn(move || {
                // The end of a data core, for any reason, ends the switch.
                let _on_end = on_end;
                let pinned = core_affinity::set_for_current(core_affinity::CoreId { id: cpu });
                let registration = EalThread::register(&eal);
                let ready = match (&registration, pinned) {
                    (Err(error), _) => Err(error.to_string()),
                    (_, false) => Err(format!(
                        "cannot run on CPU {cpu}: not online, or not allowed for this process"
                    )),
                    _ => Ok(()),
                };
                let _ = started.send(ready);
                core.run()
            })?;
        let ready = wait
            .recv()
            .with_context(|| format!("data core {number}: its thread ended before it was ready"))?;
        if let Err(why) = ready {
            self.stop.store(true, Ordering::Relaxed);
            bail!("data core {number}: {why}");
        }
        Ok(thread)
    }
}

/// Transmit queues by port, and how much may wait for each or the core that sends for this one.
type Split = (Vec<Option<Tx>>, Vec<Result<QueueConfig, usize>>);

fn split(queues: Vec<Result<(Tx, QueueConfig), usize>>) -> Split {
    let split = |queue| match queue {
        Ok((tx, config)) => (Some(tx), Ok(config)),
        Err(core) => (None, Err(core)),
    };
    queues.into_iter().map(split).unzip()
}

struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
