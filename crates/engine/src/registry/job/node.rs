//! What a node of a tree says of ranks: local ones to its members, global ones to all.

use super::visit::{Refusal, Visit};
use super::{Job, Phase};
use crate::registry::RegistryConfig;
use tally_wire::control::{Behind, Below, Concern, JoinTree, LeaveCode, Place, Reason, State};
use tally_wire::{Join, Rank, RankRange, SwitchName, all_ranks};

/// The most ranks whose number fits the header (TR-20).
pub(super) const IN_HEADER: u16 = 64;

/// The straggler's global rank, and what it awaits.
type Straggler = (u16, u16);

impl Job {
    /// Members, the PS apart.
    pub(super) fn members(&self) -> u8 {
        self.config.members()
    }

    /// The child switches, as a bitmap of local ranks.
    pub(super) fn switches(&self) -> u64 {
        self.all() & !all_ranks(self.config.workers)
    }

    /// Workers of the whole job.
    pub(super) fn total(&self) -> u16 {
        let tree = self.config.tree.as_ref();
        tree.map_or(u16::from(self.config.workers), |tree| tree.total)
    }

    /// Finds the local rank of the one that says JOIN (TR-20).
    pub(super) fn locate(&self, visit: &mut Visit<'_>, join: &Join) -> Result<(), Refusal> {
        match join.tree {
            Some(JoinTree::Switch(below)) => self.locate_switch(visit, &below),
            Some(JoinTree::Worker { rank, workers }) => self.locate_worker(visit, rank, workers),
            None if self.config.tree.is_none() => Ok(()),
            None => self.locate_worker(visit, u16::from(visit.rank.0), join.workers.into()),
        }
    }

    fn locate_worker(&self, visit: &mut Visit<'_>, rank: u16, workers: u16) -> Result<(), Refusal> {
        if workers != self.total() {
            return Err(Refusal::numbers(Reason::Workers, workers, self.total()));
        }
        self.locate_rank(visit, rank)
    }

    /// Finds the local rank of a worker's global rank.
    pub(super) fn locate_rank(&self, visit: &mut Visit<'_>, rank: u16) -> Result<(), Refusal> {
        let Some(tree) = &self.config.tree else {
            return Ok(());
        };
        let local = rank.checked_sub(tree.first);
        match local.filter(|&local| local < u16::from(self.config.workers)) {
            Some(local) => {
                visit.rank = Rank(local as u8);
                visit.located = true;
                Ok(())
            }
            None => Err(Refusal {
                concern: Some(Concern {
                    ranks: RankRange::new(tree.first, tree.first + u16::from(self.config.workers)),
                    switch: own_name(visit.config),
                    whole: true,
                    behind: None,
                }),
                ..Refusal::numbers(Reason::BadRank, rank, tree.total)
            }),
        }
    }

    fn locate_switch(&self, visit: &Visit<'_>, below: &Below) -> Result<(), Refusal> {
        let tree = self.config.tree.as_ref();
        let place = tree.and_then(|tree| {
            tree.child(self.config.workers, visit.rank)?;
            tree.ranks_of(self.config.workers, visit.rank)
        });
        let Some(ranks) = place else {
            return Err(Refusal::numbers(
                Reason::BadRank,
                visit.rank.0,
                self.members(),
            ));
        };
        if (below.first, below.ranks) != (ranks.first(), ranks.count()) {
            return Err(Refusal::numbers(
                Reason::BadRank,
                below.first,
                ranks.first(),
            ));
        }
        if below.total != self.total() {
            return Err(Refusal::numbers(Reason::Workers, below.total, self.total()));
        }
        Ok(())
    }

    /// The rank in the header of a frame to this member.
    pub(super) fn wire_rank(&self, rank: Rank) -> Rank {
        let Some(tree) = &self.config.tree else {
            return rank;
        };
        if rank.0 >= self.config.workers {
            rank
        } else if tree.total <= IN_HEADER {
            Rank(tree.first as u8 + rank.0)
        } else {
            Rank(0)
        }
    }

    /// The first run of global ranks among local ones; of a child switch those that it waits for.
    fn run_of(&self, ranks: u64) -> Option<RankRange> {
        let tree = self.config.tree.as_ref()?;
        if ranks == 0 {
            return None;
        }
        let first = Rank(ranks.trailing_zeros() as u8);
        if first.0 < self.config.workers {
            let hosts = (ranks & all_ranks(self.config.workers)) >> first.0;
            let run = hosts.trailing_ones() as u16;
            let first = tree.first + u16::from(first.0);
            return RankRange::new(first, first + run);
        }
        let below = (self.workers[usize::from(first.0)].as_ref()).and_then(|it| it.below);
        let awaited = below.and_then(|below| below.awaited);
        awaited.or_else(|| tree.ranks_of(self.config.workers, first))
    }

    /// Local ranks that have not joined or (child switches) wait for ranks below.
    fn missing(&self) -> u64 {
        let is_there = |rank: u8| {
            let it = self.workers[usize::from(rank)].as_ref();
            it.is_some_and(|it| it.ready || it.below.is_some_and(|b| b.awaited.is_none()))
        };
        let missing = (0..self.members()).filter(|&rank| !is_there(rank));
        missing.fold(0, |bits, rank| bits | 1 << rank)
    }

