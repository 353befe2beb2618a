"""Bench of tally_payload against memories in Python: slots, ring, output frames and OVERFLOW.

Operations are as from tally_slots, and often on the slot or ring row of the previous one. Beats
have gaps, and the egress has no space at times.
"""

import math
import struct

import cocotb

from bench import PACES, Clock, dice, get, put
from frames import F16, F32, I8, I32, NONE, PKG, SCALE, layout

IN_FLIGHT = 16  # beats that may leave after out_room falls, beyond a frame: the egress's reserve
I32_EDGES = (0, 1, -1, (1 << 31) - 1, -(1 << 31), 1 << 30, -(1 << 30) - 1)
F32_EDGES = (0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x7F7FFFFF, 0xFF7FFFFF,
             0x7F800000, 0xFF800000, 0x7FC00001, 0x7F800001)  # fmt: skip


def word(rng, element):
    """64 bytes of elements."""
    if element == I32:
        pick = rng.choice((lambda: rng.choice(I32_EDGES), lambda: rng.randrange(-1000, 1000), lambda: rng.randrange(-(1 << 31), 1 << 31)))
        return struct.pack(">16i", *(pick() for _ in range(16)))
    if element == F32 and rng.random() < 0.3:
        return struct.pack("<16I", *(rng.choice(F32_EDGES) for _ in range(16)))
    if element == F32:
        return struct.pack("<16f", *(rng.uniform(-8, 8) for _ in range(16)))
    return rng.randbytes(64)


def f32_bits(x, y):
    total = struct.unpack("<f", struct.pack("<I", x))[0] + struct.unpack("<f", struct.pack("<I", y))[0]
    if math.isnan(total):
        return 0x7FC00000
    try:
        return struct.unpack("<I", struct.pack("<f", total))[0]
    except OverflowError:
        return 0x7F800000 | (total < 0) << 31


def combined(element, a, b):
    """The sum of two words, and whether an element saturated."""
    if element == I32:
        sums = [x + y for x, y in zip(struct.unpack(">16i", a), struct.unpack(">16i", b))]
        cut = [min(max(s, -(1 << 31)), (1 << 31) - 1) for s in sums]
        return struct.pack(">16i", *cut), cut != sums
    if element == F32:
        return struct.pack("<16I", *map(f32_bits, struct.unpack("<16I", a), struct.unpack("<16I", b))), False
    return bytes(map(max, a, b)), False


class Model:
    """Generator of valid operations, with the expected effect of each."""

    def __init__(self, dut, rng, elements):
        self.rng, self.elements = rng, elements
        self.units = int(dut.PAYLOAD_BYTES.value) // 64
        self.slot_count, self.row_count = 1 << len(dut.op_slot), 1 << len(dut.op_row)
        self.head_bits = len(dut.op_head)
        self.units_at, _ = layout("HEAD_")["units"]
        # Written contents: (element, [(word, saturated)]) of slots, [(word, saturated)] of rows.
        self.slots, self.ring = {}, {}
        self.slot = self.row = 0

    def head(self, units):
        head = self.rng.getrandbits(self.head_bits) & ~(0xFF << self.units_at)
        return head | units << self.units_at

    def some(self, rows, last):
        """A row in use, preferably the previous one."""
        return last if last in rows and self.rng.random() < 0.5 else self.rng.choice(sorted(rows))

    def order(self, kind=None, units=None, slot=None, element=None):
        """(fields of the operation, beats of the arrival, output frame or None)."""
        rng = self.rng
        kind = kind or rng.choice(KINDS)
        if (kind in NEED_SLOT and not self.slots) or (kind == "again" and not self.ring):
            kind = "take"
        units = units or rng.choice((1, 1, 2, self.units, rng.randrange(1, self.units + 1)))
        element = element or rng.choice(self.elements)
        if slot is None:
            slot = self.some(self.slots, self.slot) if kind in NEED_SLOT else rng.choice((self.slot, rng.randrange(self.slot_count)))
        row = self.some(self.ring, self.row) if kind == "again" else rng.choice((self.row, rng.randrange(self.row_count)))
        self.slot, self.row = slot, row
        had = self.slots.get(slot)
        if kind in ("sum", "result", "follow"):
            if had[0] not in (I32, F32, SCALE):
                kind = "evict"
            element, units = had[0], len(had[1])
        if kind in ("pass", "ps result") and rng.random() < 0.3:
            element = rng.choice((F16, I8, F32))
        if kind == "remind":
            element, units = NONE, 0

        takes = kind != "second"
        size = 1 + units + rng.choice((0, 0, 0, 1))
        if kind in ("raw", "drop"):
            size = rng.randrange(1, self.units + 3)
        if kind == "nack":
            element, units, size = NONE, 0, rng.choice((1, 2))
        arriving = [rng.randbytes(64)] + [word(rng, element) for _ in range(size - 1)] if takes else []
        arrival = [(w, False) for w in arriving[1 : 1 + units]]
        fields = {"takes": takes, "beats": size if takes else rng.getrandbits(8), "from": "NOTHING", "write": "NOTHING",
                  "keep": 0, "slot": slot, "row": row, "element": element, "units": units}  # fmt: skip
        leaves = None
        if kind == "second":
            fields |= {"element": NONE, "units": 0}
        if kind in ("sum", "result", "follow"):
            both = []
            for (a, before), (b, _) in zip(had[1], arrival):
                total, saturated = combined(element, a, b)
                both.append((total, (before and element != F32) or saturated))
            if kind == "sum":
                fields["write"] = "SUM"
                self.slots[slot] = (element, both)
            else:
                fields["from"], leaves = "SUM", both
        if kind in ("take", "preempt"):
            fields["write"] = "ARRIVAL"
            self.slots[slot] = (element, arrival)
        if kind in ("evict", "second", "preempt", "remind"):
            fields["from"], leaves = "SLOT", had[1]
        if kind in ("pass", "ps result", "nack"):
            fields["from"], leaves = "ARRIVAL", arrival
        if kind == "again":
            fields["from"], leaves = "RING", self.ring[row]
        if kind == "raw":
            fields["from"], leaves = "RAW", [(w, False) for w in arriving]
        if kind in ("result", "ps result"):
            fields["keep"] = 1
            self.ring[row] = leaves
        head = self.head(len(leaves) if leaves is not None and kind != "raw" else rng.getrandbits(8))
        fields["head"] = head
        out = None
        if leaves is not None:
            out = ([w for w, _ in leaves], head, int(kind == "raw"), int(any(s for _, s in leaves)))
        beats = [(w, i == len(arriving) - 1) for i, w in enumerate(arriving)]
        return fields, beats, out


