//! A dialect: one protocol that the switch speaks, as a folder and a row of
//! [`dialects!`](crate::dialects!).
//!
//! A dialect [claims](Claim) frames. The core gives it those frames, one at a time, and calls
//! [`Dialect::aggregate`] once at the end of each poll iteration. It sends through
//! [`Context::ports`](crate::context::Context::ports) and writes its own headers. Dispatch is
//! static: [`dialects!`](crate::dialects!) makes one type of a list, and the compiler sees every
//! call.

use crate::context::Context;
use crate::demux::{Arrival, Claim, DialectId};
use crate::frame::Platform;
use crate::{DropReason, PortId, Roster};
use std::sync::Arc;
use tally_wire::{JobId, Mac, Time};

/// What becomes of a frame that a dialect was given.
#[must_use]
pub enum Next<F> {
    /// The dialect has it.
    Done,
    /// It is of a job that another dialect serves, which gets it now.
    Job(JobId, F),
    /// It is ordinary traffic between other hosts.
    Forward(F),
}

/// One protocol. All methods but the first two have defaults that do nothing.
pub trait Dialect<P: Platform> {
    /// What control asks of it between poll iterations.
    type Command;
    /// What it did, for reports.
    type Metrics;

    /// The frames that it is given.
    fn claims(&self) -> Vec<Claim>;

    /// Takes a frame that it claims.
    ///
    /// # Errors
    /// Why the frame is dropped.
    fn receive(
        &mut self,
        context: &mut Context<P>,
        arrival: &Arrival,
        frame: P::Frame,
    ) -> Result<Next<P::Frame>, DropReason>;

    /// The fast path of a port whose last frame was this dialect's: takes frames like that one, and
    /// gives back the first that is not.
    #[inline(always)]
    fn receive_cached(
        &mut self,
        _context: &mut Context<P>,
        _port: PortId,
        frames: &mut impl Iterator<Item = P::Frame>,
    ) -> Option<P::Frame> {
        frames.next()
    }

    /// The end of a poll iteration.
    #[inline(always)]
    fn aggregate(&mut self, _context: &mut Context<P>) {}

    /// Carries out a command.
    fn command(&mut self, context: &mut Context<P>, command: Self::Command);

    /// What it did.
    fn metrics(&self, context: &Context<P>) -> Self::Metrics;

    /// Starts serving an epoch of a job, or changes addresses of its members.
    fn bind(&mut self, _context: &mut Context<P>, _roster: &Arc<Roster>) {}

    /// Stops serving a job, which another dialect serves from now on.
    fn release(&mut self, _context: &mut Context<P>, _job: JobId) {}

    /// Ends a job.
    fn unbind(&mut self, _context: &mut Context<P>, _job: JobId) {}

    /// Contributions of a job since it was bound here.
    fn arrivals(&self, _job: JobId) -> u64 {
        0
    }

    /// Gives up all that waits, because the dialect has failed. Its jobs have been released.
    fn give_up(&mut self, _context: &mut Context<P>) {}

    /// When [`handle_timeout`](Self::handle_timeout) is due next.
    #[inline(always)]
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// What [`poll_timeout`](Self::poll_timeout) asked for is due.
    fn handle_timeout(&mut self, _context: &mut Context<P>) {}

    /// Turns an ARP request for a host that the dialect answers for into the reply (`true`). Not
    /// for one at a port that `hears` the request itself.
    #[inline]
    fn answer_arp(&self, _frame: &mut [u8], _hears: &dyn Fn(PortId) -> bool) -> bool {
        false
    }

    /// The port of a host that the dialect knows and MAC learning does not.
    #[inline]
    fn port_of(&self, _mac: Mac) -> Option<PortId> {
        None
    }

    /// Sets the ports that frames are not flooded to. `is_link` says which lead to switches, and so
    /// to other hosts than the one that is known there.
    #[inline]
    fn spare_floods(&self, _spared: &mut [bool], _is_link: &dyn Fn(PortId) -> bool) {}
}

/// A dialect that may be absent.
impl<P: Platform, T: Dialect<P>> Dialect<P> for Option<Box<T>> {
    type Command = T::Command;
    type Metrics = Option<T::Metrics>;

