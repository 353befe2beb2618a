"""Bench of tally_admission against the checks of Aggregator::admit of crates/engine, in its order.

Frames are correct except for a few fields, which shows the order of the checks. Addresses are the
member's, another member's, another job's, or one bit different. Empty places keep the number of a
job. Frames come at any pace. Jobs and members change between frames; members of places that are not
live change at any time.
"""

import collections
import dataclasses

import cocotb

from bench import PACES, Clock, dice, get, put
from frames import COLLISION, MARKED, OVERFLOW, PKG, PS, RESEND, SWITCH

LATENCY = 4
DISCARD, PASS, DATA, PS_RESULT, WORKER_RESULT, REMIND, NACK, PROBE = (
    PKG[f"ACT_{name}"] for name in ("DISCARD", "PASS_THROUGH", "DATA", "PS_RESULT", "WORKER_RESULT", "REMIND", "NACK", "PROBE")
)
ACTS = (DATA, PS_RESULT, WORKER_RESULT, REMIND, NACK, PROBE)
# Acts of a worker; the others are of the PS.
OF_WORKER = (DATA, WORKER_RESULT, PROBE)
# Fields of a member, from the lowest bit: switch port, UDP port, IPv4 address, MAC address.
MEMBER = (("port", 16), ("udp_port", 16), ("ip", 32), ("mac", 48))
TRAVELS = ("flags", "priority", "element", "fragment", "rank", "units")
IN = ("act", "reason", "bytes", *(name for name, _ in MEMBER), *TRAVELS, "job", "epoch", "of_shard")
JOB = {"number": 16, "epoch": 16, "units": 8, "workers": 8, "hash": 32}


@dataclasses.dataclass
class Job:
    live: bool
    number: int
    epoch: int
    units: int
    workers: int
    hash: int
    members: dict  # by rank; PS
    children: dict  # the same: whether it is a child switch


def admit(jobs, frame, slots):
    """Expected verdict on a frame: (act, reason or None, (place, slot) or None)."""
    act = frame["act"]
    if act == DISCARD:
        return DISCARD, frame["reason"], None
    places = [place for place, job in enumerate(jobs) if job.live and job.number == frame["job"]]
    if act == PASS or not places:
        return PASS, None, None
    (place,) = places
    job = jobs[place]
    sender = frame["rank"] if act in OF_WORKER else PS
    result = act in (PS_RESULT, WORKER_RESULT)

    def wrong():
        if act == WORKER_RESULT and sender == SWITCH:
            return "NOT_FOR_SWITCH"
        if sender != PS and sender >= job.workers:
            return "RANK_OUT_OF_JOB"
        if {name: frame[name] for name, _ in MEMBER} != job.members[sender]:
            return "NOT_A_MEMBER"
        if frame["epoch"] != job.epoch:
            return "STALE_EPOCH"
        if not frame["of_shard"]:
            return "WRONG_SHARD"
        if (act == DATA or result) and frame["units"] != job.units:
            return "UNITS_MISMATCH"
        if act == DATA and frame["flags"] & (OVERFLOW | COLLISION) and not job.children[sender]:
            return "RESERVED_BITS"
        if act == NACK and frame["rank"] >= job.workers:
            return "RANK_OUT_OF_JOB"
        return None

    reason = wrong()
    if reason is not None:
        return DISCARD, PKG[f"DROP_{reason}"], None
    return act, None, (place, (job.hash + frame["fragment"]) % slots)


