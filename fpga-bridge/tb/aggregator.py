"""Model of the switch of docs/PROTOCOL.md, section 6, under `esa`, with the card's limits.

The limits: one way a set, and no contribution is held out of order. The model has plain state,
takes one frame after the other, and knows no payloads. For each frame it gives the output frames
with the source of their payload, the changes of slot and ring, and the counters. `Traffic` draws
frames that reach every row of the table.
"""

import dataclasses

from frames import (
    COLLISION, F16, F32, FINISHED, FROM_PS, I8, I32, MARKED, NACK, NONE, NOT_HERE, OVERFLOW, PARTIAL, PKG, PROBE, RESEND,
    RESULT, SCALE, SWITCH,
)  # fmt: skip

ACTS = {name.removeprefix("ACT_"): value for name, value in PKG.items() if name.startswith("ACT_")}
TO_PS, TO_WORKER, TO_GROUP, TO_ASKER = range(4)
# Flags of contributions that their sum has, too.
OF_SUM = PKG["FLAGS_OF_SUM"]


def ahead(a, b):
    """Distance of fragment `a` ahead of `b`, in serial arithmetic."""
    return (a - b + (1 << 31)) % (1 << 32) - (1 << 31)


@dataclasses.dataclass
class Arrival:
    act: str
    flags: int = 0
    priority: int = 0
    element: int = NONE
    fragment: int = 0
    rank: int = 0
    units: int = 0
    place: int = 0
    bytes: int = 64
    port: int = 0
    slot: int = 0


@dataclasses.dataclass
class Slot:
    place: int
    fragment: int
    bitmap: int
    priority: int
    element: int
    flags: int
    split: bool


@dataclasses.dataclass
class Out:
    """An output frame: `origin` is the source of its payload, `head` the kind of its headers."""

    origin: str
    head: str
    why: int
    kind: int
    flags: int
    priority: int
    element: int
    place: int
    fragment: int
    units: int
    bitmap: int
    rank: int = SWITCH
    to: int = TO_PS
    asker: int = 0


@dataclasses.dataclass
class Did:
    row: str
    outs: list = dataclasses.field(default_factory=list)
    write: str = "NOTHING"
    keeps: bool = False
    reaches: bool = False
    counts: list = dataclasses.field(default_factory=list)


