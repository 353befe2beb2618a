//! Jobs that workers of a tenant make by joining them.

use super::*;

const FIRST: JobId = JobId(100);

fn tenant_key() -> Key {
    Key::new(&[0x33; 16]).unwrap()
}

fn tenant() -> TenantConfig {
    TenantConfig {
        name: "lab".into(),
        key: tenant_key(),
        previous_key: None,
        jobs: vec![100..=109],
        max_jobs: 2,
        max_workers: 6,
    }
}

impl Net {
    /// With a tenant; the peers are of its job 100.
    fn of_tenant(tenant: TenantConfig) -> Self {
        let mut net = Self::new();
        let actions = net.registry.set_tenant(net.now, tenant);
        net.carry_out(actions);
        net.become_members(FIRST);
        net
    }

    /// The peers are now new processes of this job.
    fn become_members(&mut self, job: JobId) {
        for peer in &mut self.peers {
            *peer = peer.restarted();
            (peer.job, peer.key) = (job, tenant_key());
            peer.join.instance ^= u64::from(job.0) << 32;
        }
    }

    fn all_join(&mut self) {
        for peer in [PS, 0, 1, 2, PS] {
            self.join(peer);
        }
    }

    fn job(&self, id: JobId) -> Option<JobStatus> {
        self.registry.status().find(|job| job.id == id)
    }
}

#[test]
fn a_worker_makes_the_job_with_the_workers_that_it_states() {
    let mut net = Net::of_tenant(tenant());
    assert_eq!(
        net.join(PS).reason(),
        Some(Reason::UnknownJob),
        "the PS waits"
    );
    assert_eq!(net.job(FIRST), None);
    net.all_join();
    let job = net.job(FIRST).unwrap();
    assert_eq!((job.workers, job.phase), (WORKERS, JobPhase::Running));
    assert_eq!(job.tenant.as_deref(), Some("lab"));
    assert_eq!(net.of_tenants[&FIRST], WORKERS);
    for peer in 0..3 {
        net.leave(peer, LeaveCode::Finished);
    }
    // The next training has another size.
    let ps = net.peers[PS].clone();
    net.become_members(FIRST);
    net.peers[PS] = ps;
    for peer in 0..2 {
        net.peers[peer].join.workers = 2;
    }
    for peer in [PS, 0, 1, PS] {
        net.join(peer);
    }
    let job = net.job(FIRST).unwrap();
    assert_eq!((job.workers, job.phase), (2, JobPhase::Running));
    assert_eq!(net.of_tenants[&FIRST], 2);
}

#[test]
fn nothing_is_made_without_the_key_or_the_challenge() {
    let mut net = Net::of_tenant(tenant());
    let mut forged = net.peers[0].clone();
    forged.key = key();
    let before = net.state();
    let datagram = forged.say_join();
    net.raw(host(0), &datagram);
    assert_eq!(net.state(), before, "without the key");
    let datagram = net.peers[0].say_join();
    net.raw(host(0), &datagram);
    assert_eq!(net.state(), before, "without the challenge");
    // A number that is no tenant's.
    net.become_members(JobId(110));
    assert_eq!(net.join(0).reason(), Some(Reason::UnknownJob));
    assert_eq!(net.state(), before);
    assert!(net.of_tenants.is_empty());
}

#[test]
fn a_recorded_join_makes_no_job_again() {
    let mut net = Net::of_tenant(tenant());
    net.join(0);
    let recorded = net.peers[0].say_join();
    net.leave(0, LeaveCode::Interrupted);
    net.pass(ms(61_000));
    assert_eq!(net.job(FIRST), None, "forgotten");
    assert!(net.of_tenants.is_empty());
    let before = net.state();
    let actions = net.raw(host(0), &recorded);
    assert_eq!(net.state(), before);
    net.carry_out(actions);
    assert_eq!(net.peers[0].last().reason(), Some(Reason::Challenge));
}

#[test]
fn an_idle_job_is_forgotten_also_with_its_ps() {
    let mut net = Net::of_tenant(tenant());
    net.all_join();
    for peer in 0..3 {
        net.leave(peer, LeaveCode::Finished);
    }
    net.pass_alive(ms(50_000), &[PS]);
    assert!(net.job(FIRST).is_some());
    net.pass_alive(ms(12_000), &[PS]);
    assert_eq!(net.job(FIRST), None);
    assert_eq!(net.join(PS).reason(), Some(Reason::UnknownJob));
    // And made again, which the same PS joins.
    let epoch = net.bound[0].epoch;
    let ps = net.peers[PS].clone();
    net.become_members(FIRST);
    net.peers[PS] = ps;
    net.all_join();
    assert_eq!(net.job(FIRST).unwrap().phase, JobPhase::Running);
    assert_ne!(net.bound[1].epoch, epoch);
}