    /// Whether a node below misses its PS. What a node said before it left is old.
    fn ps_missing_below(&self) -> bool {
        let stay = (0..)
            .zip(&self.workers)
            .filter(|&(rank, _)| self.left >> rank & 1 == 0);
        let mut below = stay.filter_map(|(_, it)| it.as_ref()?.below);
        below.any(|below| below.ps_missing)
    }

    /// The straggler of this node.
    fn straggler(&self, behind: &Behind) -> Straggler {
        let rank = behind.slowest;
        let below = (self.workers[usize::from(rank.0)].as_ref()).and_then(|it| it.below);
        let ranks = (self.config.tree.as_ref())
            .and_then(|tree| tree.ranks_of(self.config.workers, rank))
            .map_or(0, RankRange::first);
        let global = below.map_or(ranks, |below| below.slowest.max(ranks));
        (global, behind.awaiting)
    }

    /// What this node tells its parent of the ranks below.
    pub(super) fn below(&self) -> Option<(Below, Option<Behind>)> {
        let tree = self.config.tree.as_ref()?;
        let runs = matches!(self.phase, Phase::Running | Phase::Paused);
        let behind = if runs { self.behind() } else { None };
        let awaited = if runs {
            behind.and_then(|behind| self.run_of(behind.ranks))
        } else {
            self.run_of(self.missing())
        };
        let below = Below {
            ready: self.is_ready(),
            first: tree.first,
            ranks: tree.ranks(self.config.workers),
            total: tree.total,
            awaited,
            ps_missing: !self.has_servers() || self.ps_missing_below(),
            slowest: behind.map_or(0, |behind| self.straggler(&behind).0),
        };
        Some((below, behind))
    }

    /// The place of a member in the tree, and who is behind, as it is told (TR-26).
    pub(super) fn place(&self, rank: Rank, state: State) -> (Option<Place>, Option<Behind>) {
        let Some(tree) = self.config.tree.as_ref().filter(|_| rank.is_worker()) else {
            let is_told = rank.is_worker() && state != State::Ended;
            return (None, is_told.then(|| self.behind()).flatten());
        };
        let theirs = self.link.as_ref().and_then(|link| link.said);
        let runs = matches!(self.phase, Phase::Running | Phase::Paused);
        let is_host = rank.0 < self.config.workers;
        let mut place = Place {
            local: rank,
            hosts: self.config.workers,
            first: tree.first,
            total: tree.total,
            elsewhere: None,
            ps_elsewhere: self.ps_missing_below()
                || !is_host && !self.has_servers()
                || theirs.is_some_and(|it| it.place.ps_elsewhere),
            has_run: runs || self.resumed.is_some(),
            slowest: 0,
        };
        // To a host: all but the hosts here, which it sees itself. To a switch: all but that one.
        let others = if is_host {
            !all_ranks(self.config.workers)
        } else {
            !rank.bit()
        };
        if !runs {
            let here = self.run_of(self.missing() & others);
            place.elsewhere = here.or_else(|| theirs.and_then(|it| it.place.elsewhere));
            return (Some(place), None);
        }
        let behind = (state != State::Ended).then(|| self.behind()).flatten();
        let behind = behind.and_then(|own| self.merge(own, others, &mut place));
        (Some(place), behind)
    }

    /// Who is behind in the whole tree, of this node and of what the parent said.
    fn merge(&self, own: Behind, others: u64, place: &mut Place) -> Option<Behind> {
        let mut it = own;
        let (mut slowest, awaiting) = self.straggler(&own);
        place.elsewhere = self.run_of(own.ranks & others);
        if self.link.is_some() {
            let said = self.link.as_ref()?.said?;
            let theirs = said.behind?;
            let ahead = theirs.least.ahead_of(own.least);
            if ahead < 0 && said.place.elsewhere.is_some() {
                (it.least, it.ranks) = (theirs.least, 0);
                place.elsewhere = said.place.elsewhere;
            } else if ahead == 0 {
                place.elsewhere = place.elsewhere.or(said.place.elsewhere);
            }
            if theirs.awaiting < awaiting {
                (slowest, it.awaiting) = (said.place.slowest, theirs.awaiting);
            }
        }
        it.ranks &= all_ranks(self.config.workers);
        it.slowest = Rank(0);
        place.slowest = slowest;
        Some(it)
    }

    /// The refusal with global ranks and the switch that it concerns (TR-25).
    pub(super) fn globalise(&self, config: &RegistryConfig, refusal: Refusal) -> Refusal {
        let Some(tree) = (self.config.tree.as_ref()).filter(|_| refusal.concern.is_none()) else {
            return refusal;
        };
        let about = refusal.about.filter(|rank| rank.is_worker());
        let stalled =
            refusal.reason == Reason::MemberFailed && refusal.found == LeaveCode::Stalled as u32;
        let Some(rank) = about else {
            return refusal;
        };
        let child = tree.child(self.config.workers, rank);
        Refusal {
            behind: 0,
            concern: Some(Concern {
                ranks: tree.ranks_of(self.config.workers, rank),
                switch: child.map_or_else(|| own_name(config), |child| child.switch),
                whole: child.is_some(),
                behind: if stalled {
                    self.run_of(refusal.behind)
                } else {
                    None
                },
            }),
            ..refusal
        }
    }
}

/// The name of this switch.
pub(super) fn own_name(config: &RegistryConfig) -> SwitchName {
    (config.fabric.as_ref()).map_or(SwitchName::new(""), |fabric| fabric.name)
}
