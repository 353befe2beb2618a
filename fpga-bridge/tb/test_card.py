"""Bench of the whole tally_card, with small tables: frames in, the right frames out.

There are two jobs, one of i32 in any order and one of f32 in rank order. The last member of each is
a child switch. Traffic has duplicates,
late frames, RESENDs, PROBEs, damaged frames, and frames that pass through. Each fragment has a slot
of its own, so the output is known. The differential test covers collisions, preemptions and all
else that needs the engine as oracle.
"""

import collections
import dataclasses
import struct

import cocotb

from bench import PACES, Clock, Sink, Source, beats_of, dice, frames_of, get, put
from frames import (
    BASE_PORT, COLLISION, DATA, F32, I32, MARKED, NACK, NONE, OVERFLOW, OWN_IP, OWN_MAC, PKG, PROBE, RESEND, RESULT, SWITCH, Frame,
)  # fmt: skip

REGISTERS = {"control": 0x02C, "status": 0x028, "job": 0x080, "member": 0x0C0, "snapshot": 0x100, "counters": 0x400}
# One job has the even slots, the other the odd ones, as fragments are even.
UNITS, HASH, STEP = 2, (0, 1), 2
ASIDE = 0x0A540909


class Registers:
    """A master of the AXI4-Lite port, with random pauses."""

    def __init__(self, dut, clock, rng):
        self.dut, self.clock, self.rng = dut, clock, rng

    def line(self, name):
        return getattr(self.dut, f"s_axil_{name}")

    async def pause(self):
        while self.rng.random() < 0.3:
            await self.clock.step()

    async def handshake(self, valids, limit=100):
        """Holds each valid until its ready."""
        waiting = set(valids)
        for name in valids:
            put(self.line(f"{name}valid"), 1)

        class Watch:
            def drive(_):
                pass

            def sample(_, cycle):
                for name in list(waiting):
                    if get(self.line(f"{name}ready")) and get(self.line(f"{name}valid")):
                        waiting.discard(name)
                        taken.append(name)

        taken = []
        watch = Watch()
        self.clock.ends.append(watch)
        for _ in range(limit):
            await self.clock.step()
            for name in taken:
                put(self.line(f"{name}valid"), 0)
            taken.clear()
            if not waiting:
                break
        assert not waiting, f"no ready for {waiting}"
        self.clock.ends.remove(watch)

    async def response(self, name, fields, limit=100):
        """Waits for the response, takes it and returns its fields."""
        await self.pause()
        found = []

        class Watch:
            def drive(_):
                pass

            def sample(_, cycle):
                if get(self.line(f"{name}valid")) and not found:
                    found.append([get(self.line(field)) for field in fields])

        watch = Watch()
        self.clock.ends.append(watch)
        put(self.line(f"{name}ready"), 1)
        for _ in range(limit):
            await self.clock.step()
            if found:
                break
        put(self.line(f"{name}ready"), 0)
        self.clock.ends.remove(watch)
        assert found, f"no {name}valid"
        return found[0]

    async def write(self, address, value):
        put(self.line("awaddr"), address)
        put(self.line("wdata"), value)
        put(self.line("wstrb"), 15)
        await self.handshake(["aw", "w"])
        (status,) = await self.response("b", ["bresp"])
        assert status == 0, f"write of {address:x} answered {status}"

    async def read(self, address):
        put(self.line("araddr"), address)
        await self.handshake(["ar"])
        value, status = await self.response("r", ["rdata", "rresp"])
        assert status == 0, f"read of {address:x} answered {status}"
        return value

    async def ready(self):
        for _ in range(400):
            if not await self.read(REGISTERS["status"]) & 1:
                return
        raise AssertionError("the tables are never clear")

    async def counters(self):
        await self.write(REGISTERS["snapshot"], 1)
        names = {v: k for k, v in PKG.items() if k.startswith(("COUNT_", "DROP_", "STREAM_"))}
        values = {}
        for i in range(PKG["COUNTERS"]):
            low = await self.read(REGISTERS["counters"] + 8 * i)
            values[names[i]] = await self.read(REGISTERS["counters"] + 8 * i + 4) << 32 | low
        return values