class Aggregator:
    def __init__(self, slots, jobs, members, ring, f32=True):
        self.ring_size, self.f32 = ring, f32
        self.slots = [None] * slots
        self.workers, self.units = [members] * jobs, [1] * jobs
        self.reached, self.newest = [None] * jobs, [None] * jobs
        self.ring, self.notes = {}, {}

    def clear(self, place):
        """Clears all state of a place."""
        self.slots = [s if s and s.place != place else None for s in self.slots]
        self.reached[place] = self.newest[place] = None
        for table in (self.ring, self.notes):
            for key in [k for k in table if k[0] == place]:
                del table[key]

    def row_of(self, place, fragment):
        return place, fragment % self.ring_size

    def all(self, place):
        return (1 << self.workers[place]) - 1

    def kept(self, f):
        kept = self.ring.get(self.row_of(f.place, f.fragment))
        return kept if kept and kept[0] == f.fragment else None

    def is_old(self, f):
        newest = self.newest[f.place]
        return newest is not None and ahead(newest, f.fragment) >= self.ring_size

    def noted(self, place, fragment):
        """Ranks whose contribution to a fragment went to the PS."""
        of, ranks = self.notes.get(self.row_of(place, fragment), (0, 0))
        return ranks if of == fragment else 0

    def note(self, place, fragment, ranks):
        self.notes[self.row_of(place, fragment)] = (fragment, self.noted(place, fragment) | ranks)

    def is_past(self, slot):
        reached = self.reached[slot.place]
        return reached is not None and ahead(reached, slot.fragment) >= self.ring_size // 2

    def is_narrow(self, element):
        return element in range(F16, I8 + 1) or (element == F32 and not self.f32)

    def may_begin(self, element, rank):
        return rank == 0 or not (self.is_narrow(element) or element == F32)

    def may_follow(self, slot, element, rank):
        if self.is_narrow(element):
            return False
        return element != F32 or slot.bitmap == (1 << rank) - 1

    def of_arrival(self, f, why=0):
        return Out("ARRIVAL", "PASS", why, PARTIAL, f.flags | why, f.priority, f.element, f.place, f.fragment, f.units,
                   1 << f.rank, asker=f.rank)  # fmt: skip

    def of_slot(self, s, why, asker):
        return Out("SLOT", "EVICT", why, PARTIAL, why | s.flags, s.priority, s.element, s.place, s.fragment,
                   self.units[s.place], s.bitmap, asker=asker)  # fmt: skip

    def of_sum(self, f, s, head):
        kind, to = (RESULT, TO_GROUP) if head == "RESULT" else (PARTIAL, TO_PS)
        bitmap = s.bitmap if kind == PARTIAL else 0
        return Out("SUM", head, 0, kind, s.flags, s.priority, s.element, s.place, s.fragment, f.units, bitmap,
                   to=to, asker=f.rank)  # fmt: skip

    def keep(self, f, out, did):
        did.keeps = True
        self.ring[self.row_of(f.place, f.fragment)] = (f.fragment, out.flags, out.priority, out.element)
        newest = self.newest[f.place]
        if newest is None or ahead(f.fragment, newest) > 0:
            self.newest[f.place] = f.fragment

    def reach(self, f, did):
        did.reaches = True
        reached = self.reached[f.place]
        if reached is None or ahead(f.fragment, reached) > 0:
            self.reached[f.place] = f.fragment

    def frame(self, f):
        if f.act == "PASS_THROUGH":
            return Did("passed", [Out("RAW", "RAW", 0, 0, 0, 0, 0, 0, f.bytes << 16 | f.port, 0, 0)])
        if f.act == "DISCARD":
            return Did("discarded")
        return getattr(self, f.act.lower())(f)

    def nack(self, f):
        out = Out("ARRIVAL", "NACK", 0, NACK, f.flags, f.priority, f.element, f.place, f.fragment, f.units, 0,
                  f.rank, TO_WORKER, f.rank)  # fmt: skip
        return Did("NACK", [out], counts=["NACKS"])

    def worker_result(self, f):
        return self.result(f, "RESULT of a worker", "WORKER_RESULT", f.flags & ~FROM_PS, "RESULTS_FROM_WORKERS")

    def ps_result(self, f):
        return self.result(f, "RESULT of the PS", "PS_RESULT", f.flags | FROM_PS, "RESULTS_FROM_PS")

    def result(self, f, row, head, flags, counter):
        if self.kept(f) or self.is_old(f):
            return Did("late " + row, counts=["LATE"])
        did = Did(row, counts=[counter])
        self.reach(f, did)
        slot = self.slots[f.slot]
        if slot and (slot.place, slot.fragment) == (f.place, f.fragment):
            self.slots[f.slot] = None
            did.row += " frees"
        out = Out("ARRIVAL", head, 0, RESULT, flags, f.priority, f.element, f.place, f.fragment, f.units, 0, to=TO_GROUP,
                  asker=f.rank)  # fmt: skip
        did.outs.append(out)
        self.keep(f, out, did)
        return did

    def remind(self, f):
        did = Did("REMIND", counts=["REMINDS"])
        is_over = self.kept(f) is not None or self.is_old(f)
        slot = self.slots[f.slot]
        if not is_over and slot and (slot.place, slot.fragment) == (f.place, f.fragment):
            did.row += " sends the slot"
            self.give_up(f, did, 0)
        else:
            did.row += " finished" if is_over else " not here"
            why = FINISHED if is_over else 0
            did.outs.append(Out("ARRIVAL", "NOT_HERE", why, NOT_HERE, why, f.priority, f.element, f.place, f.fragment, f.units, 0,
                                asker=f.rank))  # fmt: skip
        return did

    def missing(self, f):
        """Ranks whose contribution is neither in the slot nor at the PS. None without a slot."""
        slot = self.slots[f.slot]
        if not slot or (slot.place, slot.fragment) != (f.place, f.fragment):
            return None
        return self.all(f.place) & ~(slot.bitmap | self.noted(f.place, f.fragment))

    def probe(self, f):
        did = Did("PROBE", counts=["PROBES"])
        kept = self.kept(f)
        if kept:
            did.outs.append(self.again(f, kept))
            did.counts.append("RESULTS_AGAIN")
            did.row += " from the ring"
            return did
        if self.is_old(f):
            did.counts.append("LATE")
            did.row += " old"
            return did
        missing, noted, asked = self.missing(f), self.noted(f.place, f.fragment), f.rank
        if missing:
            workers = self.workers[f.place]
            asked = next(r % workers for r in range(f.rank, f.rank + workers) if missing >> r % workers & 1)
            did.row += " of a slot asks " + ("back" if asked == f.rank else "above" if asked > f.rank else "below")
            did.row += ", split" * bool(noted)
        elif noted:
            did.outs.append(Out("ARRIVAL", "PROBE", 0, PROBE, f.flags, f.priority, f.element, f.place, f.fragment, f.units, 0,
                                f.rank, asker=f.rank))  # fmt: skip
            did.row += " to the PS"
            return did
        else:
            did.row += " asks back"
        did.counts.append("PROBE_NACKS")
        did.outs.append(Out("ARRIVAL", "ASK", 0, NACK, 0, f.priority, NONE, f.place, f.fragment, 0, 0, asked, TO_WORKER, asked))
        return did

    def again(self, f, kept):
        """The RESULT retransmitted from the ring."""
        fragment, flags, priority, element = kept
        return Out("RING", "AGAIN", 0, RESULT, flags, priority, element, f.place, fragment, self.units[f.place], 0, to=TO_ASKER,
                   asker=f.rank)  # fmt: skip

    def give_up(self, f, did, why):
        """Evicts the slot to the PS."""
        slot, self.slots[f.slot] = self.slots[f.slot], None
        self.note(slot.place, slot.fragment, slot.bitmap)
        did.outs.append(self.of_slot(slot, why, f.rank))

    def pass_on(self, f, did, why=0):
        """Sends the arrival to the PS."""
        self.note(f.place, f.fragment, 1 << f.rank)
        did.outs.append(self.of_arrival(f, why))

    def data(self, f):
        resend = bool(f.flags & RESEND)
        kept = self.kept(f)
        if kept and resend:
            return Did("from the ring", [self.again(f, kept)], counts=["RESULTS_AGAIN"])
        if kept or self.is_old(f):
            return Did("late: finished" if kept else "late: old", counts=["LATE"])
        did = Did("")
        self.reach(f, did)
        slot = self.slots[f.slot]
        if slot and (slot.place, slot.fragment) == (f.place, f.fragment):
            did.row = "hit: " + self.of_same_key(f, slot, resend, did)
        elif resend and self.noted(f.place, f.fragment):
            self.pass_on(f, did)
            did.counts.append("RESENDS_TO_PS")
            did.row = "RESEND, no slot"
        elif self.noted(f.place, f.fragment) >> f.rank & 1:
            did.counts.append("DUPLICATE")
            did.row = "noted, no slot"
        else:
            did.row = "RESEND, " * resend + self.of_other_key(f, slot, did)
        return did

    def of_same_key(self, f, slot, resend, did):
        bit, everyone = 1 << f.rank, self.all(f.place)
        if slot.bitmap & bit:
            did.counts.append("DUPLICATE")
            return "duplicate" + resend * ", RESEND"
        if slot.split and self.noted(f.place, f.fragment) & bit:
            if not resend:
                did.counts.append("DUPLICATE")
                return "noted"
            did.counts.append("RESENDS_TO_PS")
            self.pass_on(f, did)
            return "noted, RESEND"
        if slot.element != f.element:
            did.counts.append("ELEMENT_MISMATCH")
            return "element"
        slot.priority = max(slot.priority, f.priority)
        if not self.may_follow(slot, f.element, f.rank):
            did.counts.append("HELD_FULL")
            slot.split = True
            self.pass_on(f, did)
            if slot.bitmap | self.noted(f.place, f.fragment) != everyone:
                return "out of its turn"
            did.counts.append("FOLLOWED")
            self.give_up(f, did, 0)
            return "out of its turn, the last"
        did.counts.append("CONTRIBUTIONS")
        slot.bitmap |= bit
        slot.flags |= f.flags & OF_SUM
        if slot.split:
            if slot.bitmap | self.noted(f.place, f.fragment) == everyone:
                did.counts.append("FOLLOWED")
                self.note(f.place, f.fragment, slot.bitmap)
                did.outs.append(self.of_sum(f, slot, "FOLLOW"))
                self.slots[f.slot] = None
                return "follows"
        elif slot.bitmap == everyone:
            did.counts.append("RESULTS")
            out = self.of_sum(f, slot, "RESULT")
            did.outs.append(out)
            self.keep(f, out, did)
            self.slots[f.slot] = None
            return "complete"
        did.write = "SUM"
        return "joins" + " a split one" * slot.split

    def of_other_key(self, f, slot, did):
        row, victim = "free", None
        if slot and self.is_past(slot):
            row = "past"
            did.counts.append("ABANDONED")
        elif slot and f.priority > slot.priority:
            row = "higher"
            did.counts.append("PREEMPTIONS")
            before = self.noted(f.place, f.fragment)
            self.note(slot.place, slot.fragment, slot.bitmap)
            row += ", its note too" * (before != self.noted(f.place, f.fragment))
            victim = self.of_slot(slot, COLLISION, f.rank)
        elif slot:
            did.counts += ["COLLISIONS"] + ["RESENDS_TO_PS"] * bool(f.flags & RESEND)
            slot.priority //= 2
            self.pass_on(f, did, COLLISION)
            return "not higher"
        did.counts.append("SLOTS_TAKEN")
        self.slots[f.slot] = None
        elsewhere = self.noted(f.place, f.fragment)
        if not self.may_begin(f.element, f.rank):
            did.counts.append("HELD_FULL")
            self.pass_on(f, did)
            row += ", not its turn"
        elif elsewhere and elsewhere | 1 << f.rank == self.all(f.place):
            did.counts += ["CONTRIBUTIONS", "FOLLOWED"]
            self.pass_on(f, did)
            row += ", the rest"
        else:
            did.counts.append("CONTRIBUTIONS")
            did.write = "ARRIVAL"
            self.slots[f.slot] = Slot(f.place, f.fragment, 1 << f.rank, f.priority, f.element, f.flags & OF_SUM, bool(elsewhere))
            row += ", split" * bool(elsewhere)
        did.outs += [victim] * (victim is not None)
        return row


