"""Bench of tally_decide against the model of PROTOCOL.md, section 6.

Random traffic runs through the model. For each frame the module gets the facts about the frame. Its
outputs, applied to the state before the frame, must give the model's state after the frame.
"""

import copy
import dataclasses

import cocotb
from cocotb.triggers import Timer

from aggregator import ACTS, OF_SUM, RARE_ROWS, ROWS, Aggregator, Slot, Traffic
from bench import dice, get, put
from frames import F32, PKG, RESEND

COUNTED = (
    "results", "results_from_ps", "results_from_workers", "results_again", "preemptions", "abandoned", "followed",
    "collisions", "resends_to_ps", "held_full", "slots_taken", "reminds", "nacks", "probes", "probe_nacks", "late", "duplicate",
    "mismatch",
)  # fmt: skip
DOES = (
    "reaches", "joins", "takes", "frees", "halves", "raises", "splits", "split_taken", "notes_rank", "notes_slot",
    "notes_victim", "keeps", "from", "head", "evicts_too", "why", "write",
)  # fmt: skip


def facts(model, f):
    """The comparisons of tally_slots for a frame. Facts that do not matter are absent."""
    slot = model.slots[f.slot]
    noted, everyone, bit = model.noted(f.place, f.fragment), model.all(f.place), 1 << f.rank % 64
    after = copy.copy(model)
    after.reached = list(model.reached)
    if f.act in ("DATA", "PS_RESULT", "WORKER_RESULT") and not model.kept(f) and not model.is_old(f):
        after.reach(f, type("", (), {})())
    told = {
        "resend": bool(f.flags & RESEND),
        "finished": model.kept(f) is not None,
        "old": model.is_old(f),
        "noted": bool(noted & bit),
        "any_noted": bool(noted),
        "occupied": slot is not None,
        "hit": slot is not None and (slot.place, slot.fragment) == (f.place, f.fragment),
        "is_first": model.may_begin(f.element, f.rank),
        "is_rest_alone": bool(noted) and noted | bit == everyone,
    }
    if slot:
        together = slot.bitmap | bit
        told |= {
            "seen": bool(slot.bitmap & bit),
            "split": slot.split,
            "same_element": slot.element == f.element,
            "is_next": model.may_follow(slot, f.element, f.rank),
            "completes": together == everyone,
            "is_rest": (slot.bitmap if f.act == "PROBE" else together) | noted == everyone,
            "past": after.is_past(slot),
            "higher": f.priority > slot.priority,
            "same_note": model.row_of(f.place, f.fragment) == model.row_of(slot.place, slot.fragment),
        }
    return told


def slot_after(slot, f, does):
    if does["takes"]:
        return Slot(f.place, f.fragment, 1 << f.rank, f.priority, f.element, f.flags & OF_SUM, bool(does["split_taken"]))
    if does["frees"] or slot is None:
        return None
    slot = dataclasses.replace(slot)
    if does["halves"]:
        slot.priority >>= 1
    elif does["raises"]:
        slot.priority = max(slot.priority, f.priority)
    if does["joins"]:
        slot.bitmap |= 1 << f.rank
        slot.flags |= f.flags & OF_SUM
    slot.split |= bool(does["splits"])
    return slot


NAMES = ("valid", "act", "resend", "finished", "old", "noted", "any_noted", "occupied", "hit", "seen", "split",
         "same_element", "is_next", "is_first", "completes", "is_rest", "is_rest_alone", "past", "higher", "same_note")  # fmt: skip


async def one(dut, rng, model, f):
    told = facts(model, f)
    inputs = {n: told.get(n, rng.getrandbits(1)) for n in NAMES} | {"valid": 1, "act": ACTS[f.act]}
    for name, value in inputs.items():
        put(getattr(dut, name), int(value))
    await Timer(1, "step")
    does = {name: get(dut._id(name, extended=False)) for name in DOES}
    counts = sorted(name for name in COUNTED if get(getattr(dut, name)))

    slot = dataclasses.replace(model.slots[f.slot]) if model.slots[f.slot] else None
    carried = copy.copy(model)
    carried.notes = dict(model.notes)
    did = model.frame(f)
    where = f"{did.row}: {f} on {slot}: {does}"

    assert does["reaches"] == did.reaches, where
    assert does["keeps"] == did.keeps, where
    assert does["write"] == PKG[f"WRITE_{did.write}"], where
    assert slot_after(slot, f, does) == model.slots[f.slot], f"{where}, not {model.slots[f.slot]}"
    if does["notes_victim"]:
        carried.note(slot.place, slot.fragment, slot.bitmap)
    if does["notes_rank"]:
        carried.note(f.place, f.fragment, 1 << f.rank)
    if does["notes_slot"]:
        carried.note(f.place, f.fragment, slot.bitmap)
        if does["joins"]:
            carried.note(f.place, f.fragment, 1 << f.rank)
    assert carried.notes == model.notes, f"{where}: notes"

    assert does["from"] == PKG[f"FROM_{did.outs[0].origin if did.outs else 'NOTHING'}"], where
    assert does["evicts_too"] == (len(did.outs) == 2), where
    if did.outs:
        first = did.outs[0]
        if first.origin != "RAW":
            assert does["head"] == PKG[f"HEAD_{first.head}"], where
        if len(did.outs) == 2:
            assert did.outs[1].origin == "SLOT" and first.why == 0
        if did.outs[-1].head in ("PASS", "EVICT", "NOT_HERE"):
            assert does["why"] == did.outs[-1].why, where
    names = {"ELEMENT_MISMATCH": "mismatch"}
    wanted = sorted(names.get(c, c.lower()) for c in did.counts if c != "CONTRIBUTIONS")
    assert counts == wanted, f"{where}: counts {counts}, not {wanted}"
    assert does["joins"] == ("CONTRIBUTIONS" in did.counts), where
    return did.row


@cocotb.test()
async def decides_as_the_protocol_says(dut):
    rng, seen = dice("decide"), set()
    for story in range(60):
        # Continue only until every row but the rare ones was seen.
        if story >= 12 and ROWS - RARE_ROWS <= seen:
            break
        workers = rng.choice((2, 3, 3, 4))
        model = Aggregator(slots=4, jobs=2, members=workers, ring=16, f32=rng.random() < 0.8)
        traffic = Traffic(rng, model)
        for _ in range(800):
            seen.add(await one(dut, rng, model, traffic.draw()))
    assert seen <= ROWS and ROWS - RARE_ROWS <= seen, f"never seen: {ROWS - seen}; no rows: {seen - ROWS}"


@cocotb.test()
async def silent_without_a_frame(dut):
    rng = dice("decide silent")
    for _ in range(300):
        for name in NAMES:
            put(getattr(dut, name), rng.getrandbits(3 if name == "act" else 1))
        put(dut.valid, 0)
        await Timer(1, "step")
        for name in COUNTED + tuple(set(DOES) - {"from", "head", "why"}):
            assert not get(getattr(dut, name)), name
        assert get(dut._id("from", extended=False)) == PKG["FROM_NOTHING"]
