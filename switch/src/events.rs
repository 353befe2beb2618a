//! What happens to jobs, members and hosts, as events of the log.
//!
//! The registry and SwitchML's controller say what happened as values; here they become sentences
//! with fields. Frames of hostile hosts are only counted on the data path: [`Growth`] compares the
//! counters once a second and tells of those that grew.

use crate::bus::{Answers, Bus};
use crate::messages::{CoreCommand, CoreReport};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use tally_engine::counters::CLAIMS;
use tally_engine::metrics::MetricSet as _;
use tally_engine::registry::{Event, Tree};
use tally_engine::switchml::controller::{End, Event as SessionEvent};
use tally_engine::{Counters, DropReason, Member, PortId};
use tally_telemetry::Level;
use tally_telemetry::tracing::{info, warn};
use tally_wire::control::{Concern, Reason};
use tally_wire::{JobId, MAX_WORKERS, Part, Rank};

/// Drops that have no honest cause in a network that works, beside claims.
const SUSPICIOUS: [DropReason; 3] = [
    DropReason::AuthTag,
    DropReason::NotMember,
    DropReason::RankOutOfJob,
];

/// Kinds that alerts count.
pub const KINDS: [(&str, Level); 6] = [
    ("lost", Level::Warn),
    ("paused", Level::Warn),
    ("ended", Level::Warn),
    ("refused", Level::Warn),
    ("hostile", Level::Warn),
    ("joined", Level::Info),
];

/// The name of a port.
#[must_use]
pub fn port_name(ports: &[String], port: PortId) -> String {
    let name = ports.get(usize::from(port.0));
    name.cloned().unwrap_or_else(|| port.0.to_string())
}

/// The place of the switch in the tree of a job, and its hosts there.
pub type Place<'a> = Option<(&'a Tree, u8)>;

/// What a member is called: in sentences, and as the value of the field `rank`.
struct Name {
    text: String,
    field: String,
}

impl Name {
    /// A member of a job by its local rank. In a tree a worker has its global rank, and a child
    /// switch its name.
    fn of(rank: Rank, part: Part, place: Place<'_>) -> Self {
        let Some((tree, hosts)) = place.filter(|_| rank != Rank::PS) else {
            return Self::claimed(rank, part);
        };
        match (tree.child(hosts, rank), tree.ranks_of(hosts, rank)) {
            (Some(child), Some(ranks)) => Self {
                text: format!("switch {} ({ranks})", child.switch.as_str()),
                field: child.switch.as_str().to_owned(),
            },
            (None, Some(ranks)) => Self {
                text: format!("{ranks} (local rank {})", rank.0),
                field: ranks.first().to_string(),
            },
            (_, None) => Self::claimed(rank, part),
        }
    }

    /// The rank as the header of a frame has it.
    fn claimed(rank: Rank, part: Part) -> Self {
        match (rank, part.count()) {
            (Rank::PS, 1) => Self {
                text: "PS".into(),
                field: part.to_string(),
            },
            (Rank::PS, count) => Self {
                text: format!("PS {} of {count}", part.index()),
                field: part.to_string(),
            },
            (Rank(rank), _) => Self {
                text: format!("rank {rank}"),
                field: rank.to_string(),
            },
        }
    }

    /// A worker that was refused before its local rank was known.
    fn refused(rank: Rank, place: Place<'_>, reason: Reason, found: u32) -> Self {
        let is_wide = place.is_some_and(|(tree, _)| usize::from(tree.total) > MAX_WORKERS);
        if rank == Rank::PS || !is_wide {
            return Self::claimed(rank, Part::ONLY);
        }
        if reason == Reason::BadRank {
            return Self {
                text: format!("rank {found}"),
                field: found.to_string(),
            };
        }
        // Its header says 0 (TR-20).
        Self {
            text: "a worker".into(),
            field: "unknown".into(),
        }
    }
}