class Job:
    def __init__(self, place, number, workers, element):
        self.place, self.number, self.workers, self.element = place, number, workers, element
        self.epoch, self.ports = 7 + place, [4 * place + rank for rank in range(workers)]
        self.mask = sum(1 << port for port in self.ports)

    def member(self, rank):
        """MAC, IPv4 address, UDP port, port."""
        if rank == 255:
            return 0x020000FF0000 + self.number, 0x0A5401FF, 40500, 15
        return 0x020000000000 + 256 * self.number + rank, 0x0A540100 + 16 * self.place + rank, 40000 + rank, self.ports[rank]

    async def load(self, registers):
        job, member = REGISTERS["job"], REGISTERS["member"]
        await registers.write(job, self.place)
        for rank in [*range(self.workers), 255]:
            mac, ip, udp_port, port = self.member(rank)
            await registers.write(member + 0x1C, int(rank == self.workers - 1))
            for i, value in enumerate((rank, mac >> 32, mac & 0xFFFFFFFF, ip, udp_port, port, 1)):
                await registers.write(member + 4 * i, value)
        values = (self.place, self.number, self.epoch, UNITS, self.workers, self.mask, HASH[self.place], 1)
        for i, value in enumerate(values):
            await registers.write(job + 4 * i, value)
        await registers.ready()

    def contribution(self, rank, fragment, payload, **fields):
        mac, ip, udp_port, port = self.member(rank)
        return Frame(
            kind=DATA, element=self.element, job=self.number, epoch=self.epoch, fragment=fragment, rank=rank, payload=payload,
            destination=0x025443000000 + port, source=mac, from_ip=ip, from_port=udp_port, **fields,
        )  # fmt: skip

    def probe(self, rank, fragment, tag):
        return dataclasses.replace(self.contribution(rank, fragment, b"", bitmap=tag), kind=PROBE, element=NONE)

    def nack(self, rank, fragment):
        mac, ip, udp_port, port = self.member(rank)
        return Frame(
            kind=NACK, element=NONE, job=self.number, epoch=self.epoch, fragment=fragment, rank=rank, bitmap=0, payload=b"",
            destination=mac, source=0x025443010000 + (1 << port), from_ip=OWN_IP, to_ip=ip, from_port=BASE_PORT, to_port=udp_port,
        ).pack()  # fmt: skip

    def result(self, fragment, payload, flags, priority, mask):
        return Frame(
            kind=RESULT, flags=flags, priority=priority, element=self.element, job=self.number, epoch=self.epoch,
            fragment=fragment, rank=SWITCH, bitmap=0, payload=payload,
            destination=0x01005E540000 + self.number, source=0x025443010000 + mask, from_ip=OWN_IP,
            to_ip=0xEF540000 + self.number, from_port=BASE_PORT,
        ).pack()  # fmt: skip


def payload_of(rng, element):
    count = 16 * UNITS
    if element == F32:
        return struct.pack(f"<{count}f", *(rng.uniform(-1000, 1000) for _ in range(count)))
    # Sometimes large enough to saturate.
    size = 2**31 - 1 if rng.random() < 0.1 else 10**6
    return struct.pack(f">{count}i", *(rng.randint(-size, size) for _ in range(count)))


def added(element, a, b):
    """The sum, and whether it saturated."""
    count = len(a) // 4
    if element == F32:
        # In double precision first, which is exact enough to round once.
        pairs = zip(struct.unpack(f"<{count}f", a), struct.unpack(f"<{count}f", b))
        return struct.pack(f"<{count}f", *(x + y for x, y in pairs)), False
    sums = [x + y for x, y in zip(struct.unpack(f">{count}i", a), struct.unpack(f">{count}i", b))]
    cut = [min(max(s, -(2**31)), 2**31 - 1) for s in sums]
    return struct.pack(f">{count}i", *cut), cut != sums


