"""Bench of tally_slots against the model of PROTOCOL.md, section 6: frames in, operations out.

Slots are few and rings small, so that frames collide. Frames come with and without gaps, the
payload stage has no space at times, and jobs are unloaded in between.
"""

import collections
import dataclasses

import cocotb

from aggregator import ACTS, Aggregator, Arrival, Traffic
from bench import PACES, Clock, dice, get, put
from frames import I32, NONE, PKG
from heads import is_of

DROPS = {"LATE", "DUPLICATE", "ELEMENT_MISMATCH"}


def counter(name):
    return PKG[f"DROP_{name}" if name in DROPS else f"COUNT_{name}"]


class Ends:
    def __init__(self, dut, rng, offers, room):
        self.dut, self.rng, self.offers, self.room_pace = dut, rng, offers, room
        self.frames, self.offered, self.orders, self.wanted = [], None, [], []
        self.counts, self.expected = collections.Counter(), collections.Counter()
        self.stay, self.room, self.since, self.starts = 0, 1, 0, []

    def give(self, f, did):
        self.frames.insert(0, f)
        self.wanted.append((f, did))
        self.expected.update(map(counter, did.counts))

    def drive(self):
        dut, rng = self.dut, self.rng
        if self.offered is None and self.frames and rng.random() < self.offers:
            self.offered = f = self.frames.pop()
            put(dut.in_act, ACTS[f.act])
            for name in ("bytes", "port", "flags", "priority", "element", "fragment", "rank", "units", "place", "slot"):
                put(getattr(dut, f"in_{name}"), getattr(f, name))
        put(dut.in_valid, int(self.offered is not None))
        if self.stay == 0:
            self.room, self.stay = int(rng.random() < self.room_pace), rng.choice((1, 2, 5, 20))
        self.since = 0 if self.room else self.since
        self.stay -= 1
        put(dut.op_room, self.room)

    def sample(self, cycle):
        dut = self.dut
        if get(dut.in_pop):
            assert self.offered is not None, "a frame is taken, but none is offered"
            self.offered = None
            self.starts.append(cycle)
        if get(dut.op_valid):
            self.since += 1
            assert self.room or self.since <= 8, "orders without room"
            names = ("takes", "beats", "from", "write", "keep", "slot", "row", "element", "units", "head")
            self.orders.append({name: int(s, 2) if set(s) <= {"0", "1"} else None for name, s in (
                (name, getattr(dut, f"op_{name}")._handle.get_signal_val_binstr()) for name in names)})  # fmt: skip
        counts = get(dut.counts)
        while counts:
            bit = counts.bit_length() - 1
            self.counts[bit] += 1
            counts ^= 1 << bit
        assert not get(dut.idle) or self.offered is None or not get(dut.in_valid), "idle with a frame before it"

    def done(self):
        return not self.frames and self.offered is None and get(self.dut.idle)

    def check(self, model):
        """Checks all operations since the last call."""
        orders, bits, members = self.orders[::-1], len(self.dut.op_head), int(self.dut.MEMBERS.value)
        for f, did in self.wanted:
            for i, out in enumerate(did.outs or [None]):
                assert orders, f"no order for {f}: {did}"
                order = orders.pop()
                where = f"{did.row}, order {i}: {order} for {f}, not {did}"
                wants = {"takes": int(i == 0), "from": PKG[f"FROM_{out.origin if out else 'NOTHING'}"],
                         "write": PKG[f"WRITE_{did.write if i == 0 else 'NOTHING'}"], "keep": int(did.keeps and i == 0)}  # fmt: skip
                if i == 0:
                    wants["beats"] = -(-f.bytes // 64)
                if wants["write"] or (out and out.origin in ("SLOT", "SUM")):
                    wants["slot"] = f.slot
                if did.keeps or (out and out.origin == "RING"):
                    wants["row"] = f.place * model.ring_size + f.fragment % model.ring_size
                if wants["write"] or (out and out.origin == "SUM"):
                    wants |= {"element": f.element, "units": f.units}
                for name, want in wants.items():
                    assert order[name] == want, f"{name} of {where}"
                assert not out or is_of(order["head"], out, bits, members), f"head of {where}"
        assert not orders, f"orders of no frame: {orders}"
        assert +self.counts == +self.expected, f"counts {self.counts}, not {self.expected}"
        self.wanted, self.orders = [], []


async def settle(clock, ends, model):
    await clock.until(ends.done, 2000 + 300 * len(ends.wanted), "all frames")
    ends.check(model)


def tell_jobs(dut, model):
    members = int(dut.MEMBERS.value)
    put(dut.job_units, sum(units << 8 * i for i, units in enumerate(model.units)))
    put(dut.job_all, sum(model.all(i) << members * i for i in range(len(model.workers))))


async def walk(dut, clock, model, place):
    """Clears a place, or all places."""
    put(dut.walk, 1)
    put(dut.walk_all, int(place is None))
    put(dut.walk_place, place or 0)
    await clock.step()
    put(dut.walk, 0)
    await clock.until(lambda: get(dut.walked), 5000, "walked")
    await clock.step()
    for p in range(len(model.workers)) if place is None else [place]:
        model.clear(p)


async def begin(dut, rng, offers, room):
    clock = Clock(dut)
    ends = Ends(dut, rng, offers, room)
    jobs, members = int(dut.JOBS.value), int(dut.MEMBERS.value)
    model = Aggregator(1 << len(dut.in_slot), jobs, members, int(dut.RING.value), bool(int(dut.F32.value)))
    model.workers = [rng.choice((2, 3, 3, members)) for _ in range(jobs)]
    model.units = [rng.choice((1, 2, 128)) for _ in range(jobs)]
    await clock.reset(dut.walk, dut.walk_all, dut.walk_place, dut.in_valid, dut.op_room)
    tell_jobs(dut, model)
    await walk(dut, clock, model, None)
    clock.attach(ends)
    return clock, ends, model


@cocotb.test()
async def orders_as_the_protocol_says(dut):
    rng = dice("slots")
    for story in range(6):
        offers, room = (1.0, 1.0) if story < 2 else (rng.choice(PACES), rng.choice(PACES[:2]))
        clock, ends, model = await begin(dut, rng, offers, room)
        traffic = Traffic(rng, model)
        for _ in range(10):
            for _ in range(60):
                f = traffic.draw()
                ends.give(f, model.frame(f))
            await settle(clock, ends, model)
            if rng.random() < 0.4:
                # Another job replaces a job.
                place = rng.choice((None, rng.randrange(len(model.workers)), rng.randrange(len(model.workers))))
                await walk(dut, clock, model, place)
                traffic.planned = []
                if place is not None:
                    model.workers[place] = rng.randrange(2, int(dut.MEMBERS.value) + 1)
                    model.units[place] = rng.randrange(1, 129)
                    tell_jobs(dut, model)


@cocotb.test()
async def full_rate(dut):
    """One cycle a frame, two for DATA, three for DATA of one slot or one fragment."""
    rng = dice("slots rate")
    for cycles in (1, 2, 3):
        clock, ends, model = await begin(dut, rng, 1.0, 1.0)
        for i in range(24):
            f = Arrival("DATA", element=I32, fragment=i % 4 if cycles == 2 else 0, rank=0, units=model.units[0], bytes=1088)
            if cycles == 1:
                f = Arrival(rng.choice(("NACK", "PROBE", "PASS_THROUGH", "DISCARD")), element=NONE, fragment=i, bytes=64)
            f.slot = f.fragment % 4
            ends.give(f, model.frame(f))
        await settle(clock, ends, model)
        # The first two frames find the stages empty.
        took = ends.starts[-1] - ends.starts[3]
        assert took == cycles * 20, f"{took} cycles for 20 frames of {cycles}"


@cocotb.test()
async def preemptions_cost_no_cycle(dut):
    """A preemption takes as long as other DATA: two cycles, three in the previous frame's slot."""
    rng = dice("preemptions")
    for cycles, slots in ((2, 4), (3, 1)):
        clock, ends, model = await begin(dut, rng, 1.0, 1.0)
        for i in range(24):
            # No two fragments in the stages, victims included, share a row of the notes.
            f = Arrival("DATA", element=I32, fragment=i, rank=0, units=model.units[0], bytes=1088, priority=i, slot=i % slots)
            ends.give(f, model.frame(f))
        await settle(clock, ends, model)
        assert ends.expected[counter("PREEMPTIONS")] == 24 - slots
        took = ends.starts[-1] - ends.starts[3]
        assert took == cycles * 20, f"{took} cycles for 20 preemptions of {cycles}"


@cocotb.test()
async def a_victims_note_is_known_at_once(dut):
    """An evicted fragment's next frame, at any distance, finds the note of its rank."""
    rng = dice("victims")
    clock, ends, model = await begin(dut, rng, 1.0, 1.0)
    fragment = 0
    for again in (0, 1):  # in the fragment's slot, or, only here, in another
        for between in range(6):
            victim = Arrival("DATA", element=I32, fragment=fragment, rank=0, units=model.units[0], bytes=1088)
            other = dataclasses.replace(victim, fragment=fragment + 1, priority=9)
            passing = Arrival("PASS_THROUGH", element=NONE, bytes=64)
            for f in (victim, other, *[passing] * between, dataclasses.replace(victim, slot=again)):
                ends.give(f, model.frame(f))
            await settle(clock, ends, model)
            # Later fragments overwrite the notes of both.
            fragment += model.ring_size
    assert ends.expected[counter("PREEMPTIONS")] == ends.expected[counter("DUPLICATE")] == 12


@cocotb.test()
async def how_far_a_job_is_is_known_at_once(dut):
    """An older fragment at any distance does not move a job's progress back."""
    rng = dice("reached")
    for first in ((), (0,)):
        clock, ends, model = await begin(dut, rng, 1.0, 1.0)
        half = model.ring_size // 2
        # The first fragment is ahead of all, or the newer of two is.
        for fragment in (*first, half, half - 1 if first else 0):
            slot = 0 if fragment == 0 else fragment % 2 + 1
            f = Arrival("DATA", element=I32, fragment=fragment, rank=0, units=model.units[0], bytes=1088, slot=slot)
            ends.give(f, model.frame(f))
        f = dataclasses.replace(f, place=1, fragment=1, units=model.units[1], slot=0)
        ends.give(f, model.frame(f))
        await settle(clock, ends, model)
        assert ends.expected[counter("ABANDONED")] == 1, ends.expected
