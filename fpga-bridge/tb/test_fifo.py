"""Bench of tally_fifo against a list: order, count, full, empty, at all rates of push and pop."""

import cocotb

from bench import PACES, Clock, dice, get, put


class Ends:
    def __init__(self, dut, rng, pushes, pops, depth):
        self.dut, self.rng, self.pushes, self.pops, self.depth = dut, rng, pushes, pops, depth
        self.inside, self.pushed, self.popped, self.fullest = [], 0, 0, 0

    def drive(self):
        # A pop of an empty queue has no effect. A push into a full queue needs a pop in its cycle.
        self.pop = self.rng.random() < self.pops
        self.push = (len(self.inside) < self.depth or self.pop) and self.rng.random() < self.pushes
        self.value = self.rng.getrandbits(len(self.dut.tail))
        put(self.dut.push, int(self.push))
        put(self.dut.pop, int(self.pop))
        put(self.dut.tail, self.value)

    def sample(self, cycle):
        assert get(self.dut.count) == len(self.inside)
        assert get(self.dut.valid) == bool(self.inside)
        assert not get(self.dut.overflow)
        if self.inside:
            assert get(self.dut.head) == self.inside[0], "the head is not the oldest entry"
        if self.pop and self.inside:
            self.inside.pop(0)
            self.popped += 1
        if self.push:
            self.inside.append(self.value)
            self.pushed += 1
        self.fullest = max(self.fullest, len(self.inside))


@cocotb.test()
async def as_a_list(dut):
    rng, depth = dice("fifo"), 2 ** (len(dut.count) - 1)
    for pushes in PACES:
        for pops in PACES:
            clock = Clock(dut)
            ends = clock.attach(Ends(dut, rng, pushes, pops, depth))
            await clock.reset(dut.push, dut.pop, dut.tail)
            for _ in range(400):
                await clock.step()
            assert ends.popped > 50
            assert pushes <= pops or ends.fullest == depth, "it was never full"


@cocotb.test()
async def says_that_it_overflows(dut):
    depth = 2 ** (len(dut.count) - 1)
    clock = Clock(dut)
    await clock.reset(dut.push, dut.pop, dut.tail)
    put(dut.push, 1)
    for _ in range(depth - 1):
        await clock.step()
    assert not get(dut.overflow)
    await clock.step()
    assert get(dut.overflow)
    put(dut.push, 0)
