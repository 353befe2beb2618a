"""Bench of tally_lane_i32 and tally_lane_max: pairs of corner cases, and random pairs near them.

A word of a bus has the first byte of the frame in its lowest bits.
"""

import struct

import cocotb
from cocotb.triggers import Timer

from bench import dice, get, put

ENDS = (-(2**31), 2**31 - 1)
# Limits of i32, limits at which bytes carry into one another, and patterns of different bytes.
CORNERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFF, 0x800000, 0xFFFFFF, 0x1000000,
           2**30 - 1, 2**30, 2**30 + 1, 2**31 - 2, 2**31 - 1, 0x12345678, 0x55AA33CC)  # fmt: skip


def word(data):
    return int.from_bytes(data, "little")


def sum_i32(a, b):
    (x,), (y,) = struct.unpack(">i", a), struct.unpack(">i", b)
    exact = x + y
    cut = min(max(exact, ENDS[0]), ENDS[1])
    return {"sum": word(struct.pack(">i", cut)), "saturated": int(cut != exact)}


def max_u8(a, b):
    return {"max": word(bytes(map(max, a, b)))}


def i32_pairs(rng):
    values = sorted({sign * value for value in CORNERS for sign in (1, -1)} | {ENDS[0]})
    for x in values:
        for y in values:
            yield x, y
    for _ in range(4000):
        x = rng.randint(*ENDS) >> rng.choice((0, 0, 1, 8, 20))
        # Sums of any size, sums at the limits, and sums near 0.
        wanted = rng.choice((rng.randint(*ENDS) + x, *(end + rng.randint(-3, 3) for end in ENDS), rng.randint(-2, 2)))
        yield x, min(max(wanted - x, ENDS[0]), ENDS[1])


def u8_pairs(rng):
    # Each byte lane gets every pair of a coarse raster, with other pairs in the other lanes.
    values = sorted({0, 255} | {v + d for v in (1, 2, 4, 8, 16, 32, 64, 128) for d in (-1, 0, 1)})
    for x in values:
        for y in values:
            for lane in range(4):
                a, b = bytearray(rng.randbytes(4)), bytearray(rng.randbytes(4))
                a[lane], b[lane] = x, y
                yield bytes(a), bytes(b)
    for _ in range(2000):
        a = rng.randbytes(4)
        near = bytes(min(max(v + rng.randint(-1, 1), 0), 255) for v in a)
        yield a, rng.choice((near, rng.randbytes(4)))


@cocotb.test()
async def as_the_kernels_do(dut):
    rng = dice(dut._name)
    if dut._name == "tally_lane_i32":
        expected = sum_i32
        pairs = [(struct.pack(">i", x), struct.pack(">i", y)) for x, y in i32_pairs(rng)]
        assert {expected(a, b)["saturated"] for a, b in pairs} == {0, 1}
    else:
        expected, pairs = max_u8, list(u8_pairs(rng))
    for a, b in pairs:
        put(dut.a, word(a))
        put(dut.b, word(b))
        if hasattr(dut, "clk"):
            put(dut.clk, 0)
            await Timer(1, "step")
            put(dut.clk, 1)
            # Later input belongs to the next pair.
            await Timer(1, "step")
            put(dut.a, rng.getrandbits(32))
            put(dut.b, rng.getrandbits(32))
        await Timer(1, "step")
        for name, value in expected(a, b).items():
            got = get(getattr(dut, name))
            assert got == value, f"{a.hex()} and {b.hex()}: {name} is {got:x}, not {value:x}"
