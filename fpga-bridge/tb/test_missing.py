"""Bench of tally_missing: every asker and random sets of ranks, against a search rank by rank.

The asker is the rank that sent the PROBE. There is an input in every cycle.
"""

import collections

import cocotb

from bench import Clock, dice, get, put

LATENCY = 2


def asked(asker, missing, members):
    """The chosen rank: the asker or the next missing rank above it; 0 follows the highest."""
    return next(r % members for r in range(asker, asker + members) if missing >> r % members & 1)


def sets(rng, members):
    """Random sets of ranks, of which at least one is missing: all, slot, noted, missing."""
    everyone = (1 << rng.randrange(1, members + 1)) - 1
    lacking = rng.choice((1 << rng.randrange(members), rng.getrandbits(members), rng.getrandbits(members) & rng.getrandbits(members)))
    lacking = lacking & everyone or 1 << rng.randrange(everyone.bit_length())
    # The others are in the slot, at the PS, or in both. Ranks outside the job are anywhere.
    others = ~lacking & (1 << members) - 1
    slot = rng.getrandbits(members) & others
    return everyone, slot, others & ~slot | rng.getrandbits(members) & others, lacking


@cocotb.test()
async def the_next_missing_rank(dut):
    rng, clock, members = dice("missing"), Clock(dut), len(dut.all)
    due, seen = collections.deque(), set()
    for n in range(64 * members + LATENCY):
        asker = n % members
        everyone, slot, noted, missing = sets(rng, members)
        for name, value in (("all", everyone), ("slot", slot), ("noted", noted), ("below", (1 << asker) - 1)):
            put(getattr(dut, name), value)
        await clock.step()
        due.append((asked(asker, missing, members), asker, missing))
        if len(due) == LATENCY:
            rank, asker, missing = due.popleft()
            assert get(dut.rank) == rank, f"asker {asker}, missing {missing:b}: {get(dut.rank)}, not {rank}"
            seen.add((rank > asker) - (rank < asker))
    assert seen == {-1, 0, 1}


@cocotb.test()
async def every_asker_and_every_rank(dut):
    """A single rank is missing."""
    clock, members = Clock(dut), len(dut.all)
    due = collections.deque()
    for asker in range(members):
        for rank in range(members):
            missing = 1 << rank
            for name, value in (("all", (1 << members) - 1), ("slot", ~missing & (1 << members) - 1), ("noted", 0), ("below", (1 << asker) - 1)):
                put(getattr(dut, name), value)
            await clock.step()
            due.append(rank)
            if len(due) == LATENCY:
                assert get(dut.rank) == due.popleft()