class Traffic:
    """Frames, the expected output and the expected counters."""

    def __init__(self, rng, jobs, window):
        self.rng, self.jobs, self.window = rng, jobs, window
        self.frames, self.wanted, self.counted = [], [], collections.Counter()
        self.done = {job: {} for job in jobs}
        self.open = {job: {} for job in jobs}
        self.next = {job: 0 for job in jobs}

    def send(self, frame, bad=0):
        self.frames.append((frame, bad))

    def contribute(self, job):
        rng = self.rng
        if len(self.open[job]) < self.window:
            self.open[job][self.next[job]] = [None, set(), 0, 0, False]
            self.next[job] += STEP
        # No fragment may fall so far behind that it leaves the ring.
        oldest = min(self.open[job])
        fragment = oldest if self.next[job] - oldest > 8 * STEP else rng.choice(list(self.open[job]))
        state = self.open[job][fragment]
        missing = [rank for rank in range(job.workers) if rank not in state[1]]
        rank = missing[0] if job.element == F32 else rng.choice(missing)
        priority, congested = rng.getrandbits(8), rng.random() < 0.1
        payload = payload_of(rng, job.element)
        of_sum = rng.choice((0, 0, 0, OVERFLOW, COLLISION)) if rank == job.workers - 1 else 0
        frame = job.contribution(rank, fragment, payload, priority=priority, flags=of_sum, tos=3 if congested else 2).pack()
        self.send(frame + bytes(rng.choice((0, 0, 0, 20))))
        self.counted["COUNT_CONTRIBUTIONS"] += 1
        if state[0] is None:
            self.counted["COUNT_SLOTS_TAKEN"] += 1
            state[0] = payload
        else:
            state[0], cut = added(job.element, state[0], payload)
            state[4] |= cut
        state[1].add(rank)
        state[2] = max(state[2], priority)
        state[3] |= MARKED * congested | of_sum
        if len(state[1]) < job.workers:
            if rng.random() < 0.1:
                self.send(frame)
                self.counted["DROP_DUPLICATE"] += 1
            return
        del self.open[job][fragment]
        result = (fragment, state[0], state[3] | OVERFLOW * state[4], state[2])
        self.done[job][fragment] = result
        self.wanted.append(job.result(*result, job.mask))
        self.counted["COUNT_RESULTS"] += 1
        self.counted["COUNT_OVERFLOWS"] += bool(result[2] & OVERFLOW)

    def ask_again(self, job):
        recent = [f for f in self.done[job] if f > self.next[job] - 12 * STEP]
        if not recent:
            return
        fragment, rank = self.rng.choice(recent), self.rng.randrange(job.workers)
        how = self.rng.choice(("new", "RESEND", "PROBE"))
        frame = job.contribution(rank, fragment, payload_of(self.rng, job.element), flags=RESEND * (how == "RESEND"))
        if how == "PROBE":
            frame = job.probe(rank, fragment, self.rng.getrandbits(64))
            self.counted["COUNT_PROBES"] += 1
        self.send(frame.pack())
        if how != "new":
            self.wanted.append(job.result(*self.done[job][fragment], 1 << job.ports[rank]))
            self.counted["COUNT_RESULTS_AGAIN"] += 1
        else:
            self.counted["DROP_LATE"] += 1

    def probe(self, job):
        """A PROBE of a fragment without a result: a NACK goes to a rank that is missing."""
        if not self.open[job]:
            return
        fragment, rank = self.rng.choice(list(self.open[job])), self.rng.randrange(job.workers)
        has = self.open[job][fragment][1]
        asked = next(r % job.workers for r in range(rank, rank + job.workers) if r % job.workers not in has)
        self.send(job.probe(rank, fragment, self.rng.getrandbits(64)).pack())
        self.wanted.append(job.nack(asked, fragment))
        self.counted["COUNT_PROBES"] += 1
        self.counted["COUNT_PROBE_NACKS"] += 1

    def other(self):
        """Frames that pass through the card, and frames that it drops."""
        rng, job = self.rng, self.jobs[0]
        kind = rng.randrange(7)
        if kind == 0:
            frame = rng.getrandbits(48).to_bytes(6, "big") + rng.randbytes(rng.choice((8, 54, 58, 200)))
        elif kind == 1:
            frame = job.contribution(0, 3, bytes(128), to_ip=ASIDE).pack()
        elif kind == 2:
            frame = Frame(job=99, destination=0x025443000002).pack()
        elif kind == 3:
            self.send(job.contribution(0, 3, bytes(128), version=1).pack())
            self.counted["DROP_VERSION"] += 1
            return
        elif kind == 4:
            # A flag of child switches, from a worker.
            self.send(job.contribution(0, self.next[job], bytes(128), flags=OVERFLOW).pack())
            self.counted["DROP_RESERVED_BITS"] += 1
            return
        elif kind == 5:
            self.send(job.contribution(0, self.next[job], bytes(128)).pack(), 1)
            self.counted["DROP_STREAM_ERROR"] += 1
            return
        else:
            self.send(rng.randbytes(1601 + rng.randrange(200)))
            self.counted["DROP_STREAM_OVERSIZE"] += 1
            return
        self.send(frame)
        self.wanted.append(frame)
        self.counted["STREAM_PASSED"] += 1

    def draw(self, count):
        while len(self.frames) < count or any(self.open.values()):
            kind = self.rng.random()
            job = self.rng.choice(self.jobs)
            if len(self.frames) >= count:
                self.window = 0
                job = next(job for job in self.jobs if self.open[job])
                self.contribute(job)
            elif kind < 0.75:
                self.contribute(job)
            elif kind < 0.85:
                self.ask_again(job)
            elif kind < 0.9:
                self.probe(job)
            else:
                self.other()
        self.counted["STREAM_FRAMES_IN"] = len(self.frames)
        self.counted["STREAM_FRAMES_OUT"] = len(self.wanted)


