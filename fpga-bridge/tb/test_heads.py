"""Bench of tally_heads against the model of PROTOCOL.md, section 6: every field of a head."""

import dataclasses

import cocotb
from cocotb.triggers import Timer

from aggregator import Aggregator, Traffic
from bench import dice, get, put
from frames import PKG
from heads import is_of

# Rows in which the arrival raises the slot's priority before the slot leaves.
RAISED = ("hit: out of its turn, the last", "hit: follows", "hit: complete")


async def one(dut, rng, model, f):
    slot = model.slots[f.slot]
    slot = dataclasses.replace(slot) if slot else None
    kept = model.ring.get(model.row_of(f.place, f.fragment))
    did = model.frame(f)
    if not did.outs:
        return None
    first = did.outs[0]
    if first.head == "ASK":
        # tally_missing sets the rank later.
        first = dataclasses.replace(first, rank=f.rank, asker=f.rank)
    members = len(dut._id("bit_", extended=False))
    told = {
        "head": PKG[f"HEAD_{first.head}"] if first.origin != "RAW" else PKG["HEAD_PASS"], "why": did.outs[-1].why,
        "is_raw": first.origin == "RAW", "evicts_too": len(did.outs) == 2, "bytes": f.bytes, "port": f.port, "flags": f.flags,
        "priority_": f.priority, "element": f.element, "place": f.place, "fragment": f.fragment, "rank": f.rank, "units": f.units,
        "job_units": model.units[f.place], "bit_": (1 << f.rank) & (1 << members) - 1,
    }  # fmt: skip
    if slot:
        told |= {
            "s_priority": max(f.priority, slot.priority) if did.row in RAISED else slot.priority, "s_element": slot.element,
            "s_place": slot.place, "s_fragment": slot.fragment, "s_units": model.units[slot.place], "s_bitmap": slot.bitmap,
            "s_flags": slot.flags,
        }  # fmt: skip
    if kept:
        told |= {"t_flags": kept[1], "t_priority": kept[2], "t_element": kept[3]}
    for name in INPUTS:
        handle = dut._id(name, extended=False)
        put(handle, int(told[name]) if name in told else rng.getrandbits(len(handle)))
    await Timer(1, "step")
    bits = len(dut.out_head)
    where = f"{did.row}: {f} on {slot}: "
    assert is_of(get(dut.out_head), first, bits, members), f"{where}{get(dut.out_head):x}, not {first}"
    if len(did.outs) == 2:
        assert is_of(get(dut.evict_head), did.outs[1], bits, members), f"{where}{get(dut.evict_head):x}, not {did.outs[1]}"
    if did.keeps:
        assert (get(dut.out_flags), get(dut.out_priority), get(dut.out_element)) == (first.flags, first.priority, first.element), where
    if first.head == "AGAIN":
        return f"AGAIN, {f.act}"
    return first.head


INPUTS = (
    "head", "why", "is_raw", "evicts_too", "bytes", "port", "flags", "priority_", "element", "place", "fragment", "rank", "units",
    "job_units", "bit_", "s_priority", "s_element", "s_place", "s_fragment", "s_units", "s_bitmap", "s_flags", "t_flags", "t_priority",
    "t_element",
)  # fmt: skip


@cocotb.test()
async def as_the_protocol_has_them(dut):
    rng, seen = dice("heads"), set()
    jobs, members = int(dut.JOBS.value), int(dut.MEMBERS.value)
    for _ in range(8):
        model = Aggregator(slots=4, jobs=jobs, members=members, ring=16)
        model.workers = [rng.choice((2, 3, min(4, members))) for _ in range(jobs)]
        model.units = [rng.choice((1, 2, 128, rng.randrange(1, 129))) for _ in range(jobs)]
        traffic = Traffic(rng, model)
        for _ in range(600):
            seen.add(await one(dut, rng, model, traffic.draw()))
    heads = {name.removeprefix("HEAD_") for name in PKG if name.startswith("HEAD_") and not name.endswith(("_AT", "_BITS"))}
    heads = heads - {"AGAIN"} | {"AGAIN, DATA", "AGAIN, PROBE"}
    assert heads <= seen, f"never seen: {heads - seen}"