/// The value of the field `reason`, and what a refused host's operator is to do.
const fn refusal(reason: Reason) -> (&'static str, &'static str) {
    match reason {
        Reason::UnknownJob => (
            "unknown-job",
            "no such job is configured: add it here, or correct `id` there",
        ),
        Reason::BadMac => (
            "bad-key",
            "its key is not the job's: compare `key` there with `key` here",
        ),
        Reason::BadRank => ("bad-rank", "the job has fewer workers"),
        Reason::Workers => (
            "wrong-workers",
            "the number of workers is not that of the job here",
        ),
        Reason::Payload => (
            "payload",
            "payload in units of 64 bytes: set one `payload_bytes` that all ports carry",
        ),
        Reason::Shape => ("shape", "it sums other tensors than the first rank"),
        Reason::RankTaken => (
            "rank-taken",
            "another process is this rank: end one, or give it another rank",
        ),
        Reason::StaleEpoch => (
            "stale-epoch",
            "it is in an epoch that has ended: restart it",
        ),
        Reason::MemberLost => ("member-lost", "its epoch ended because a member was lost"),
        Reason::MemberFailed => ("member-failed", "its epoch ended because a member gave up"),
        Reason::Window => ("window", "its window exceeds `window`: it asks again"),
        Reason::Challenge => ("challenge", "it asks again"),
        Reason::Removed => ("removed", "the job was removed from the switch"),
        Reason::Draining => ("draining", "the job drains: it starts no epoch"),
        Reason::TenantJobs => ("tenant-jobs", "its tenant has `max_jobs` jobs already"),
        Reason::TenantWorkers => (
            "tenant-workers",
            "the job has more than `max_workers` workers",
        ),
        Reason::Parent => (
            "parent",
            "this switch waits for its parent in the job's tree",
        ),
        Reason::Parts => (
            "parts",
            "`parts` of a PS is not `parameter_servers` of the job here: give both one number",
        ),
    }
}

/// Says what happened to a job or to a member.
pub fn say(event: &Event, ports: &[String], place: Place<'_>) {
    match event {
        Event::Joined {
            job,
            rank,
            part,
            member,
        } => {
            let (at, Name { text, field }) =
                (At::new(ports, member), Name::of(*rank, *part, place));
            info!(kind = "joined", job = job.0, rank = field, port = at.port,
                mac = %member.mac, ip = %member.ip,
                "job {}: {text} joined from {at}", job.0);
        }
        Event::Left {
            job,
            rank,
            part,
            member,
        } => {
            let (at, Name { text, field }) =
                (At::new(ports, member), Name::of(*rank, *part, place));
            info!(kind = "left", job = job.0, rank = field, port = at.port,
                mac = %member.mac, ip = %member.ip,
                "job {}: {text} left, {at}", job.0);
        }
        Event::Lost {
            job,
            rank,
            part,
            member,
            silent,
        } => {
            let name = Name::of(*rank, *part, place);
            say_lost(*job, name, member.as_ref(), silent.as_secs_f64(), ports);
        }
        Event::Running {
            job,
            epoch,
            workers,
        } => {
            let (job, epoch) = (job.0, epoch.0);
            info!(
                kind = "running",
                job, epoch, "job {job}: running with {workers} workers, epoch {epoch}"
            );
        }
        Event::Paused { job, epoch, part } => {
            let (job, epoch) = (job.0, epoch.0);
            let which = match part.count() {
                1 => String::new(),
                count => format!(" {} of {count}", part.index()),
            };
            warn!(
                kind = "paused",
                job,
                epoch,
                rank = %part,
                "job {job}: paused in epoch {epoch}: its parameter server{which} is gone; start it again"
            );
        }
        Event::Ended {
            job,
            epoch,
            failure,
            concern,
        } => {
            let about = concern.map(|it| concerned(&it)).or_else(|| {
                let rank = (*failure)?.1?;
                Some(Name::of(rank, Part::ONLY, place).text)
            });
            say_ended(job.0, epoch.0, failure.map(|it| it.0), about);
        }
        Event::Refused {
            job,
            rank,
            located,
            from,
            reason,
            found,
            allowed,
        } => {
            let Name { text, field } = if *located {
                Name::of(*rank, Part::ONLY, place)
            } else {
                Name::refused(*rank, place, *reason, *found)
            };
            let (reason, what) = refusal(*reason);
            let at = At::new(ports, from);
            let numbers = match (found, allowed) {
                (0, 0) => String::new(),
                (found, allowed) => format!(" (found {found}, allowed {allowed})"),
            };
            warn!(kind = "refused", job = job.0, rank = field, reason,
                port = at.port, mac = %from.mac, ip = %from.ip,
                "job {}: refused {text} from {at}: {reason}{numbers}: {what}", job.0);
        }
    }
}

fn say_lost(job: JobId, name: Name, member: Option<&Member>, silent_s: f64, ports: &[String]) {
    let job = job.0;
    let Name {
        text: name,
        field: rank,
    } = name;
    let Some(member) = member else {
        warn!(
            kind = "lost",
            job,
            rank,
            silent_s,
            "job {job}: {name} lost: it did not come back within {silent_s:.1} s of the switch's restart"
        );
        return;
    };
    let at = At::new(ports, member);
    warn!(kind = "lost", job, rank, port = at.port, mac = %member.mac, ip = %member.ip, silent_s,
        "job {job}: {name} lost: silent for {silent_s:.1} s, {at}: look at that host and its link");
}