KINDS = ("take", "take", "take", "sum", "sum", "sum", "sum", "result", "follow", "evict", "second", "preempt", "remind", "pass",
         "ps result", "again", "raw", "drop", "nack")  # fmt: skip
NEED_SLOT = ("sum", "result", "follow", "evict", "second", "preempt", "remind")


class Ends:
    def __init__(self, dut, rng, paces, orders):
        self.dut, self.rng = dut, rng
        self.order_pace, self.beat_pace, self.room_pace = paces
        self.orders = orders[::-1]
        self.beats = [beat for _, beats, _ in orders for beat in beats][::-1]
        self.longest = max((len(out[0]) for _, _, out in orders if out), default=0)
        self.credit, self.offered, self.room, self.stay = 8, None, 1, 0
        self.frame, self.frames, self.since = [], [], 0
        self.pops, self.faults = [], 0
        # Beats and frames of the operations issued before this cycle, and in this cycle.
        self.given, self.giving = [0, 0], [0, 0]

    def drive(self):
        dut, rng = self.dut, self.rng
        if get(dut.op_room):
            self.credit = 8
        self.given = [a + b for a, b in zip(self.given, self.giving)]
        self.giving = [0, 0]
        push = bool(self.orders) and self.credit > 0 and rng.random() < self.order_pace
        put(dut.op_valid, int(push))
        if push:
            self.credit -= 1
            fields, beats, out = self.orders.pop()
            self.giving = [len(beats), int(out is not None)]
            for name, value in fields.items():
                if name in ("from", "write"):
                    value = PKG[f"{name.upper()}_{value}"]
                put(getattr(dut, f"op_{name}"), int(value))
        if self.offered is None and self.beats and rng.random() < self.beat_pace:
            self.offered = self.beats.pop()
            put(dut.beat_data, int.from_bytes(self.offered[0], "little"))
            put(dut.beat_last, int(self.offered[1]))
        put(dut.beat_valid, int(self.offered is not None))
        # out_room changes after random stretches.
        if self.stay == 0:
            self.room, self.stay = int(rng.random() < self.room_pace), rng.choice((1, 2, 5, 30, 60))
        if self.room:
            self.since = 0
        self.stay -= 1
        put(dut.out_room, self.room)

    def sample(self, cycle):
        dut = self.dut
        self.faults += get(dut.fault)
        if get(dut.beat_pop):
            assert self.offered is not None, "a beat is taken that is not there"
            self.offered = None
            self.pops.append(cycle)
        if get(dut.out_beat):
            self.frame.append(get(dut.out_data).to_bytes(64, "little"))
            self.since += 1
            assert self.room or self.since <= self.longest + IN_FLIGHT, "it sends without room"
        if get(dut.out_ends):
            self.frames.append((self.frame, get(dut.out_head), get(dut.out_raw), get(dut.out_overflow)))
            self.frame = []
        assert not get(dut.idle) or [len(self.pops), len(self.frames)] == self.given, "idle with something to do"

    def done(self):
        return not self.orders and not self.beats and self.offered is None and get(self.dut.idle)