    fn claims(&self) -> Vec<Claim> {
        self.as_ref()
            .map_or_else(Vec::new, |dialect| dialect.claims())
    }

    #[inline]
    fn receive(
        &mut self,
        context: &mut Context<P>,
        arrival: &Arrival,
        frame: P::Frame,
    ) -> Result<Next<P::Frame>, DropReason> {
        match self {
            Some(dialect) => dialect.receive(context, arrival, frame),
            None => Err(DropReason::UdpPort),
        }
    }

    #[inline(always)]
    fn receive_cached(
        &mut self,
        context: &mut Context<P>,
        port: PortId,
        frames: &mut impl Iterator<Item = P::Frame>,
    ) -> Option<P::Frame> {
        match self {
            Some(dialect) => dialect.receive_cached(context, port, frames),
            None => frames.next(),
        }
    }

    #[inline(always)]
    fn aggregate(&mut self, context: &mut Context<P>) {
        if let Some(dialect) = self {
            dialect.aggregate(context);
        }
    }

    fn command(&mut self, context: &mut Context<P>, command: T::Command) {
        if let Some(dialect) = self {
            dialect.command(context, command);
        }
    }

    fn metrics(&self, context: &Context<P>) -> Option<T::Metrics> {
        self.as_ref().map(|dialect| dialect.metrics(context))
    }

    fn bind(&mut self, context: &mut Context<P>, roster: &Arc<Roster>) {
        if let Some(dialect) = self {
            dialect.bind(context, roster);
        }
    }

    fn release(&mut self, context: &mut Context<P>, job: JobId) {
        if let Some(dialect) = self {
            dialect.release(context, job);
        }
    }

    fn unbind(&mut self, context: &mut Context<P>, job: JobId) {
        if let Some(dialect) = self {
            dialect.unbind(context, job);
        }
    }

    fn arrivals(&self, job: JobId) -> u64 {
        self.as_ref().map_or(0, |dialect| dialect.arrivals(job))
    }

    fn give_up(&mut self, context: &mut Context<P>) {
        if let Some(dialect) = self {
            dialect.give_up(context);
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.as_ref().and_then(|dialect| dialect.poll_timeout())
    }

    fn handle_timeout(&mut self, context: &mut Context<P>) {
        if let Some(dialect) = self {
            dialect.handle_timeout(context);
        }
    }

    fn answer_arp(&self, frame: &mut [u8], hears: &dyn Fn(PortId) -> bool) -> bool {
        let dialect = self.as_ref();
        dialect.is_some_and(|dialect| dialect.answer_arp(frame, hears))
    }

    fn port_of(&self, mac: Mac) -> Option<PortId> {
        self.as_ref().and_then(|dialect| dialect.port_of(mac))
    }

    fn spare_floods(&self, spared: &mut [bool], is_link: &dyn Fn(PortId) -> bool) {
        if let Some(dialect) = self {
            dialect.spare_floods(spared, is_link);
        }
    }
}

/// All dialects of a core: what [`dialects!`](crate::dialects!) makes.
pub trait DialectSet<P: Platform> {
    /// A command to one of them.
    type Command;
    /// What they did.
    type Metrics;
    /// The dialect that serves jobs, unless they are moved.
    const JOBS: DialectId;

    /// All claims, each with its dialect.
    fn claims(&self) -> Vec<(DialectId, Claim)>;

    /// See [`Dialect::receive`].
    ///
    /// # Errors
    /// Why the frame is dropped.
    fn receive(
        &mut self,
        id: DialectId,
        context: &mut Context<P>,
        arrival: &Arrival,
        frame: P::Frame,
    ) -> Result<Next<P::Frame>, DropReason>;

    /// See [`Dialect::receive_cached`].
    fn receive_cached(
        &mut self,
        id: DialectId,
        context: &mut Context<P>,
        port: PortId,
        frames: &mut impl Iterator<Item = P::Frame>,
    ) -> Option<P::Frame>;

    /// See [`Dialect::aggregate`]; of all.
    fn aggregate(&mut self, context: &mut Context<P>);

