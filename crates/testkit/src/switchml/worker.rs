//! One worker of a session, from joining to its last sum, each of which it checks.

use super::client::{Client, Config, Stats, Taken, Tensor};
use super::control::{Control, Joined, Member};
use super::inputs::{Element, Inputs, digest};
use super::link::{Link, Lossy};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use tally_wire::Time;

/// What a worker is to do.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// What all ranks bring.
    pub inputs: Inputs,
    /// Tensors, one after the other.
    pub tensors: u32,
    /// Packets in flight at most.
    pub window: u16,
    /// How long to wait for any result.
    pub stall: Duration,
}

/// What a worker did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Its rank.
    pub rank: u8,
    /// How many there were.
    pub workers: u8,
    /// Bytes of elements in a packet.
    pub packet_bytes: usize,
    /// What the elements are.
    pub element: Element,
    /// The session's number.
    pub session: u64,
    /// From its first packet to its last result.
    pub seconds: f64,
    /// Bits of its tensors per second of that.
    pub goodput_gbit_per_s: f64,
    /// Packets, each counted as often as it left.
    pub sent: u64,
    /// Of these, those that had left before.
    pub sent_again: u64,
    /// Results that were there already.
    pub duplicates: u64,
    /// Datagrams that were no answer to anything.
    pub foreign: u64,
    /// Datagrams dropped on purpose.
    pub lost: u64,
    /// A number for all bits of all results, which must be the same for all ranks.
    pub digest: u64,
}

/// Joins, sums, checks, and waits for the others at the end.
///
/// # Errors
/// What goes wrong; a wrong sum above all.
pub fn run(
    control: &Control,
    member: &Member,
    task: &Task,
    session: u64,
    link: &mut Lossy<impl Link>,
) -> Result<Outcome> {
    let Joined { session, switch } = control.join(member, session)?;
    link.turn_to(switch, member.size)?;
    let lost_before = link.lost();
    let mut client = Client::new(Config {
        window: task.window,
        // What an earlier session of the same stations left on its way is not taken for results of
        // this one: most of that goes to another UDP port, too.
        first_job: first_job(session),
        ..Config::new(member.size, member.workers)
    });
    let start = Instant::now();
    let mut all = 0;
    for tensor in 0..task.tensors {
        client.submit(task.inputs.tensor(member.rank, tensor))?;
        let result = sum(&mut client, link, start, task.stall)
            .with_context(|| format!("rank {}, tensor {tensor}", member.rank))?;
        task.inputs
            .check(tensor, member.size, &result)
            .with_context(|| format!("rank {}: a wrong sum", member.rank))?;
        all = digest(&result).wrapping_add(all ^ u64::from(tensor));
    }
    let seconds = start.elapsed().as_secs_f64();
    control.meet(member.workers)?;
    let Stats {
        sent,
        sent_again,
        duplicates,
        foreign,
        ..
    } = *client.stats();
    let bits = u64::from(task.tensors) * task.inputs.elements as u64 * 32;
    Ok(Outcome {
        rank: member.rank,
        workers: member.workers,
        packet_bytes: member.size.payload_bytes(),
        element: task.inputs.element,
        session,
        seconds,
        goodput_gbit_per_s: bits as f64 / seconds / 1e9,
        sent,
        sent_again,
        duplicates,
        foreign,
        lost: link.lost() - lost_before,
        digest: all,
    })
}

/// Numbers of sessions that follow each other are as far apart as they can be.
fn first_job(session: u64) -> u8 {
    (session.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Sums the tensor that has been submitted.
fn sum(
    client: &mut Client,
    link: &mut impl Link,
    start: Instant,
    stall: Duration,
) -> Result<Tensor> {
    let now = || Time(start.elapsed().as_nanos() as u64);
    let mut last = now();
    loop {
        if let Some(result) = client.take() {
            return Ok(result);
        }
        let at = now();
        let sent = link.send(&mut |out| client.poll_transmit(at, out))?;
        let mut is_new = false;
        let received = link.receive(&mut |datagram| {
            is_new |= client.handle(at, datagram) == Taken::Result;
        })?;
        if is_new {
            last = at;
        }
        if at.since(last) > stall {
            let (done, all) = client.progress();
            bail!("no result for {stall:?}: {done} of {all} packets are summed");
        }
        match client.poll_timeout() {
            Some(due) if due <= at => client.handle_timeout(at),
            due if sent + received == 0 => {
                let due = due.map_or(stall, |due| due.since(at));
                link.wait(due.min(Duration::from_millis(100)))?;
            }
            _ => {}
        }
    }
}

/// Whether all workers of a job were in one session, and have the same bits.
///
/// # Errors
/// What differs.
pub fn agree(outcomes: &[Outcome]) -> Result<()> {
    let Some(first) = outcomes.first() else {
        return Ok(());
    };
    for other in outcomes {
        ensure!(
            (other.session, other.digest) == (first.session, first.digest),
            "rank {} has session {} and other results than rank {} in session {}",
            other.rank,
            other.session,
            first.rank,
            first.session
        );
    }
    Ok(())
}