class Table:
    """Tables of jobs and members, in the model and in the module."""

    def __init__(self, dut, rng):
        self.dut, self.rng = dut, rng
        self.places, self.most, self.slots = (int(getattr(dut, name).value) for name in ("JOBS", "MEMBERS", "SLOTS"))
        self.row_bits = len(dut.member_at) - max((self.places - 1).bit_length(), 1)
        self.jobs = [self.drawn(place) for place in range(self.places)]

    def stored(self):
        return {name: self.rng.getrandbits(size) for name, size in MEMBER}

    def drawn(self, place):
        rng = self.rng
        return Job(
            live=rng.random() < 0.8,
            number=rng.getrandbits(16),
            epoch=rng.getrandbits(16),
            units=rng.randrange(1, 17),
            workers=rng.choice((2, self.most, rng.randrange(2, self.most + 1))),
            hash=rng.getrandbits(32),
            members={rank: self.stored() for rank in (*range(self.most), PS)},
            children={rank: rng.random() < 0.5 for rank in (*range(self.most), PS)},
        )

    def change(self):
        """Replaces jobs. Numbers are similar to one another, or left over in empty places."""
        rng = self.rng
        for place in rng.sample(range(self.places), max(self.places // 2, 1)):
            fresh = self.drawn(place)
            fresh.members, fresh.children = self.jobs[place].members, self.jobs[place].children
            self.jobs[place] = fresh
        live = set()
        for job in self.jobs:
            near = rng.choice(self.jobs).number
            job.number = rng.choice((job.number, near, near ^ 1 << rng.randrange(16)))
            # A live job has one place.
            job.live = job.live and job.number not in live
            if job.live:
                live.add(job.number)
        self.show()

    def show(self):
        for name, size in JOB.items():
            put(getattr(self.dut, f"job_{name}"), sum(getattr(job, name) << size * place for place, job in enumerate(self.jobs)))
        put(self.dut.live, sum(job.live << place for place, job in enumerate(self.jobs)))

    def store(self, place, rank, member, child):
        """Drives a member's store, which takes effect at the next edge."""
        self.jobs[place].members[rank] = member
        self.jobs[place].children[rank] = child
        at = 1 << self.row_bits - 1 if rank == PS else rank
        put(self.dut.member_store, 1)
        put(self.dut.member_at, place << self.row_bits | at)
        bits = 0
        for name, size in reversed(MEMBER):
            bits = bits << size | member[name]
        put(self.dut.member, bits)
        put(self.dut.member_child, int(child))

    def right(self, job, act):
        """A correct frame of a member of the job."""
        rng = self.rng
        rank = PS if act in (PS_RESULT, REMIND) else rng.choice((0, job.workers - 1, rng.randrange(job.workers)))
        sender = rank if act in OF_WORKER else PS
        return {
            "act": act,
            "reason": rng.getrandbits(6),
            "bytes": rng.getrandbits(16),
            "flags": rng.choice((0, RESEND, MARKED)) | rng.choice((0, OVERFLOW, COLLISION)) * (job.children[sender] or act != DATA),
            "priority": rng.getrandbits(8),
            "element": rng.getrandbits(3),
            "fragment": rng.getrandbits(32),
            "rank": rank,
            "units": job.units if act in (DATA, PS_RESULT, WORKER_RESULT) else 0,
            "job": job.number,
            "epoch": job.epoch,
            "of_shard": 1,
        } | job.members[sender]

    def frame(self):
        """A correct frame, mostly with one or several errors."""
        rng = self.rng
        job = rng.choice(self.jobs)
        frame = self.right(job, rng.choice(ACTS))
        for thing in rng.sample(WRONGS, rng.choice((0, 0, 1, 1, 1, 1, 2, 2, 3, 5))):
            thing(rng, self, job, frame)
        return frame


def wrong_rank(rng, table, job, frame):
    """Changes the rank to one outside the job or of another member, below 64 as from the parser, or
    to the switch's in a RESULT."""
    if frame["act"] == WORKER_RESULT and rng.random() < 0.2:
        frame["rank"] = SWITCH
        return
    if frame["act"] in (*OF_WORKER, NACK):
        frame["rank"] = rng.choice((job.workers % 64, job.workers - 1, table.most % 64, 63, rng.randrange(64)))
        beyond = job.members.get(frame["rank"])
        if frame["act"] != NACK and beyond and rng.random() < 0.5:
            # The stored member of that rank, in the job or not.
            frame |= beyond


def wrong_member(rng, table, job, frame):
    kind = rng.randrange(3)
    if kind == 0:
        name, size = rng.choice(MEMBER)
        frame[name] ^= 1 << rng.randrange(size)
    elif kind == 1:
        # Another member of the job, maybe the PS.
        frame |= rng.choice([*job.members.values()])
    else:
        # The same rank of another job.
        sender = frame["rank"] if frame["act"] in OF_WORKER else PS
        frame |= rng.choice(table.jobs).members.get(sender, {})


def wrong_job(rng, table, job, frame):
    frame["job"] = rng.choice((job.number ^ 1 << rng.randrange(16), rng.choice(table.jobs).number, rng.getrandbits(16)))


def wrong_epoch(rng, table, job, frame):
    frame["epoch"] = rng.choice((job.epoch ^ 1 << rng.randrange(16), rng.choice(table.jobs).epoch, (job.epoch - 1) & 0xFFFF))


def wrong_shard(rng, table, job, frame):
    frame["of_shard"] = 0


def wrong_units(rng, table, job, frame):
    frame["units"] = rng.choice((job.units ^ 1 << rng.randrange(8), rng.choice(table.jobs).units, 0))


def wrong_flags(rng, table, job, frame):
    frame["flags"] |= rng.choice((OVERFLOW, COLLISION, rng.getrandbits(8)))


def not_ours(rng, table, job, frame):
    if rng.random() < 0.3:
        frame["act"] = rng.choice((DISCARD, PASS))


WRONGS = (wrong_rank, wrong_member, wrong_job, wrong_epoch, wrong_shard, wrong_units, wrong_flags, not_ours)


class Ends:
    def __init__(self, dut, table, rng, pace):
        self.dut, self.table, self.rng, self.pace = dut, table, rng, pace
        self.frames, self.under_way, self.seen = [], collections.deque(), collections.Counter()
        self.inputs = [(name, getattr(dut, f"in_{name}")) for name in IN]
        self.stores = True

    def drive(self):
        put(self.dut.member_store, 0)
        empty = [place for place, job in enumerate(self.table.jobs) if not job.live]
        if self.stores and empty and self.rng.random() < 0.3:
            place = self.rng.choice(empty)
            self.table.store(place, self.rng.choice([*self.table.jobs[place].members]), self.table.stored(), self.rng.random() < 0.5)
        self.offered = self.frames and self.rng.random() < self.pace
        put(self.dut.in_valid, int(bool(self.offered)))
        if self.offered:
            self.offered = self.frames.pop()
        for name, signal in self.inputs:
            put(signal, self.offered[name] if self.offered else self.rng.getrandbits(len(signal)))

    def sample(self, cycle):
        dut = self.dut
        due = bool(self.under_way) and self.under_way[0][0] == cycle
        assert get(dut.out_valid) == due, f"a frame that is {'late' if due else 'early'}"
        if due:
            _, frame, (act, reason, goes_to) = self.under_way.popleft()
            self.matches(frame, act, reason, goes_to)
        else:
            assert not get(dut.out_drop), "a drop without a frame"
        if self.offered:
            self.under_way.append((cycle + LATENCY, self.offered, admit(self.table.jobs, self.offered, self.table.slots)))

    def matches(self, frame, act, reason, goes_to):
        dut = self.dut
        assert get(dut.out_act) == act, f"{frame}: act {get(dut.out_act)}, not {act}"
        assert get(dut.out_drop) == (reason is not None), f"{frame}: drop is {get(dut.out_drop)}"
        assert reason is None or get(dut.out_reason) == reason, f"{frame}: reason {get(dut.out_reason)}, not {reason}"
        fields = {name: frame[name] for name in ("bytes", "port", *TRAVELS)}
        if goes_to is not None:
            fields |= {"place": goes_to[0], "slot": goes_to[1]}
        for name, value in fields.items():
            got = get(getattr(dut, f"out_{name}"))
            assert got == value, f"{frame}: {name} is {got:x}, not {value:x}"
        self.seen[frame["act"], "passed" if act == PASS else reason] += 1


async def start(dut, rng, pace):
    clock, table = Clock(dut), Table(dut, rng)
    table.change()
    await clock.reset(*(getattr(dut, name) for name in ("member_store", "member_at", "member", "member_child", "in_valid", *(f"in_{name}" for name in IN))))
    ends = Ends(dut, table, rng, pace)
    # All members are stored before the first frame.
    for place, job in enumerate(table.jobs):
        for rank, member in job.members.items():
            table.store(place, rank, member, job.children[rank])
            await clock.step()
    put(dut.member_store, 0)
    clock.attach(ends)
    return clock, table, ends


@cocotb.test()
async def says_what_the_engine_says(dut):
    rng, seen = dice("admission"), collections.Counter()
    for pace in PACES:
        clock, table, ends = await start(dut, rng, pace)
        for _ in range(20):
            ends.frames = [table.frame() for _ in range(60)]
            await clock.until(lambda: not ends.frames and not ends.under_way, 1000, "all frames")
            # Tables change while no frame is in the stages.
            table.change()
            clock.ends.remove(ends)
            put(dut.in_valid, 0)
            for _ in range(4):
                place = rng.randrange(table.places)
                rank = rng.choice((PS, 0, rng.randrange(table.most)))
                member = dict(rng.choice([*rng.choice(table.jobs).members.values()]))
                if rng.random() < 0.5:
                    name, size = rng.choice(MEMBER)
                    member[name] ^= 1 << rng.randrange(size)
                table.store(place, rank, member, rng.random() < 0.5)
                await clock.step()
            put(dut.member_store, 0)
            clock.attach(ends)
        seen += ends.seen
    for act in ACTS:
        reasons = {"passed", None, *(PKG[f"DROP_{name}"] for name in ("NOT_A_MEMBER", "STALE_EPOCH", "WRONG_SHARD"))}
        if act in (*OF_WORKER, NACK):
            reasons.add(PKG["DROP_RANK_OUT_OF_JOB"])
        if act in (DATA, WORKER_RESULT, PS_RESULT):
            reasons.add(PKG["DROP_UNITS_MISMATCH"])
        if act == WORKER_RESULT:
            reasons.add(PKG["DROP_NOT_FOR_SWITCH"])
        if act == DATA:
            reasons.add(PKG["DROP_RESERVED_BITS"])
        missing = [reason for reason in reasons if not seen[act, reason]]
        assert not missing, f"act {act}: never seen {missing}"


@cocotb.test()
async def each_bit_counts(dut):
    """One wrong bit, of all compared bits."""
    rng = dice("admission bits")
    clock, table, ends = await start(dut, rng, 1.0)
    job = table.jobs[-1]
    for other in table.jobs:
        other.live = other is job or other.live and other.number != job.number
    table.show()
    for act in ACTS:
        wrongs = [(name, 1 << bit) for name, size in (*MEMBER, ("job", 16), ("epoch", 16), ("units", 8), ("flags", 8)) for bit in range(size)]
        for name, bit in [(None, 0), *wrongs, ("of_shard", 1)]:
            frame = table.right(job, act)
            ends.frames.append(frame | ({name: frame[name] ^ bit} if name else {}))
    await clock.until(lambda: not ends.frames and not ends.under_way, 2000, "all frames")
    assert all(ends.seen[act, None] for act in ACTS)


@cocotb.test()
async def forgets_at_reset(dut):
    """Frames in the stages at a reset, or offered during it, do not leave."""
    rng = dice("admission reset")
    clock, table, ends = await start(dut, rng, 1.0)
    for _ in range(5):
        ends.frames = [table.frame() | {"act": rng.choice((DISCARD, PASS))} for _ in range(LATENCY)]
        for _ in range(LATENCY):
            await clock.step()
        assert len(ends.under_way) == LATENCY
        clock.ends.remove(ends)
        put(dut.member_store, 0)
        put(dut.in_valid, 1)
        put(dut.rst, 1)
        await clock.step()
        put(dut.rst, 0)
        clock.attach(ends)
        ends.under_way.clear()
        for _ in range(2 * LATENCY):
            await clock.step()