/// The ranks and the switch that a failure in a tree concerns.
fn concerned(Concern { ranks, switch, .. }: &Concern) -> String {
    let ranks = ranks.map_or_else(String::new, |ranks| format!("{ranks} at "));
    format!("{ranks}switch {}", switch.as_str())
}

fn say_ended(job: u16, epoch: u16, failure: Option<Reason>, about: Option<String>) {
    let Some(reason) = failure else {
        info!(
            kind = "ended",
            job, epoch, "job {job}: epoch {epoch} has ended, all workers left"
        );
        return;
    };
    let (reason, _) = refusal(reason);
    let about = about.map_or_else(String::new, |about| format!(" of {about}"));
    warn!(
        kind = "ended",
        job, epoch, reason, "job {job}: epoch {epoch} has failed: {reason}{about}"
    );
}

/// Where a host is, in words.
struct At<'a> {
    port: String,
    host: &'a Member,
}

impl<'a> At<'a> {
    fn new(ports: &[String], host: &'a Member) -> Self {
        Self {
            port: port_name(ports, host.port),
            host,
        }
    }
}

impl std::fmt::Display for At<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Member { ip, mac, .. } = self.host;
        write!(f, "{ip}, {mac}, port {}", self.port)
    }
}

/// Says what happened to SwitchML's clients.
pub fn say_session(event: &SessionEvent) {
    let text = event.to_string();
    match event {
        SessionEvent::Started(session) => {
            info!(kind = "session begins", session = %session.id, "{text}");
        }
        SessionEvent::Ended {
            id,
            why: End::TwoPorts { .. },
        } => warn!(kind = "session conflict", session = %id, "{text}"),
        SessionEvent::Ended { id, .. } => info!(kind = "session ends", session = %id, "{text}"),
        SessionEvent::Anew { id, peer, .. } => {
            info!(kind = "worker anew", session = %id, peer = %peer, "{text}");
        }
        SessionEvent::Refused { peer, .. } => info!(kind = "refused", peer = %peer, "{text}"),
    }
}

/// Counters of hostile frames, as they were when they were told of last.
#[derive(Debug, Default)]
pub struct Growth {
    /// By port and claim.
    claims: Vec<[u64; CLAIMS.len()]>,
    /// By reason.
    drops: [u64; SUSPICIOUS.len()],
}

/// More frames of one reason.
#[derive(Debug, PartialEq, Eq)]
struct Grown {
    /// From this port, where it is known.
    port: Option<usize>,
    reason: DropReason,
    frames: u64,
}

impl Growth {
    /// Says what has grown since the last call. The cores' reports have the ports in their order.
    pub fn look(&mut self, cores: &[CoreReport], ports: &[String]) {
        for Grown {
            port,
            reason,
            frames,
        } in self.compare(cores)
        {
            let (name, help) = (reason.name(), reason.help());
            let port = port.and_then(|port| ports.get(port));
            let port = port.map_or("", String::as_str);
            let from = match port {
                "" => String::new(),
                port => format!(" from port {port}"),
            };
            warn!(
                kind = "hostile",
                reason = name,
                port,
                frames,
                "dropped {frames} frames{from} as `{name}`: each of them {}",
                lower(help)
            );
        }
    }

    fn compare(&mut self, cores: &[CoreReport]) -> Vec<Grown> {
        let mut grown = Vec::new();
        let ports = cores.first().map_or(0, |core| core.rare.len());
        self.claims.resize(ports, [0; CLAIMS.len()]);
        for (port, before) in self.claims.iter_mut().enumerate() {
            for (claim, (reason, before)) in CLAIMS.iter().zip(before).enumerate() {
                let all: u64 = cores.iter().map(|core| core.rare[port].claims[claim]).sum();
                let frames = all.saturating_sub(std::mem::replace(before, all));
                if frames > 0 {
                    grown.push(Grown {
                        port: Some(port),
                        reason: *reason,
                        frames,
                    });
                }
            }
        }
        let mut counters = Counters::default();
        cores.iter().for_each(|core| counters.add(&core.counters));
        for (reason, before) in SUSPICIOUS.into_iter().zip(&mut self.drops) {
            let all = counters.dropped(reason);
            let frames = all.saturating_sub(std::mem::replace(before, all));
            if frames > 0 {
                grown.push(Grown {
                    port: None,
                    reason,
                    frames,
                });
            }
        }
        grown
    }
}