ROWS = {
    "passed", "discarded", "NACK",
    *(f"{a}RESULT of {b}{c}" for b in ("a worker", "the PS") for a, c in (("", ""), ("", " frees"), ("late ", ""))),
    "REMIND sends the slot", "REMIND finished", "REMIND not here",
    "PROBE from the ring", "PROBE old", "PROBE asks back", "PROBE to the PS",
    *(f"PROBE of a slot asks {a}{b}" for a in ("back", "above", "below") for b in ("", ", split")),
    "from the ring", "late: finished", "late: old", "RESEND, no slot", "noted, no slot",
    "hit: duplicate", "hit: duplicate, RESEND", "hit: noted", "hit: noted, RESEND",
    # A RESEND in these rows has no note of its fragment, and is otherwise like other DATA.
    "not higher", "RESEND, not higher", *(f"RESEND, {a}{b}" for a in ("free", "past", "higher") for b in ("", ", not its turn")), "hit: element", "hit: out of its turn", "hit: out of its turn, the last", "hit: follows",
    "hit: complete", "hit: joins", "hit: joins a split one",
    "higher, its note too", "higher, its note too, not its turn",
    *(f"{a}{b}" for a in ("free", "past", "higher") for b in ("", ", not its turn", ", split", ", the rest")),
}  # fmt: skip
# Rows that need two rare events at once.
RARE_ROWS = {"past, split", "past, the rest", "higher, the rest", "higher, its note too, not its turn"}