async def start(dut, rng, offers, takes):
    clock = Clock(dut)
    for name in ("awaddr", "awvalid", "wdata", "wstrb", "wvalid", "bready", "araddr", "arvalid", "rready"):
        put(getattr(dut, f"s_axil_{name}"), 0)
    source, sink = Source(dut, "s_axis", rng, offers), Sink(dut, "m_axis", rng, takes)
    await clock.reset(dut.tick, dut.s_axis_tdata, dut.s_axis_tkeep, dut.s_axis_tlast, dut.s_axis_tuser)
    clock.attach(source, sink)
    registers = Registers(dut, clock, rng)
    assert await registers.read(0) == 0x54414C59
    for i, value in enumerate((OWN_MAC >> 32, OWN_MAC & 0xFFFFFFFF, OWN_IP, BASE_PORT, 1)):
        await registers.write(0x040 + 4 * i, value)
    await registers.ready()
    await registers.write(REGISTERS["control"], 1)
    jobs = [Job(0, 0x0105, 4, I32), Job(1, 0x0106, 2, F32)]
    for job in jobs:
        await job.load(registers)
    return clock, source, sink, registers, jobs


async def run(dut, rng, offers, takes, count):
    clock, source, sink, registers, jobs = await start(dut, rng, offers, takes)
    traffic = Traffic(rng, jobs, 6)
    traffic.draw(count)
    source.send(beat for frame, bad in traffic.frames for beat in beats_of(frame, source.bytes, bad))
    beats = sum(len(frame) // source.bytes + 1 for frame, _ in traffic.frames)
    await clock.until(lambda: source.idle(), 30 * beats + 1000, "all frames in")
    await clock.until(lambda: not get(dut.busy), 30 * beats + 1000, "all frames out")
    out = [frame for frame, _ in frames_of(sink.beats, sink.bytes)]
    missing, strange = collections.Counter(traffic.wanted), collections.Counter(out)
    missing, strange = missing - strange, strange - missing
    assert not missing and not strange, (
        f"{sum(missing.values())} missing, such as {next(iter(missing), b'').hex()}; "
        f"{sum(strange.values())} not expected, such as {next(iter(strange), b'').hex()}"
    )
    counters = await registers.counters()
    for name in ("STREAM_BEATS_IN", "STREAM_BEATS_OUT", "STREAM_STALLS"):
        counters.pop(name)
    wrong = {name: value for name, value in counters.items() if value != traffic.counted[name]}
    assert not wrong, f"counters {wrong}, not { {name: traffic.counted[name] for name in wrong} }"
    assert not await registers.read(REGISTERS["status"]) & 2, "status: an internal check failed"
    return source


@cocotb.test()
async def sums_frames(dut):
    rng = dice("card" + str(len(dut.s_axis_tdata)))
    for offers in PACES:
        for takes in PACES:
            await run(dut, rng, offers, takes, 60)


@cocotb.test()
async def never_waits(dut):
    """At full rate in and out, the input stream never waits."""
    source = await run(dut, dice("card rate"), 1.0, 1.0, 250)
    assert source.latest - source.first + 1 == source.moved, "the stream had to wait"