async def run(dut, rng, paces, orders):
    clock = Clock(dut)
    inputs = ("valid", "takes", "beats", "from", "write", "keep", "slot", "row", "element", "units", "head")
    await clock.reset(*(getattr(dut, f"op_{n}") for n in inputs), dut.beat_valid, dut.beat_data, dut.beat_last, dut.out_room)
    ends = clock.attach(Ends(dut, rng, paces, orders))
    wanted = [out for _, _, out in orders if out]
    await clock.until(ends.done, 100 * sum(3 + len(beats) for _, beats, _ in orders), "all orders")
    # The last operation may have been issued in the last cycle.
    await clock.step()
    await clock.until(ends.done, 1000, "the last order")
    assert not ends.faults
    assert not ends.frame, "beats without a head"
    for i, (got, want) in enumerate(zip(ends.frames, wanted)):
        for name, a, b in zip(("beats", "head", "raw", "overflow"), got, want):
            assert a == b, f"frame {i}: {name} {a}, not {b}"
    assert len(ends.frames) == len(wanted)
    return ends


def elements_of(dut):
    return (I32, I32, SCALE, F16) + (F32, F32) * int(dut.F32.value)


@cocotb.test()
async def as_plain_memories(dut):
    rng = dice("payload")
    overflows = 0
    for paces in ((1.0, 1.0, 1.0), (0.7, 1.0, 0.5), *((rng.choice(PACES), rng.choice(PACES), rng.choice(PACES)) for _ in range(2))):
        model = Model(dut, rng, elements_of(dut))
        orders = [model.order() for _ in range(110)]
        # Reads all slots at the end.
        orders += [model.order("evict", slot=slot) for slot in sorted(model.slots)]
        ends = await run(dut, rng, paces, orders)
        overflows += sum(frame[3] for frame in ends.frames)
    assert overflows, "no OVERFLOW was seen"


@cocotb.test()
async def one_slot_after_itself(dut):
    """All pairs of operations on one slot, at small sizes: no read may return an old word."""
    rng = dice("payload hazards")
    orders, model = [], Model(dut, rng, elements_of(dut))
    for element in (I32,) + (F32,) * int(dut.F32.value):
        for units in range(1, min(model.units, 3) + 1):
            sums = ("take", "sum", "sum", "preempt", "sum", "result", "take", "evict")
            for kinds in (sums, ("take", "second", "preempt", "sum", "follow")):
                orders += [model.order(kind, units, 0, element) for kind in kinds]
                # Then the ring's row.
                orders += [model.order("ps result", units, 0, element), model.order("again", units, 0)]
    for pace in (1.0, 0.25):
        await run(dut, rng, (1.0, pace, 1.0), orders)


@cocotb.test()
async def one_slot_and_one_row(dut):
    """Small operations in any order, on both paths: overtaking, and reads of words in flight."""
    rng = dice("payload one slot")
    kinds = ("take", "take", "sum", "sum", "sum", "result", "preempt", "evict", "remind", "ps result", "ps result", "again", "again", "raw")
    for pace in PACES:
        model = Model(dut, rng, elements_of(dut))
        model.slot_count = model.row_count = 1
        # Two paths need more cases, and Verilator is faster.
        count = 3000 if int(dut.F32.value) else 200
        await run(dut, rng, (1.0, pace, 1.0), [model.order(rng.choice(kinds), rng.randint(1, 2)) for _ in range(count)])


@cocotb.test()
async def full_rate(dut):
    """A beat each cycle: integer sums of any size in one slot, f32 sums of 7 beats, mixed kinds."""
    rng = dice("payload rate")
    mixed = ("sum", "pass", "preempt", "ps result")
    for element, units, kinds in ((I32, 1, ("sum",)), (I32, 2, ("sum",)), (F32, 6, ("sum",)), (I32, 1, mixed), (I32, 2, mixed)):
        model = Model(dut, rng, (element,))
        if units > model.units or (element == F32 and not int(dut.F32.value)):
            continue
        orders = [model.order("take", units, 0, element)]
        orders += [model.order(kinds[i % len(kinds)], units, 0, element) for i in range(24)]
        ends = await run(dut, rng, (1.0, 1.0, 1.0), orders)
        took = ends.pops[-1] - ends.pops[0] + 1
        assert took == len(ends.pops), f"{took} cycles for {len(ends.pops)} beats"


@cocotb.test()
async def says_that_a_frame_ends_elsewhere(dut):
    rng = dice("payload fault")
    if int(dut.F32.value):
        return  # Verilator stops at the assertion
    model = Model(dut, rng, (I32,))
    for wrong in (None, 0, 1):
        orders = [model.order("pass", 2, 0, I32)]
        if wrong is not None:
            beats = orders[0][1]
            beats[wrong * (len(beats) - 1)] = (beats[wrong][0], wrong == 0)
        clock, ends = Clock(dut), Ends(dut, rng, (1.0, 1.0, 1.0), orders)
        await clock.reset(dut.op_valid, dut.beat_valid)
        clock.attach(ends)
        for _ in range(30):
            await clock.step()
        assert ends.faults == (wrong is not None)
