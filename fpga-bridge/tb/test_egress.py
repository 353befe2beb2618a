"""Bench of tally_egress: frames byte for byte as crates/wire emits them, complete and in order.

Jobs and members are random, and change while the module is `quiet`. Heads come with the last beat
or later. Streams have gaps and back-pressure, and stop until the queues are full.
"""

import collections

import cocotb

from bench import PACES, Clock, Sink, beats_of, dice, frames_of, get, put
from frames import IP_HEADERS_BYTES, OVERFLOW, PARTIAL, PKG, Frame
from heads import packed

TO_PS, TO_WORKER, TO_GROUP, TO_ASKER = (PKG[f"TO_{name}"] for name in ("PS", "WORKER", "GROUP", "ASKER"))
WAY = 8  # cycles from in_room to the first beat in the payload stage
EVENTS = ("count_frame", "count_beat", "count_passed", "count_partial", "count_overflow")


class Tables:
    """Tables of jobs and members."""

    def __init__(self, dut, rng):
        self.dut, self.rng = dut, rng
        self.jobs, self.members = int(dut.JOBS.value), int(dut.MEMBERS.value)
        self.units = int(dut.PAYLOAD_BYTES.value) // 64
        self.longest = int(dut.MAX_FRAME.value)
        own_ip = rng.choice((rng.getrandbits(32), 0xFFFFFFFF))
        self.own = {"own_mac": rng.getrandbits(48), "own_ip": own_ip, "base_port": rng.getrandbits(16)}
        for name, value in self.own.items():
            put(getattr(dut, name), value)
        self.job, self.member, self.stores = [None] * self.jobs, {}, []
        for place in range(self.jobs):
            self.change(place)

    def change(self, place):
        """Replaces the job of a place, and its members."""
        rng = self.rng
        self.job[place] = [rng.choice((rng.getrandbits(16), 0xFFFF, 0x80FF)), rng.getrandbits(16), rng.getrandbits(16)]
        for i, name in enumerate(("number", "epoch", "ports")):
            put(getattr(self.dut, f"job_{name}"), sum(job[i] << 16 * at for at, job in enumerate(self.job) if job))
        for rank in ("PS", *range(self.members)):
            port = rng.choice((rng.randrange(16), rng.randrange(16), 16, rng.getrandbits(16)))
            ip = rng.choice((rng.getrandbits(32), self.awkward_ip(rng.getrandbits(16), rng.randrange(3)), 0xFFFFFFFF, 0))
            self.member[place, rank] = (rng.getrandbits(48), ip, rng.getrandbits(16), port)
            self.stores.append((place, rank))

    def awkward_ip(self, upper, units):
        """An address with which folding the checksum carries twice."""
        own_ip = self.own["own_ip"]
        total = 0x4502 + IP_HEADERS_BYTES + 64 * units + 0x4000 + 0x4011 + (own_ip >> 16) + (own_ip & 0xFFFF) + upper
        return upper << 16 | 0xFFFF - total & 0xFFFF

    def drive(self):
        dut = self.dut
        put(dut.member_store, int(bool(self.stores)))
        if self.stores:
            place, rank = self.stores.pop()
            mac, ip, udp_port, port = self.member[place, rank]
            row = self.members if rank == "PS" else rank
            put(dut.member_at, place * 2 * self.members + row)
            put(dut.member, mac << 64 | ip << 32 | udp_port << 16 | port)

    def sample(self, cycle):
        pass

    def drawn(self, units, raws):
        """Input (beats, head, raw, overflow), output (frame, tuser), and counters."""
        rng = self.rng
        place = rng.randrange(self.jobs)
        units = rng.choice((0, 1, 1, 2, rng.randrange(self.units + 1), self.units)) if units is None else units
        kind, flags, element = rng.randrange(1, 12), rng.getrandbits(8) & ~OVERFLOW, rng.randrange(8)
        if rng.random() < 0.1:
            flags |= OVERFLOW
        priority, fragment, rank = rng.getrandbits(8), rng.getrandbits(32), rng.getrandbits(8)
        bitmap, to = rng.getrandbits(self.members), rng.randrange(4)
        asker = rng.getrandbits(8) if to in (TO_PS, TO_GROUP) else rng.randrange(self.members)
        overflow, raw = int(rng.random() < 0.2), int(rng.random() < raws)
        payload, port = rng.randbytes(64 * units), rng.getrandbits(16)
        if raw:
            some = rng.randrange(1, min(self.longest, 64 * units + 300))
            size = rng.choice((1, 63, 64, 65, 128, self.longest, self.longest, self.longest - 1, some))
            payload, fragment, overflow = rng.randbytes(size), size << 16 | port, 0
        values = {"kind": kind, "flags": flags, "priority": priority, "element": element, "place": place, "fragment": fragment,
                  "rank": rank, "units": units, "bitmap": bitmap, "to": to, "asker": asker}  # fmt: skip
        head = packed(values, len(self.dut.in_head), self.members)
        beats = [data for data, _, _, _ in beats_of(payload, 64)]
        if raw:
            # Noise after the frame's end.
            beats[-1] |= rng.getrandbits(512) << 8 * (size % 64) & (1 << 512) - 1 if size % 64 else 0
            return (beats, head, 1, 0), (payload, 1 << 31 | port), {"count_passed": 1}
        number, epoch, ports = self.job[place]
        mac, ip, udp_port, out_port = self.member[place, "PS" if to == TO_PS else asker % self.members]
        mask = 1 << out_port if out_port < 16 else 0
        if to in (TO_GROUP, TO_ASKER):
            mac, ip, udp_port = 0x01005E540000 | number, 0xEF540000 | number, self.own["base_port"]
        if to == TO_GROUP:
            mask = ports
        flags |= OVERFLOW * overflow
        frame = Frame(
            kind=kind, flags=flags, priority=priority, element=element, job=number, epoch=epoch, fragment=fragment, rank=rank,
            bitmap=bitmap, payload=payload, destination=mac, source=self.own["own_mac"], from_ip=self.own["own_ip"], to_ip=ip,
            from_port=self.own["base_port"], to_port=udp_port,
        ).pack()  # fmt: skip
        counts = {"count_partial": int(kind == PARTIAL), "count_overflow": int(to == TO_GROUP and bool(flags & OVERFLOW))}
        return (beats, head, 0, overflow), (frame, mask), counts