    /// See [`Dialect::command`].
    fn command(&mut self, context: &mut Context<P>, command: Self::Command);

    /// See [`Dialect::metrics`]; of all.
    fn metrics(&self, context: &Context<P>) -> Self::Metrics;

    /// See [`Dialect::bind`].
    fn bind(&mut self, id: DialectId, context: &mut Context<P>, roster: &Arc<Roster>);

    /// See [`Dialect::release`].
    fn release(&mut self, id: DialectId, context: &mut Context<P>, job: JobId);

    /// See [`Dialect::unbind`]; of all.
    fn unbind(&mut self, context: &mut Context<P>, job: JobId);

    /// See [`Dialect::arrivals`].
    fn arrivals(&self, id: DialectId, job: JobId) -> u64;

    /// See [`Dialect::give_up`].
    fn give_up(&mut self, id: DialectId, context: &mut Context<P>);

    /// The earliest [`Dialect::poll_timeout`].
    fn poll_timeout(&self) -> Option<Time>;

    /// See [`Dialect::handle_timeout`]; of those that are due.
    fn handle_timeout(&mut self, context: &mut Context<P>);

    /// See [`Dialect::answer_arp`].
    fn answer_arp(&self, frame: &mut [u8], hears: &dyn Fn(PortId) -> bool) -> bool;

    /// See [`Dialect::port_of`].
    fn port_of(&self, mac: Mac) -> Option<PortId>;

