"""Bench of tally_parser against the checks of crates/wire and of the switch's classification.

Most frames are correct except for a few fields, which shows the order of the checks. Others are
truncated or padded.
"""

import collections
import dataclasses

import cocotb

from bench import PACES, Clock, dice, get, put
from frames import (
    ACCEPT, BASE_PORT, COLLISION, DATA, ETHERNET_BYTES, F32, FINISHED, FROM_PS, IP_HEADERS_BYTES, IPV4_BYTES, JOIN, LEAVE,
    MARKED, NACK, NOT_HERE, OVERFLOW, OWN_IP, OWN_MAC, PARTIAL, PKG, PROBE, PS, REFUSE, REMIND, RESEND, RESULT, SWITCH,
    TAG_BYTES, UDP_BYTES, Frame, field,
)  # fmt: skip

SHARDS = 4
# Headers of the example in docs/PROTOCOL.md, section 10: a DATA frame of i32.
EXAMPLE = Frame(
    priority=0x60, job=7, epoch=0x2A01, fragment=5, rank=2, destination=0x0254414C4C59, source=0x020000000003,
    from_ip=0x0A000003, to_ip=0x0A0000FE, from_port=40003, to_port=31250,
)  # fmt: skip
EXAMPLE_BYTES = bytes.fromhex(
    "02 54 41 4c 4c 59 02 00 00 00 00 03 08 00 45 02 00 72 00 00 40 00 40 11 25 79 0a 00 00 03 0a 00 00 fe 9c 43 7a 12 00 5e 00 00"
    "25 00 60 01 00 07 2a 01 00 00 00 05 02 01 00 00 00 00 00 00 00 04"
)


class Dropped(Exception):
    pass


class Passes(Exception):
    pass


def check(wrong, reason):
    if wrong:
        raise Dropped(PKG[f"DROP_{reason}"])


def expected(frame, port):
    """Expected verdict on a frame: (act, reason or None, fields)."""
    of = lambda name: field(frame, name)  # noqa: E731
    try:
        check(len(frame) < ETHERNET_BYTES, "TRUNCATED")
        check(of("source") == OWN_MAC, "SPOOFED_SWITCH")
        if of("destination") != OWN_MAC or of("ethertype") != 0x0800:
            raise Passes
        check(len(frame) < ETHERNET_BYTES + IPV4_BYTES, "TRUNCATED")
        check(of("version_ihl") >> 4 != 4, "IP_VERSION")
        check(of("version_ihl") & 15 != 5, "IP_OPTIONS")
        check(of("fragmenting") & 0x3FFF, "IP_FRAGMENT")
        if of("protocol") != 17:
            raise Passes
        ip_bytes = of("ip_bytes")
        check(ip_bytes < IPV4_BYTES + UDP_BYTES or ip_bytes > len(frame) - ETHERNET_BYTES, "IP_LENGTH")
        check(of("udp_bytes") != ip_bytes - IPV4_BYTES, "UDP_LENGTH")
        if of("to_ip") != OWN_IP:
            raise Passes
        check(of("from_ip") == OWN_IP, "SPOOFED_SWITCH")
        shard = of("to_port") - BASE_PORT & 0xFFFF
        if shard >= SHARDS:
            raise Passes
        check(ip_bytes < IP_HEADERS_BYTES, "HEADER_TRUNCATED")
        check(of("version") != 2, "VERSION")
        kind, flags, element, rank, units, bitmap = map(of, ("kind", "flags", "element", "rank", "units", "bitmap"))
        check(not JOIN <= kind <= PROBE, "TYPE")
        allowed = {
            DATA: RESEND | OVERFLOW | MARKED | COLLISION,
            RESULT: OVERFLOW | FROM_PS | MARKED | COLLISION,
            PARTIAL: RESEND | OVERFLOW | MARKED | COLLISION,
            NOT_HERE: FINISHED,
        }
        check(flags & ~allowed.get(kind, 0) or element & 0xF0, "RESERVED_BITS")
        elements = kind in (DATA, RESULT, PARTIAL)
        check(element > 7 or elements == (element == 0), "ELEMENT_TYPE")
        control = kind in (JOIN, ACCEPT, REFUSE, LEAVE)
        check(not 1 <= units <= 128 if elements else units != (2 if control else 0), "PAYLOAD_LENGTH")
        worker = rank < 64
        ranks = {
            DATA: worker, NACK: worker, PROBE: worker, RESULT: worker or rank in (PS, SWITCH), PARTIAL: rank == SWITCH,
            NOT_HERE: rank == SWITCH, REMIND: rank == PS,
        }  # fmt: skip
        check(not ranks.get(kind, worker or rank == PS), "RANK_RANGE")
        prefix = bitmap & bitmap + 1 == 0
        if kind == DATA:
            fits = bitmap == 1 << rank
        elif kind == PARTIAL:
            ordered = element == F32 or element >= 4
            fits = bitmap != 0 and (not ordered or bitmap.bit_count() == 1 or prefix)
        else:
            # Other types have a tag there, which the card does not check.
            fits = bitmap == 0 or not control
        check(not fits, "BITMAP")
        check(ip_bytes != IP_HEADERS_BYTES + 64 * units + TAG_BYTES * (kind == PARTIAL), "PAYLOAD_LENGTH")
        if control:
            raise Passes
        check(kind in (PARTIAL, NOT_HERE), "NOT_FOR_SWITCH")
    except Dropped as dropped:
        return PKG["ACT_DISCARD"], dropped.args[0], {"bytes": len(frame)}
    except Passes:
        return PKG["ACT_PASS_THROUGH"], None, {"bytes": len(frame), "port": port}
    act = {DATA: "DATA", RESULT: "PS_RESULT" if rank == PS else "WORKER_RESULT", REMIND: "REMIND", NACK: "NACK", PROBE: "PROBE"}[kind]
    congested = elements and of("tos") & 3 == 3
    return PKG["ACT_" + act], None, {
        "bytes": len(frame), "port": port, "mac": of("source"), "ip": of("from_ip"), "udp_port": of("from_port"),
        "flags": flags | MARKED * congested, "priority": of("priority"), "element": element, "job": of("job"),
        "epoch": of("epoch"), "fragment": of("fragment"), "rank": rank, "units": units,
        "of_shard": (of("fragment") & SHARDS - 1) == shard,
    }  # fmt: skip