#[test]
fn quotas_are_refused_by_name_and_idle_jobs_give_way() {
    let mut net = Net::of_tenant(tenant());
    net.join(0);
    net.become_members(JobId(101));
    net.join(0);
    net.become_members(JobId(102));
    let heard = refusal(net.join(0));
    assert_eq!(numbers(heard), (Reason::TenantJobs, None, 3, 2));
    assert!(!Reason::TenantJobs.is_final(), "another may end");
    // The first one's worker is lost: its job is idle, and gives way.
    net.pass(ms(6000));
    assert_eq!(
        net.registry
            .status()
            .filter(|job| job.tenant.is_some())
            .count(),
        2
    );
    net.become_members(JobId(102));
    assert_eq!(net.join(0).state(), Some(State::Waiting));
    assert!(net.job(JobId(102)).is_some());
    assert_eq!(
        net.registry
            .status()
            .filter(|job| job.tenant.is_some())
            .count(),
        2
    );
    assert_eq!(net.of_tenants.len(), 2, "shards know no more");
    // Workers: 3 + 4 are more than 6.
    net.become_members(JobId(103));
    net.peers[0].join.workers = 4;
    let heard = refusal(net.join(0));
    assert_eq!(numbers(heard), (Reason::TenantWorkers, None, 7, 6));
    net.peers[0].join.workers = 3;
    assert_eq!(net.join(0).state(), Some(State::Waiting));
}

#[test]
fn a_tenant_takes_nothing_of_another() {
    let mut net = Net::of_tenant(tenant());
    let other = TenantConfig {
        name: "other".into(),
        key: Key::new(&[0x44; 16]).unwrap(),
        jobs: vec![200..=65535],
        max_jobs: 100,
        ..tenant()
    };
    let actions = net.registry.set_tenant(net.now, other);
    net.carry_out(actions);
    for id in 100..=101 {
        net.become_members(JobId(id));
        net.join(0);
    }
    // The other's number, under the first one's key.
    net.become_members(JobId(200));
    assert_eq!(net.join(0).reason(), Some(Reason::BadMac));
    net.peers[0].key = Key::new(&[0x44; 16]).unwrap();
    assert_eq!(net.join(0).state(), Some(State::Waiting));
}

#[test]
fn a_tenant_s_job_survives_a_restart_of_the_switch() {
    let mut net = Net::of_tenant(tenant());
    net.all_join();
    let epoch = net.bound[0].epoch;
    net.restart_switch(9);
    net.of_tenants.clear();
    let actions = net.registry.set_tenant(net.now, tenant());
    net.carry_out(actions);
    net.join(0);
    assert_eq!(net.of_tenants[&FIRST], WORKERS);
    net.all_join();
    assert_eq!(net.job(FIRST).unwrap().phase, JobPhase::Running);
    assert_eq!(net.bound.last().unwrap().epoch, epoch);
}

#[test]
fn keys_of_a_tenant_rotate_and_its_removal_ends_its_jobs() {
    let mut net = Net::of_tenant(tenant());
    net.all_join();
    let rotated = TenantConfig {
        key: Key::new(&[0x55; 16]).unwrap(),
        previous_key: Some(tenant_key()),
        ..tenant()
    };
    let actions = net.registry.set_tenant(net.now, rotated.clone());
    assert_eq!(actions, []);
    net.pass_alive(ms(6000), &[0, 1, 2, PS]);
    assert_eq!(net.job(FIRST).unwrap().phase, JobPhase::Running);
    assert_eq!(net.job(FIRST).unwrap().previous_key, 7);
    let actions = net.registry.remove_tenant(net.now, "lab");
    net.carry_out(actions);
    assert!(net.of_tenants.is_empty());
    assert_eq!(net.peers[1].last().reason(), Some(Reason::Removed));
    assert_eq!(net.job(FIRST), None);
    // Twice, and back again at once.
    assert_eq!(net.registry.remove_tenant(net.now, "lab"), []);
    let actions = net.registry.set_tenant(net.now, rotated);
    net.carry_out(actions);
    net.become_members(FIRST);
    net.all_join();
    assert_eq!(net.job(FIRST).unwrap().phase, JobPhase::Running);
}

#[test]
fn jobs_outside_of_a_tenant_s_new_numbers_end() {
    let mut net = Net::of_tenant(tenant());
    net.all_join();
    let moved = TenantConfig {
        jobs: vec![101..=109],
        ..tenant()
    };
    let actions = net.registry.set_tenant(net.now, moved);
    net.carry_out(actions);
    assert_eq!(net.peers[0].last().reason(), Some(Reason::Removed));
    assert!(net.of_tenants.is_empty());
}

#[test]
fn a_flood_of_joins_with_the_key_makes_no_more_jobs_than_the_quota() {
    let tenant = TenantConfig {
        jobs: vec![1000..=60_000],
        max_workers: 1000,
        ..tenant()
    };
    let mut net = Net::of_tenant(tenant);
    for id in 1000..1200 {
        net.become_members(JobId(id));
        net.join(0);
        net.leave(0, LeaveCode::Interrupted);
        assert!(net.of_tenants.len() <= 2);
        assert!(net.registry.jobs.len() <= 2 + 2);
        net.pass(ms(10));
    }
}