/// How often the counters are looked at.
const EVERY: Duration = Duration::from_secs(1);
/// How long the cores have for their answers. Nothing waits for them meanwhile.
const ANSWERED_AFTER: Duration = Duration::from_millis(200);

/// Looks at the counters from time to time, without waiting for a core.
pub struct GrowthWatch {
    growth: Growth,
    repeated: Repeated,
    ports: Vec<String>,
    next: Instant,
    asked: Option<(Instant, Answers<CoreReport>)>,
}

impl GrowthWatch {
    /// Over ports of these names.
    #[must_use]
    pub fn new(ports: Vec<String>) -> Self {
        Self {
            growth: Growth::default(),
            repeated: Repeated::default(),
            ports,
            next: Instant::now() + EVERY,
            asked: None,
        }
    }

    /// Says what happened to a job or to a member; of a refusal that repeats, the first and then
    /// one each `REPEATED_EVERY`.
    pub fn say(&mut self, event: &Event, place: Place<'_>) {
        if self.repeated.is_news(event, Instant::now()) {
            say(event, &self.ports, place);
        }
    }

    /// Asks the cores, or takes their answers, if it is time. Without all answers nothing is told;
    /// the next look has the growth.
    pub fn look(&mut self, bus: &Bus) {
        let now = Instant::now();
        match self.asked.take() {
            Some((at, answers)) if now.duration_since(at) >= ANSWERED_AFTER => {
                let cores: Option<Vec<_>> = answers.ready().collect();
                if let Some(cores) = cores {
                    self.growth.look(&cores, &self.ports);
                }
            }
            Some(waiting) => self.asked = Some(waiting),
            None if now >= self.next => {
                self.next = now + EVERY;
                self.asked = Some((now, bus.ask(CoreCommand::Report)));
            }
            None => {}
        }
    }
}

/// A member that is refused asks again twice a second, without end if it is a parameter server. The
/// same refusal is said once in this time.
const REPEATED_EVERY: Duration = Duration::from_secs(60);
/// Refusals that are remembered.
const REPEATED_MAX: usize = 1024;