def right(rng):
    """A correct frame: accepted, or passed through if its type is a control type."""
    kind = rng.choice((DATA, DATA, DATA, RESULT, RESULT, REMIND, NACK, PROBE, PARTIAL, NOT_HERE, JOIN, LEAVE))
    elements = kind in (DATA, RESULT, PARTIAL)
    rank = {REMIND: PS, PARTIAL: SWITCH, NOT_HERE: SWITCH}.get(kind, rng.randrange(64))
    if kind == RESULT:
        rank = rng.choice((rank, PS, SWITCH))
    bitmap = {DATA: None, PARTIAL: rng.choice((1 << rng.randrange(64), 3, rng.getrandbits(64) | 1)), JOIN: 0, LEAVE: 0}
    units = rng.choice((1, 2, 16)) if elements else 2 if kind in (JOIN, LEAVE) else 0
    return Frame(
        kind=kind,
        flags=rng.choice((0, RESEND, MARKED, OVERFLOW, COLLISION)) if kind == DATA else 0,
        priority=rng.getrandbits(8),
        element=rng.randrange(1, 8) if elements else 0,
        job=rng.getrandbits(16),
        epoch=rng.getrandbits(16),
        fragment=rng.getrandbits(32),
        rank=rank,
        bitmap=bitmap.get(kind, rng.choice((0, rng.getrandbits(64)))),
        units=units,
        payload=bytes(64 * units + TAG_BYTES * (kind == PARTIAL)),
        source=rng.getrandbits(48),
        tos=rng.getrandbits(8),
        identification=rng.getrandbits(16),
        fragmenting=rng.choice((0, 0x4000, 0x8000)),
        ttl=rng.getrandbits(8),
        from_ip=rng.getrandbits(32),
        from_port=rng.getrandbits(16),
        to_port=BASE_PORT + rng.randrange(SHARDS),
    )


# Values at the limits of the checks.
EDGES = {
    "destination": (OWN_MAC ^ 1, OWN_MAC ^ 1 << 47, 0x01005E540001, 0xFFFFFFFFFFFF),
    "source": (OWN_MAC, OWN_MAC ^ 1 << 40),
    "ethertype": (0x0806, 0x8100, 0x88A8, 0x86DD, 0x0801, 0x88B5),
    "version_ihl": (0x44, 0x46, 0x55, 0x65, 0x35, 0x4F),
    "ip_bytes": (0, 27, 28, 29, 49, 50, 51, 113, 114, 115, 121, 122, 123, 65535),
    "fragmenting": (0x2000, 1, 0x1FFF, 0x8000, 0x6000),
    "protocol": (1, 6, 16, 18),
    "to_ip": (OWN_IP ^ 1, OWN_IP ^ 1 << 31, 0xEF540001),
    "from_ip": (OWN_IP, OWN_IP ^ 1),
    "to_port": (BASE_PORT - 1, BASE_PORT + SHARDS, 0, 65535, 0xBEE0),
    "udp_bytes": (0, 8, 29, 30, 94, 95, 102),
    "version": (0, 1, 3, 15),
    "kind": tuple(range(16)),
    "flags": tuple(1 << i for i in range(8)),
    "element": (*range(10), 0x10, 0x81, 0xFF),
    "rank": (0, 63, 64, 65, 253, 254, 255),
    "units": (0, 1, 2, 127, 128, 129, 255),
    "bitmap": (0, 1, 2, 3, 5, 0xFF, 1 << 63, (1 << 64) - 1, (1 << 64) - 2),
    "tos": (0, 1, 2, 3),
}


