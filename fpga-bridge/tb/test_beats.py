"""Bench of tally_beats: kept frames leave in order and whole, forgotten frames leave no trace."""

import cocotb

from bench import PACES, Clock, dice, get, put


class Ends:
    def __init__(self, dut, rng, writes, pops, depth):
        self.dut, self.rng, self.writes, self.pops, self.depth = dut, rng, writes, pops, depth
        self.out, self.frame, self.kept, self.popped, self.forgotten = [], [], 0, 0, 0
        self.fullest, self.waited = 0, 0

    def drive(self):
        dut, rng = self.dut, self.rng
        room = get(dut.used) < self.depth
        self.write = room and rng.random() < self.writes
        self.value = rng.getrandbits(len(dut.tail))
        ends = rng.random() < 0.2
        self.keep = self.write and ends and rng.random() < 0.7
        # Without space a frame is forgotten at some time. A frame may end without its last beat.
        self.forget = not self.keep and bool(ends if self.write else self.frame and rng.random() < 0.1)
        put(dut.write, int(self.write))
        put(dut.tail, self.value)
        put(dut.keep, int(self.keep))
        put(dut.forget, int(self.forget))
        self.pop = rng.random() < self.pops and bool(get(dut.valid))
        put(dut.pop, int(self.pop))

    def sample(self, cycle):
        dut = self.dut
        used = get(dut.used)
        self.fullest = max(self.fullest, used)
        assert used >= len(self.frame), "`used` lacks the beats of an unfinished frame"
        if get(dut.empty):
            assert not self.out and not self.frame, "`empty` is high, but there are beats"
        if get(dut.valid):
            assert self.out, "a beat that was not kept is readable"
            assert get(dut.head) == self.out[0], "not the next beat"
            self.waited = 0
        elif self.out:
            self.waited += 1
            assert self.waited <= 4, "a kept beat is not readable after 4 cycles"
        if self.pop:
            self.out.pop(0)
            self.popped += 1
        if self.write:
            self.frame.append(self.value)
        if self.keep:
            self.out += self.frame
            self.kept += 1
        if self.keep or self.forget:
            self.forgotten += self.forget
            self.frame = []


@cocotb.test()
async def whole_frames(dut):
    rng, depth = dice("beats"), 2 ** (len(dut.used) - 1)
    for writes in PACES:
        for pops in (*PACES, 0.05):
            clock = Clock(dut)
            await clock.reset(dut.write, dut.tail, dut.keep, dut.forget, dut.pop)
            ends = clock.attach(Ends(dut, rng, writes, pops, depth))
            for _ in range(500):
                await clock.step()
            assert ends.kept > 5 and ends.forgotten > 3 and ends.popped > 5
            ends.writes, ends.pops = 0, 1
            await clock.until(lambda: not ends.out, 100, "the last beat")
            for _ in range(80):
                await clock.step()
            assert get(dut.empty) and get(dut.used) == 0


@cocotb.test()
async def full_rate(dut):
    rng, depth = dice("beats rate"), 2 ** (len(dut.used) - 1)
    clock = Clock(dut)
    await clock.reset(dut.write, dut.tail, dut.keep, dut.forget, dut.pop)
    put(dut.write, 1)
    put(dut.keep, 1)
    put(dut.pop, 1)
    came = []
    for i in range(3 * depth):
        put(dut.tail, i & 0xFF)
        await clock.step()
        came.append(get(dut.valid))
    start = came.index(1)
    assert start <= 4 and all(came[start:]), "bubbles"