class Traffic:
    """Generator of frames for the model, of all types, with fragments near the newest."""

    def __init__(self, rng, model):
        self.rng, self.model = rng, model
        self.base = [rng.choice((0, 5, (1 << 32) - 30, (1 << 31) - 10, rng.getrandbits(32))) for _ in model.workers]
        self.planned = []

    def slot_of(self, place, fragment):
        """The slot of a fragment."""
        return (fragment * 5 + (fragment >> 7) + place * 3) % len(self.model.slots)

    def element(self, place, fragment):
        return (I32, F32, I32, SCALE, F32, F16)[(fragment * 7 + place) % 6]

    def plan(self, victim):
        """Plans frames: some ranks of a fragment go to the PS, then the others want a slot."""
        place = victim.place
        fragment = (victim.fragment - self.rng.choice((self.model.ring_size, 4, 8, 12))) % (1 << 32)
        ranks = self.rng.sample(range(self.model.workers[place]), self.model.workers[place])
        split = self.rng.randrange(1, len(ranks))
        for i, rank in enumerate(ranks):
            flags, priority = (self.rng.choice((0, RESEND)), 0) if i < split else (0, 255)
            self.planned.append(Arrival("DATA", flags, priority, self.element(place, fragment), fragment, rank,
                                        self.model.units[place], place, 64 + 64 * self.model.units[place],
                                        slot=self.slot_of(place, fragment)))  # fmt: skip

    def draw(self):
        rng, model = self.rng, self.model
        if self.planned:
            return self.planned.pop(0)
        ring = model.ring_size
        place = rng.randrange(len(model.workers))
        if rng.random() < 0.08:
            self.base[place] = (self.base[place] + rng.choice((1, 1, 1, 2, 2, ring // 2))) % (1 << 32)
        back = rng.choice((0, 1, 1, 2, 2, 3, 4, 5, rng.randrange(ring), rng.randrange(2 * ring + 4)))
        fragment = (self.base[place] - back) % (1 << 32)
        taken = [s for s in model.slots if s]
        if taken and rng.random() < 0.4:
            # Another frame for an occupied slot.
            slot = rng.choice(taken)
            if rng.random() < 0.05:
                self.plan(slot)
            place, fragment = slot.place, slot.fragment
        if rng.random() < 0.05:
            # Another fragment with the same row in ring and notes.
            fragment = (fragment + rng.choice((-ring, -ring, ring))) % (1 << 32)
        f = Arrival(
            act=rng.choices(*zip(("DATA", 74), ("PS_RESULT", 4), ("REMIND", 5), ("WORKER_RESULT", 2), ("NACK", 2), ("PROBE", 7),
                                 ("PASS_THROUGH", 3), ("DISCARD", 3)))[0],
            priority=rng.choice((0, 1, 7, 8, 8, 9, 16, 255, rng.getrandbits(8))),
            element=self.element(place, fragment),
            fragment=fragment,
            rank=rng.randrange(model.workers[place]),
            units=model.units[place],
            place=place,
            port=rng.getrandbits(16),
            slot=self.slot_of(place, fragment),
        )  # fmt: skip
        if f.act == "DATA":
            f.flags = rng.choice((0, 0, 0, RESEND)) | rng.choice((0, 0, MARKED))
            # Of a child switch.
            f.flags |= rng.choice((0, 0, 0, OVERFLOW, COLLISION, OVERFLOW | COLLISION))
            if rng.random() < 0.03:
                f.element = rng.choice((I32, F32, SCALE, F16, I8))
            slot = model.slots[f.slot]
            has = model.noted(place, fragment)
            if slot and slot.fragment == fragment:
                has |= slot.bitmap
            lacking = [r for r in range(model.workers[place]) if not has >> r & 1]
            if lacking and rng.random() < 0.7:
                f.rank = lacking[0] if rng.random() < 0.7 else rng.choice(lacking)
        elif f.act in ("PS_RESULT", "WORKER_RESULT"):
            f.flags = rng.choice((0, MARKED, OVERFLOW, COLLISION, FROM_PS | MARKED))
        elif f.act in ("REMIND", "NACK", "PROBE"):
            f.element, f.units = NONE, 0
        if f.act in ("PS_RESULT", "REMIND"):
            f.rank = 255
        f.bytes = 64 + 64 * f.units
        if f.act in ("PASS_THROUGH", "DISCARD"):
            f.bytes = rng.randrange(1, 1600)
        return f