def drawn(rng):
    frame = right(rng)
    kind = rng.random()
    if kind > 0.2:
        for field in rng.sample(sorted(EDGES), rng.choice((1, 1, 1, 2, 3))):
            frame = dataclasses.replace(frame, **{field: rng.choice(EDGES[field])})
    if kind > 0.95:
        return frame.pack()[: rng.choice((1, 13, 14, 15, 33, 34, 35, 41, 42, 63, 64))]
    frame = frame.pack()
    # Padding is allowed.
    return frame + bytes(rng.choice((0, 0, 0, 1, 46)))


class Ends:
    def __init__(self, dut, rng, pace, frames):
        self.dut, self.rng, self.pace = dut, rng, pace
        self.frames, self.under_way, self.seen = frames, collections.deque(), collections.Counter()

    def drive(self):
        self.offered = bool(self.frames) and self.rng.random() < self.pace
        put(self.dut.in_valid, int(self.offered))
        if self.offered:
            frame = self.frames.pop()
            port = self.rng.getrandbits(16)
            self.under_way.append((frame, port))
            first = frame[:64] + self.rng.randbytes(max(64 - len(frame), 0))
            put(self.dut.in_data, int.from_bytes(first, "little"))
            put(self.dut.in_bytes, len(frame))
            put(self.dut.in_port, port)

    def sample(self, cycle):
        dut = self.dut
        if not get(dut.out_valid):
            return
        frame, port = self.under_way.popleft()
        act, reason, fields = expected(frame, port)
        where = f"frame {frame[:64].hex()} of {len(frame)} bytes"
        if reason is not None:
            assert get(dut.out_reason) == reason, f"{where}: reason {get(dut.out_reason)}, not {reason}"
        assert get(dut.out_act) == act, f"{where}: act {get(dut.out_act)}, not {act}"
        for name, value in fields.items():
            got = get(getattr(dut, f"out_{name}"))
            assert got == value, f"{where}: {name} is {got:x}, not {value:x}"
        self.seen[reason if reason is not None else f"act {act}"] += 1


async def run(dut, rng, pace, frames):
    """Number of frames by reason or act."""
    clock = Clock(dut)
    for name, value in (("enable", 1), ("own_mac", OWN_MAC), ("own_ip", OWN_IP), ("base_port", BASE_PORT), ("shards", SHARDS)):
        put(getattr(dut, name), value)
    await clock.reset(dut.in_valid, dut.in_data, dut.in_bytes, dut.in_port)
    ends = clock.attach(Ends(dut, rng, pace, frames))
    await clock.until(lambda: not ends.frames and not ends.under_way, 20000, "all frames")
    return ends.seen


@cocotb.test()
async def layout_is_the_protocols(dut):
    """The layout in tally_pkg, used by RTL and benches, agrees with the example in PROTOCOL.md."""
    assert EXAMPLE.pack()[:64] == EXAMPLE_BYTES


@cocotb.test()
async def says_what_software_says(dut):
    rng = dice("parser")
    seen = collections.Counter()
    for pace in PACES:
        seen += await run(dut, rng, pace, [drawn(rng) for _ in range(2500)])
    last = PKG["DROP_NOT_FOR_SWITCH"]
    reasons = {v for k, v in PKG.items() if k.startswith("DROP_") and v <= last} | {PKG["DROP_SPOOFED_SWITCH"]}
    assert reasons <= set(seen), f"never seen: {reasons - set(seen)}"


@cocotb.test()
async def knows_one_rank_from_two(dut):
    """An ordered PARTIAL has one rank, or ranks 0 to k: all sets of one or two of 64 ranks."""
    rng, frames = dice("parser ranks"), []
    for i in range(64):
        for j in range(i + 1):
            frames.append(Frame(kind=PARTIAL, flags=0, priority=0, element=F32, job=1, epoch=1, fragment=0, rank=SWITCH,
                                bitmap=1 << i | 1 << j, units=1, payload=bytes(64 + TAG_BYTES), source=2, from_ip=3, from_port=4, to_port=BASE_PORT).pack())  # fmt: skip
    seen = await run(dut, rng, 1.0, frames)
    # The pair 0 and 1 is ranks 0 to k.
    assert seen == {PKG["DROP_NOT_FOR_SWITCH"]: 65, PKG["DROP_BITMAP"]: 64 * 63 // 2 - 1}


@cocotb.test()
async def passes_all_when_off(dut):
    rng, clock = dice("parser off"), Clock(dut)
    put(dut.enable, 0)
    await clock.reset(dut.in_valid, dut.in_data, dut.in_bytes, dut.in_port)
    for _ in range(200):
        frame = drawn(rng)
        put(dut.in_valid, 1)
        put(dut.in_data, int.from_bytes(frame[:64].ljust(64, b"\0"), "little"))
        put(dut.in_bytes, len(frame))
        await clock.step()
        put(dut.in_valid, 0)
        for _ in range(2):
            await clock.step()
        assert get(dut.out_valid) and get(dut.out_act) == PKG["ACT_PASS_THROUGH"]