class PayloadStage:
    """Sends beats and heads, and begins a frame only if in_room is high."""

    def __init__(self, dut, rng, pace, tables, count, units, raws):
        self.dut, self.rng, self.pace, self.tables, self.count = dut, rng, pace, tables, count
        self.units, self.raws = units, raws
        self.room = collections.deque([0] * WAY)
        self.frame, self.wanted, self.events, self.counted = None, [], collections.Counter(), collections.Counter()
        self.to_change, self.changes, self.was_full = rng.randrange(20), 0, False

    def next_frame(self):
        if self.to_change == 0:
            # The tables may change while the module is quiet and no frame is sent.
            if self.tables.stores or self.fresh:
                return
            if self.changes % 2 == 0:
                if get(self.dut.quiet):
                    self.tables.change(self.rng.randrange(self.tables.jobs))
                    self.changes += 1
                return
            self.changes += 1
            self.to_change = self.rng.choice((3, 10, 40))
        self.to_change -= 1
        if self.count and self.room[0] and not self.tables.stores:
            self.count -= 1
            (beats, *self.head), wanted, counts = self.tables.drawn(self.units, self.raws)
            self.frame = beats[::-1]
            self.wanted.append(wanted)
            self.events.update(counts)

    def drive(self):
        dut = self.dut
        put(dut.in_beat, 0)
        put(dut.in_ends, 0)
        self.fresh = False
        if self.frame is None:
            self.next_frame()
        if self.frame is not None and self.rng.random() < self.pace:
            if self.frame:
                put(dut.in_beat, 1)
                put(dut.in_data, self.frame.pop())
                ends = not self.frame and self.rng.random() < 0.7
            else:
                ends = True
            if ends:
                head, raw, overflow = self.head
                put(dut.in_ends, 1)
                put(dut.in_head, head)
                put(dut.in_raw, raw)
                put(dut.in_overflow, overflow)
                self.frame, self.fresh = None, True

    def sample(self, cycle):
        self.room.append(get(self.dut.in_room))
        self.room.popleft()
        self.was_full |= not self.room[-1] and cycle > 20
        for event in EVENTS:
            self.counted[event] += get(getattr(self.dut, event))
        self.empty = get(self.dut.empty)


async def run(dut, rng, gives, takes, count, units=None, stand=0, raws=0.2):
    clock = Clock(dut)
    await clock.reset(dut.in_beat, dut.in_ends, dut.in_data, dut.in_head, dut.in_raw, dut.in_overflow, dut.m_axis_tready, dut.member_store)
    tables = clock.attach(Tables(dut, rng))
    while tables.stores:
        await clock.step()
    sink = Sink(dut, "m_axis", rng, 0.0 if stand else takes)
    stage = PayloadStage(dut, rng, gives, tables, count, units, raws)
    clock.attach(sink, stage)
    if stand:
        stage.to_change = -1
        for _ in range(stand):
            await clock.step()
        sink.pace = takes
    await clock.until(lambda: not stage.count and stage.frame is None and stage.empty, 400 * count + 20000, "all frames")
    await clock.step()
    assert get(dut.empty) and get(dut.quiet)
    frames = frames_of(sink.beats, 64)
    for i, (got, want) in enumerate(zip(frames, stage.wanted)):
        assert got[0] == want[0], f"frame {i}: {got[0][:64].hex()} of {len(got[0])} bytes, not {want[0][:64].hex()} of {len(want[0])}"
        assert got[1] == want[1], f"frame {i}: tuser {got[1]:x}, not {want[1]:x}"
    assert len(frames) == len(stage.wanted) == count
    events = stage.events + collections.Counter(count_frame=count, count_beat=len(sink.beats))
    assert +stage.counted == +events, f"{stage.counted}, not {events}"
    return sink, stage


@cocotb.test()
async def as_software_emits_them(dut):
    rng = dice("egress")
    changes = 0
    for gives in PACES:
        for takes in PACES:
            _, stage = await run(dut, rng, gives, takes, 24)
            changes += stage.changes
    assert changes, "no tables were changed"


@cocotb.test()
async def stands_still(dut):
    """The stream stops until a queue is full: of beats, of heads, of frames that pass through."""
    rng = dice("egress full")
    for units, raws in ((int(dut.PAYLOAD_BYTES.value) // 64, 0), (0, 0), (None, 0.2), (None, 1)):
        _, stage = await run(dut, rng, 1.0, rng.choice(PACES[:2]), 90, units, 600, raws)
        assert stage.was_full, "in_room was always high"


@cocotb.test()
async def full_rate(dut):
    """Waiting frames leave at a beat a cycle: headers alone, and with one or two beats."""
    rng = dice("egress rate")
    for units in (0, 1, 2):
        sink, _ = await run(dut, rng, 1.0, 1.0, 20, units, stand=100)
        assert sink.latest - sink.first + 1 == sink.moved, "the stream had gaps"
