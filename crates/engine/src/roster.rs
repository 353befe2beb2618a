//! Who is a member of a running job: what the data path checks frames against.

use std::net::Ipv4Addr;
use tally_wire::part::is_count;
use tally_wire::{Epoch, EpochSecret, FragmentId, JobId, Mac, Rank, all_ranks};

/// A port of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct PortId(pub u16);

/// Where a member is: what its JOIN came from, and what all its frames must come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Port of the switch.
    pub port: PortId,
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub ip: Ipv4Addr,
    /// UDP port.
    pub udp_port: u16,
}

impl Member {
    /// Whether frames to it reach one host: a group's, the broadcast's or no address at all may be
    /// the source of a forged frame, and the switch would send the job's frames, or its answers, to
    /// everyone.
    #[must_use]
    pub fn is_one_host(&self) -> bool {
        let no_mac = self.mac.is_group() || self.mac == Mac::default();
        let ip = self.ip;
        let no_ip =
            ip.is_unspecified() || ip.is_broadcast() || ip.is_multicast() || ip.is_loopback();
        !no_mac && !no_ip && self.udp_port != 0
    }
}

/// The way from a node of a tree to its parent (TR-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// The parent: the port that leads to it, its addresses, and its base port.
    pub parent: Member,
    /// Own local rank at the parent.
    pub rank: Rank,
    /// Shards of the parent, a power of two.
    pub shards: u8,
}

impl Uplink {
    /// Where frames of this fragment go: the parent, at the UDP port of its shard (F-3).
    #[inline]
    #[must_use]
    pub fn shard_of(&self, fragment: FragmentId) -> Member {
        let shard = fragment.0 & u32::from(self.shards).saturating_sub(1);
        Member {
            udp_port: self.parent.udp_port.wrapping_add(shard as u16),
            ..self.parent
        }
    }
}

/// The members of one epoch of a job. Immutable; a change is a new roster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster {
    /// The job.
    pub job: JobId,
    /// Its incarnation.
    pub epoch: Epoch,
    /// What the tags of its frames are made with.
    pub secret: EpochSecret,
    /// Payload units of its elements.
    pub units: u8,
    /// The workers, by rank; 1 to 64. In a tree, the node's hosts, then its child switches.
    pub workers: Vec<Member>,
    /// The parameter servers, by part (P-6): 1, 2, 4, 8 or 16.
    pub servers: Vec<Member>,
    /// The ports that have a worker, without repetition: where results leave.
    pub ports: Vec<PortId>,
    /// Workers that are child switches, as a bitmap: OVERFLOW and COLLISION are theirs on DATA
    /// (TR-7).
    pub switches: u64,
    /// Where the sum of a node goes; `None` at the root, and in a job without a tree.
    pub uplink: Option<Uplink>,
}

impl Roster {
    /// A roster of a job with one PS; `ports` follows from the workers.
    #[must_use]
    pub fn new(
        job: JobId,
        epoch: Epoch,
        secret: EpochSecret,
        units: u8,
        workers: Vec<Member>,
        ps: Member,
    ) -> Self {
        let mut ports: Vec<_> = workers.iter().map(|w| w.port).collect();
        ports.sort_unstable();
        ports.dedup();
        Self {
            job,
            epoch,
            secret,
            units,
            workers,
            servers: vec![ps],
            ports,
            switches: 0,
            uplink: None,
        }
    }

    /// The same with these parameter servers, by part.
    ///
    /// # Panics
    /// If their number is not 1, 2, 4, 8 or 16.
    #[must_use]
    pub fn with_servers(self, servers: Vec<Member>) -> Self {
        assert!(u8::try_from(servers.len()).is_ok_and(is_count));
        Self { servers, ..self }
    }

    /// The same with child switches, as a bitmap of ranks.
    #[must_use]
    pub fn with_switches(self, switches: u64) -> Self {
        Self { switches, ..self }
    }

    /// The same of a node whose sum goes to a parent.
    #[must_use]
    pub fn with_uplink(self, uplink: Uplink) -> Self {
        let uplink = Some(uplink);
        Self { uplink, ..self }
    }

    /// The bitmap with all ranks of the job.
    #[inline]
    #[must_use]
    pub fn all(&self) -> u64 {
        all_ranks(self.workers.len() as u8)
    }

    /// The worker or child switch of that rank.
    #[inline]
    #[must_use]
    pub fn member(&self, rank: Rank) -> Option<&Member> {
        self.workers.get(usize::from(rank.0))
    }

    /// The PS that completes this fragment (P-6).
    #[inline]
    #[must_use]
    pub fn server_of(&self, fragment: FragmentId) -> &Member {
        &self.servers[fragment.0 as usize & (self.servers.len() - 1)]
    }

    /// The member that says something of this fragment as that rank.
    #[inline]
    #[must_use]
    pub fn sender(&self, rank: Rank, fragment: FragmentId) -> Option<&Member> {
        if rank == Rank::PS {
            Some(self.server_of(fragment))
        } else {
            self.member(rank)
        }
    }
}
