"""Bench of tally_counters: events count once, carries cross 64 bits, a snapshot is of one cycle."""

import cocotb

from bench import Clock, dice, get, put


@cocotb.test()
async def counts_and_latches(dut):
    rng, clock = dice("counters"), Clock(dut)
    await clock.reset(dut.events, dut.snapshot)
    size = len(dut.events)
    totals, before, latched = [0] * size, [0] * size, [0] * size
    assert get(dut.latched) == 0
    for cycle in range(3000):
        # An event is counted in the cycle after it.
        events = rng.getrandbits(size) & rng.getrandbits(size)
        snapshot = rng.random() < 0.05
        put(dut.events, events)
        put(dut.snapshot, int(snapshot))
        if cycle == 1000:
            await clock.step()
            put(dut.events, 0)
            put(dut.snapshot, 0)
            for _ in range(3):
                await clock.step()
            # Almost full, so that carries run far.
            totals = [2**32 - 5 + i * 2**40 for i in range(size)]
            dut.totals.value = sum(t << 64 * i for i, t in enumerate(totals))
            await clock.step()
            before = list(totals)
            if snapshot:
                latched = None
            continue
        if snapshot:
            latched = before
        await clock.step()
        before = list(totals)
        totals = [t + (events >> i & 1) for i, t in enumerate(totals)]
        if latched is not None:
            value = get(dut.latched)
            got = [value >> 64 * i & (1 << 64) - 1 for i in range(size)]
            assert got == latched, f"cycle {cycle}"
