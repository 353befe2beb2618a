"""Bench of tally_ram against a list: reads, reads of a word that is written, and kept outputs.

With OUTPUT_REGISTER all of it is a cycle later.
"""

import cocotb

from bench import Clock, dice, get, put


class Ends:
    """Random writes and reads, often of the same word in one cycle or in successive cycles."""

    def __init__(self, dut, rng, reads, writes, words):
        self.dut, self.rng, self.reads, self.writes = dut, rng, reads, writes
        self.width, self.bits = len(dut.write_data), len(dut.read_at)
        # None until it is written: such a word is unknown.
        self.words, self.read_data = words, None
        # The output now, and with an output register that of the next cycle.
        self.outputs = [None] * (1 + int(dut.OUTPUT_REGISTER.value))
        self.collisions, self.kept, self.seen, self.at = 0, 0, 0, 0

    def address(self):
        if self.rng.random() < 0.5:
            self.at = self.rng.randrange(len(self.words))
        return self.at

    def drive(self):
        self.read, self.write = self.rng.random() < self.reads, self.rng.random() < self.writes
        self.read_at, self.write_at = self.address(), self.address()
        self.write_data = self.rng.getrandbits(self.width)
        for name in ("read", "read_at", "write", "write_at", "write_data"):
            put(getattr(self.dut, name), int(getattr(self, name)))

    def sample(self, cycle):
        if self.outputs[0] is not None:
            assert get(self.dut.read_data) == self.outputs[0], f"cycle {cycle}"
            self.seen += 1
        if self.read:
            self.collisions += self.write and self.read_at == self.write_at and self.words[self.read_at] is not None
            self.read_data = self.words[self.read_at]
        elif self.read_data is not None and self.write:
            self.kept += 1
        if self.write:
            self.words[self.write_at] = self.write_data
        self.outputs = self.outputs[1:] + [self.read_data]


def words_of(dut):
    return [None] * int(dut.DEPTH.value)


async def output(dut, clock):
    """The word that was read at the last edge."""
    if int(dut.OUTPUT_REGISTER.value):
        put(dut.read, 0)
        put(dut.write, 0)
        await clock.step()
    return get(dut.read_data)


async def idle(dut):
    clock = Clock(dut)
    for name in ("read", "read_at", "write", "write_at", "write_data"):
        put(getattr(dut, name), 0)
    await clock.step()
    return clock


@cocotb.test()
async def as_a_list(dut):
    rng, words = dice(f"ram {dut.WIDTH.value} {dut.DEPTH.value}"), words_of(dut)
    clock = await idle(dut)
    for reads, writes in ((1.0, 1.0), (0.5, 1.0), (0.5, 0.5), (1.0, 0.2), (0.2, 1.0)):
        ends = Ends(dut, rng, reads, writes, words)
        clock.ends = [ends]
        for _ in range(600):
            await clock.step()
        assert ends.seen > 100 and ends.collisions > 10
        assert reads == 1.0 or ends.kept > 20


@cocotb.test()
async def every_word_is_its_own(dut):
    """Each word gets a value of its own and has it in the end. This finds wrong addresses."""
    rng, words = dice("ram words"), words_of(dut)
    clock = await idle(dut)
    put(dut.write, 1)
    for at in rng.sample(range(len(words)), len(words)):
        words[at] = rng.getrandbits(len(dut.write_data))
        put(dut.write_at, at)
        put(dut.write_data, words[at])
        await clock.step()
    put(dut.write, 0)
    for at in rng.sample(range(len(words)), len(words)):
        put(dut.read, 1)
        put(dut.read_at, at)
        await clock.step()
        assert await output(dut, clock) == words[at], f"word {at}"


@cocotb.test()
async def reads_the_old_word_while_it_is_written(dut):
    rng = dice("ram old")
    clock = await idle(dut)
    at = rng.randrange(int(dut.DEPTH.value))
    old = None
    put(dut.write_at, at)
    put(dut.read_at, at)
    for _ in range(8):
        new = rng.getrandbits(len(dut.write_data))
        put(dut.write, 1)
        put(dut.write_data, new)
        put(dut.read, int(old is not None))
        await clock.step()
        if old is not None:
            assert await output(dut, clock) == old, "not the old word"
        old = new


@cocotb.test()
async def keeps_what_was_read(dut):
    rng = dice("ram keeps")
    clock = await idle(dut)
    depth, width = int(dut.DEPTH.value), len(dut.write_data)
    put(dut.write, 1)
    for at in range(depth):
        put(dut.write_at, at)
        put(dut.write_data, at * 0x9E3779B97F4A7C15 & (1 << width) - 1)
        await clock.step()
    put(dut.read, 1)
    put(dut.read_at, depth - 1)
    put(dut.write, 0)
    await clock.step()
    was = await output(dut, clock)
    put(dut.read, 0)
    put(dut.write, 1)
    for _ in range(2 * depth):
        # Neither another address nor a write of the word changes the output.
        put(dut.read_at, rng.randrange(depth))
        put(dut.write_at, rng.choice((depth - 1, rng.randrange(depth))))
        put(dut.write_data, rng.getrandbits(width))
        await clock.step()
        assert get(dut.read_data) == was