    /// See [`Dialect::spare_floods`]; of all.
    fn spare_floods(&self, spared: &mut [bool], is_link: &dyn Fn(PortId) -> bool);
}

/// Makes a [`DialectSet`] of a list. A row is: variant of the command, constant, field, type,
/// command type, metrics type. The first row serves jobs.
#[macro_export]
macro_rules! dialects {
    (
        $(#[$meta:meta])*
        pub struct $set:ident<$p:ident>, $(#[$command_meta:meta])* $command:ident,
        $(#[$metrics_meta:meta])* $metrics:ident {
            $(
                $(#[doc = $doc:literal])+
                $variant:ident, $constant:ident, $field:ident: $type:ty, $commands:ty, $measured:ty;
            )+
        }
    ) => {
        $(#[$meta])*
        pub struct $set<$p: $crate::frame::Platform> {
            $($(#[doc = $doc])+ pub $field: $type,)+
        }

        $(#[$command_meta])*
        pub enum $command { $($(#[doc = $doc])+ $variant($commands),)+ }

        $(#[$metrics_meta])*
        pub struct $metrics { $($(#[doc = $doc])+ pub $field: $measured,)+ }

        const _: () = {
            enum Index { $($variant,)+ }

            impl<$p: $crate::frame::Platform> $set<$p> {
                $(
                    $(#[doc = $doc])+
                    pub const $constant: $crate::demux::DialectId =
                        $crate::demux::DialectId(Index::$variant as u8);
                )+
            }

            impl<$p: $crate::frame::Platform> $crate::dialect::DialectSet<$p> for $set<$p> {
                type Command = $command;
                type Metrics = $metrics;
                const JOBS: $crate::demux::DialectId = $crate::demux::DialectId(0);

                fn claims(&self) -> Vec<($crate::demux::DialectId, $crate::demux::Claim)> {
                    let mut all = Vec::new();
                    $(
                        let claims = $crate::dialect::Dialect::<$p>::claims(&self.$field);
                        all.extend(claims.into_iter().map(|claim| (Self::$constant, claim)));
                    )+
                    all
                }

                #[inline]
                fn receive(
                    &mut self,
                    id: $crate::demux::DialectId,
                    context: &mut $crate::context::Context<$p>,
                    arrival: &$crate::demux::Arrival,
                    frame: $p::Frame,
                ) -> Result<$crate::dialect::Next<$p::Frame>, $crate::DropReason> {
                    $(
                        if id == Self::$constant {
                            return $crate::dialect::Dialect::receive(
                                &mut self.$field, context, arrival, frame,
                            );
                        }
                    )+
                    Err($crate::DropReason::UdpPort)
                }

                #[inline(always)]
                fn receive_cached(
                    &mut self,
                    id: $crate::demux::DialectId,
                    context: &mut $crate::context::Context<$p>,
                    port: $crate::PortId,
                    frames: &mut impl Iterator<Item = $p::Frame>,
                ) -> Option<$p::Frame> {
                    $(
                        if id == Self::$constant {
                            return $crate::dialect::Dialect::receive_cached(
                                &mut self.$field, context, port, frames,
                            );
                        }
                    )+
                    frames.next()
                }

                #[inline]
                fn aggregate(&mut self, context: &mut $crate::context::Context<$p>) {
                    $($crate::dialect::Dialect::aggregate(&mut self.$field, context);)+
                }

                fn command(&mut self, context: &mut $crate::context::Context<$p>, command: $command) {
                    match command {
                        $($command::$variant(command) => {
                            $crate::dialect::Dialect::command(&mut self.$field, context, command);
                        })+
                    }
                }

                fn metrics(&self, context: &$crate::context::Context<$p>) -> $metrics {
                    $metrics {
                        $($field: $crate::dialect::Dialect::metrics(&self.$field, context),)+
                    }
                }

                fn bind(
                    &mut self,
                    id: $crate::demux::DialectId,
                    context: &mut $crate::context::Context<$p>,
                    roster: &std::sync::Arc<$crate::Roster>,
                ) {
                    $(
                        if id == Self::$constant {
                            $crate::dialect::Dialect::bind(&mut self.$field, context, roster);
                        }
                    )+
                }

                fn release(
                    &mut self,
                    id: $crate::demux::DialectId,
                    context: &mut $crate::context::Context<$p>,
                    job: tally_wire::JobId,
                ) {
                    $(
                        if id == Self::$constant {
                            $crate::dialect::Dialect::release(&mut self.$field, context, job);
                        }
                    )+
                }

                fn unbind(
                    &mut self,
                    context: &mut $crate::context::Context<$p>,
                    job: tally_wire::JobId,
                ) {
                    $($crate::dialect::Dialect::unbind(&mut self.$field, context, job);)+
                }

                fn arrivals(&self, id: $crate::demux::DialectId, job: tally_wire::JobId) -> u64 {
                    $(
                        if id == Self::$constant {
                            return $crate::dialect::Dialect::<$p>::arrivals(&self.$field, job);
                        }
                    )+
                    0
                }

                fn give_up(
                    &mut self,
                    id: $crate::demux::DialectId,
                    context: &mut $crate::context::Context<$p>,
                ) {
                    $(
                        if id == Self::$constant {
                            $crate::dialect::Dialect::give_up(&mut self.$field, context);
                        }
                    )+
                }

                fn poll_timeout(&self) -> Option<tally_wire::Time> {
                    let all = [$($crate::dialect::Dialect::<$p>::poll_timeout(&self.$field),)+];
                    all.into_iter().flatten().min()
                }

                fn handle_timeout(&mut self, context: &mut $crate::context::Context<$p>) {
                    $(
                        let due = $crate::dialect::Dialect::<$p>::poll_timeout(&self.$field);
                        if due.is_some_and(|due| due <= context.now) {
                            $crate::dialect::Dialect::handle_timeout(&mut self.$field, context);
                        }
                    )+
                }

                fn answer_arp(
                    &self,
                    frame: &mut [u8],
                    hears: &dyn Fn($crate::PortId) -> bool,
                ) -> bool {
                    $($crate::dialect::Dialect::<$p>::answer_arp(&self.$field, frame, hears))||+
                }

                fn port_of(&self, mac: tally_wire::Mac) -> Option<$crate::PortId> {
                    let known: Option<$crate::PortId> = None;
                    $(
                        let known = known
                            .or_else(|| $crate::dialect::Dialect::<$p>::port_of(&self.$field, mac));
                    )+
                    known
                }

                fn spare_floods(
                    &self,
                    spared: &mut [bool],
                    is_link: &dyn Fn($crate::PortId) -> bool,
                ) {
                    $($crate::dialect::Dialect::<$p>::spare_floods(&self.$field, spared, is_link);)+
                }
            }
        };
    };
}