/// Job, rank, port, address and reason of a refusal.
type Refused = (u16, u8, PortId, Ipv4Addr, &'static str);

/// When each refusal was said last.
#[derive(Debug, Default)]
struct Repeated(BTreeMap<Refused, Instant>);

impl Repeated {
    fn is_news(&mut self, event: &Event, now: Instant) -> bool {
        let Event::Refused {
            job,
            rank,
            from,
            reason,
            ..
        } = event
        else {
            return true;
        };
        let key = (job.0, rank.0, from.port, from.ip, refusal(*reason).0);
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < REPEATED_EVERY;
        if self.0.get(&key).is_some_and(is_recent) {
            return false;
        }
        if self.0.len() >= REPEATED_MAX {
            self.0.retain(|_, at| is_recent(at));
        }
        // A flood of different ones is limited by kind, reason and port.
        if self.0.len() < REPEATED_MAX {
            self.0.insert(key, now);
        }
        true
    }
}

/// A sentence that begins in the middle of another.
fn lower(sentence: &str) -> String {
    let mut chars = sentence.trim_end_matches('.').chars();
    let first = chars.next().map(|c| c.to_ascii_lowercase());
    first.into_iter().chain(chars).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_engine::registry::Child;
    use tally_wire::{Mac, SwitchName};

    fn refused(rank: u8, reason: Reason) -> Event {
        Event::Refused {
            job: JobId(7),
            rank: Rank(rank),
            located: true,
            from: Member {
                port: PortId(0),
                mac: Mac([2, 0, 0, 0, 0, 1]),
                ip: Ipv4Addr::new(10, 84, 0, 1),
                udp_port: 4000,
            },
            reason,
            found: 0,
            allowed: 0,
        }
    }

    #[test]
    fn members_in_a_tree_have_global_ranks_and_switches_their_names() {
        let child = |switch, ranks| Child {
            switch: SwitchName::new(switch),
            ranks,
        };
        let tree = |total| Tree {
            total,
            first: 24,
            parent: None,
            children: vec![child("leaf7", 1), child("leaf8", 24)],
        };
        let wide = tree(96);
        let place: Place<'_> = Some((&wide, 3));
        let shown = |it: Name| format!("{}; {}", it.text, it.field);
        let of = |rank| shown(Name::of(Rank(rank), Part::ONLY, place));
        assert_eq!(of(2), "rank 26 (local rank 2); 26");
        assert_eq!(of(3), "switch leaf7 (rank 27); leaf7");
        assert_eq!(of(4), "switch leaf8 (ranks 28 to 51); leaf8");
        assert_eq!(shown(Name::of(Rank::PS, Part::ONLY, place)), "PS; ps");
        let part = Part::new(0, 2).unwrap();
        assert_eq!(shown(Name::of(Rank::PS, part, place)), "PS 0 of 2; ps0");
        assert_eq!(shown(Name::of(Rank(2), Part::ONLY, None)), "rank 2; 2");
        let refused = |rank, place, reason| shown(Name::refused(Rank(rank), place, reason, 4000));
        assert_eq!(refused(0, place, Reason::BadRank), "rank 4000; 4000");
        assert_eq!(refused(0, place, Reason::Workers), "a worker; unknown");
        let narrow = tree(60);
        let place: Place<'_> = Some((&narrow, 3));
        assert_eq!(refused(26, place, Reason::BadMac), "rank 26; 26");
        let concern = Concern {
            ranks: tally_wire::RankRange::new(70, 90),
            switch: SwitchName::new("leaf9"),
            whole: false,
            behind: None,
        };
        assert_eq!(concerned(&concern), "ranks 70 to 89 at switch leaf9");
    }

    #[test]
    fn a_refusal_that_repeats_is_said_once_a_minute_and_others_at_once() {
        let mut repeated = Repeated::default();
        let start = Instant::now();
        let mut said = 0;
        for half_second in 0..240 {
            let at = start + Duration::from_millis(500 * half_second);
            said += u32::from(repeated.is_news(&refused(1, Reason::BadMac), at));
        }
        assert_eq!(said, 2, "of two minutes");
        assert!(repeated.is_news(&refused(2, Reason::BadMac), start));
        assert!(repeated.is_news(&refused(1, Reason::Workers), start));
        let running = Event::Running {
            job: JobId(7),
            epoch: tally_wire::Epoch(1),
            workers: 2,
        };
        assert!(repeated.is_news(&running, start) && repeated.is_news(&running, start));
    }

    #[test]
    fn refusals_from_many_addresses_are_not_all_remembered() {
        let mut repeated = Repeated::default();
        let start = Instant::now();
        for n in 0..5000u32 {
            let mut event = refused(1, Reason::UnknownJob);
            if let Event::Refused { from, .. } = &mut event {
                from.ip = Ipv4Addr::from(n);
            }
            assert!(repeated.is_news(&event, start));
        }
        assert_eq!(repeated.0.len(), REPEATED_MAX);
        let later = start + REPEATED_EVERY;
        assert!(repeated.is_news(&refused(9, Reason::BadMac), later));
        assert_eq!(repeated.0.len(), 1);
    }

    /// What a core with two ports says that has seen no frame.
    fn core() -> CoreReport {
        CoreReport {
            counters: Counters::default(),
            ports: Vec::new(),
            queues: Vec::new(),
            residence_ns: hdrhistogram::Histogram::new(2).unwrap(),
            in_use: Default::default(),
            jobs: Vec::new(),
            switchml: None,
            netreduce: None,
            card: None,
            addresses: Vec::new(),
            rare: vec![Default::default(); 2],
            load: Default::default(),
        }
    }

    #[test]
    fn only_counters_that_grew_are_told() {
        let claim = DropReason::SpoofedSwitch;
        let mut cores = [core(), core()];
        let mut growth = Growth::default();
        assert_eq!(growth.compare(&cores), []);
        cores[0].rare[1].claims[claim.claim().unwrap()] = 3;
        cores[1].rare[1].claims[claim.claim().unwrap()] = 4;
        cores[1].counters.drops[SUSPICIOUS[0]] = 5;
        // One without a cause that is hostile.
        cores[1].counters.drops[DropReason::Late] = 9;
        let of_port = Grown {
            port: Some(1),
            reason: claim,
            frames: 7,
        };
        let of_all = Grown {
            port: None,
            reason: SUSPICIOUS[0],
            frames: 5,
        };
        assert_eq!(growth.compare(&cores), [of_port, of_all]);
        assert_eq!(growth.compare(&cores), []);
        cores[0].counters.drops[SUSPICIOUS[0]] = 1;
        let more = Grown {
            port: None,
            reason: SUSPICIOUS[0],
            frames: 1,
        };
        assert_eq!(growth.compare(&cores), [more]);
        assert_eq!(lower("Has a tag."), "has a tag");
    }
}
