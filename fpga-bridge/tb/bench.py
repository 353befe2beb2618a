"""Common parts of the benches: clock, AXI-Stream source and sink with gaps and back-pressure, dice.

No task runs in the background. A bench calls `step`: each end drives its signals, the module
settles, each end samples the signals, then the clock rises. So a bench sees the same in every
simulator, and a cycle costs two events.
"""

import os
import random

from cocotb.triggers import Timer

# Rates of sources and sinks, combined by the benches: always, mostly, sometimes.
PACES = (1.0, 0.7, 0.25)


def dice(name):
    """Random number generator of one test, seeded by the seed that `run` printed."""
    return random.Random(f"{os.environ['TALLY_SEED']} {name}")


def get(handle):
    """Value of a signal. An unknown value (X or Z) is an error."""
    bits = handle._handle.get_signal_val_binstr()
    try:
        return int(bits, 2)
    except ValueError:
        raise AssertionError(f"{handle._path} is {bits}") from None


def put(handle, value):
    handle.setimmediatevalue(value)


class Clock:
    """Clock of a module and of the ends attached to it."""

    def __init__(self, dut):
        self.dut = dut
        self.ends = []
        self.cycle = 0

    def attach(self, *ends):
        self.ends.extend(ends)
        return ends[0] if len(ends) == 1 else ends

    async def step(self):
        put(self.dut.clk, 0)
        for end in self.ends:
            end.drive()
        await Timer(1, "step")
        for end in self.ends:
            end.sample(self.cycle)
        put(self.dut.clk, 1)
        await Timer(1, "step")
        self.cycle += 1

    async def reset(self, *idle):
        """Two cycles of reset, with the inputs `idle` at 0."""
        for signal in idle:
            put(signal, 0)
        put(self.dut.rst, 1)
        for _ in range(2):
            put(self.dut.clk, 0)
            await Timer(1, "step")
            put(self.dut.clk, 1)
            await Timer(1, "step")
        put(self.dut.rst, 0)

    async def until(self, done, limit, what):
        start = self.cycle
        while not done():
            assert self.cycle - start < limit, f"{what}: not after {limit} cycles"
            await self.step()


class Stream:
    def __init__(self, dut, prefix, rng, pace, user=None):
        self.rng, self.pace = rng, pace
        self.valid, self.ready = (getattr(dut, f"{prefix}_{name}") for name in ("tvalid", "tready"))
        self.data, self.keep, self.last = (getattr(dut, f"{prefix}_{name}") for name in ("tdata", "tkeep", "tlast"))
        self.user = getattr(dut, f"{prefix}_tuser", None)
        self.bytes = len(self.data) // 8
        # Number of transferred beats, and the cycle of the first and the last.
        self.moved, self.first, self.latest = 0, None, None

    def count(self, cycle):
        self.moved += 1
        self.first = cycle if self.first is None else self.first
        self.latest = cycle


class Source(Stream):
    """Offers beats (data, keep, last, user). An offered beat stays until it is taken."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.beats, self.offered = [], None
        put(self.valid, 0)

    def send(self, beats):
        # In reverse, so that the next beat is cheap to remove.
        self.beats = list(beats)[::-1] + self.beats

    def idle(self):
        return not self.beats and self.offered is None

    def drive(self):
        if self.offered is None and self.beats and self.rng.random() < self.pace:
            self.offered = self.beats.pop()
            data, keep, last, user = self.offered
            put(self.data, data)
            put(self.keep, keep)
            put(self.last, last)
            if self.user is not None:
                put(self.user, user)
            put(self.valid, 1)
        elif self.offered is None:
            put(self.valid, 0)

    def sample(self, cycle):
        if self.offered is not None and get(self.ready):
            self.offered = None
            self.count(cycle)


class Sink(Stream):
    """Takes beats, and checks that an offered beat does not change until it is taken."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.beats, self.taking, self.held = [], False, None

    def drive(self):
        self.taking = self.rng.random() < self.pace
        put(self.ready, int(self.taking))

    def sample(self, cycle):
        if not get(self.valid):
            assert self.held is None, "tvalid fell before tready"
            return
        keep = get(self.keep)
        # Bytes outside tkeep have no meaning.
        data = int(self.data._handle.get_signal_val_binstr().replace("x", "0"), 2) & spread(keep, self.bytes)
        beat = (data, keep, get(self.last), get(self.user) if self.user is not None else 0)
        assert self.held in (None, beat), "a beat changed before it was taken"
        self.held = None if self.taking else beat
        if self.taking:
            self.beats.append(beat)
            self.count(cycle)


def spread(keep, size):
    """Mask of bits from a mask of bytes."""
    if keep == (1 << size) - 1:
        return (1 << 8 * size) - 1
    return sum(0xFF << 8 * i for i in range(size) if keep >> i & 1)


def beats_of(frame, size, user=0):
    """Beats of `size` bytes of a frame (bytes)."""
    beats = []
    for at in range(0, len(frame), size):
        part = frame[at : at + size]
        beats.append((int.from_bytes(part, "little"), (1 << len(part)) - 1, int(at + size >= len(frame)), user))
    return beats


def frames_of(beats, size):
    """Frames (bytes, user of the last beat) of beats. Gaps in tkeep are an error."""
    frames, frame = [], bytearray()
    for data, keep, last, user in beats:
        length = keep.bit_length()
        assert keep == (1 << length) - 1 and (last or length == size), f"gaps in tkeep {keep:x}"
        frame += data.to_bytes(size, "little")[:length]
        if last:
            frames.append((bytes(frame), user))
            frame = bytearray()
    assert not frame, "a frame without an end"
    return frames
