#!/usr/bin/python3
"""Hold netreduce.lua to docs/NETREDUCE.md, by way of tshark.

    test_netreduce.py            packets made here
    test_netreduce.py CAPTURE    a capture of the real thing: there must be packets of rings, none
                                 malformed, and some that the switch summed

Exit status 0 only if tshark ran the dissector and every check held. As tally.lua's test.py.
"""

import argparse
import os
import pathlib
import random
import shutil
import struct
import sys
import tempfile
import time

from test import Checks, checksum, tshark, tshark_with_lua, write_pcap

SCRIPT = pathlib.Path(__file__).resolve().parent / "netreduce.lua"
I32, F32, F16, BF16 = range(4)
NAMES = ["i32", "f32", "f16", "bf16"]
# Opcodes of RC: SEND, WRITE, and SEND with immediate data.
SEND = {"first": 0, "middle": 1, "last": 2, "only": 4}
WRITE = {"first": 6, "middle": 7, "last": 8, "only": 10}
IMMEDIATE = {"first": 0, "middle": 1, "last": 3, "only": 5}
RETH, IMMEDIATE_DATA, ACKNOWLEDGE = struct.pack(">QII", 0x1000, 7, 4096), struct.pack(">I", 9), 17
TAG = 0x0123456789ABCDEF
FIELDS = ["kind", "leaf", "mtu", "icrc", "magic", "element", "rank", "flags", "flags.summed", "ring", "epoch", "message", "bytes", "tag", "packet", "packets",
          "first", "copy", "i32", "f32", "f16", "bf16", "malformed"]  # fmt: skip
ROW = ["frame.number", "_ws.col.Info", "_ws.lua.error", "_ws.malformed"] + [f"netreduce.{name}" for name in FIELDS]


def packet(opcode, psn, payload, *, qp=0x12, source=1, destination=2):
    """Ethernet to ICRC. No reader checks the ICRC here, so it is 0."""
    bth = struct.pack(">BBHII", opcode, 0x40, 0xFFFF, qp, psn & 0xFFFFFF)
    extended = RETH if opcode in (6, 10) else IMMEDIATE_DATA if opcode in (3, 5) else b""
    return datagram(4791, bth + extended + payload + bytes(4), source, destination)


def partial(payload, *, kind=1, leaf=1, element=I32, zero=0, number=3, count=0, mtu=256, which=0):
    """A partial sum or a total, whose ICRC is 0x04030201."""
    header = struct.pack(">IBBBBIIIIHHQ", 0x544E5031, zero, kind, leaf, element, 7, 5, number, count, mtu, which, TAG)
    return datagram(4792, header + payload + bytes((1, 2, 3, 4)), 9, 8)


def datagram(port, udp_payload, source, destination):
    udp = struct.pack(">HHHH", 49152, port, 8 + len(udp_payload), 0)
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 28 << 2, 28 + len(udp_payload), 1, 0x4000, 64, 17, 0,
                     bytes([10, 84, 0, source]), bytes([10, 84, 0, destination]))  # fmt: skip
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    return bytes.fromhex("0200000000020200000000010800") + ip + udp + udp_payload


def header(*, magic=0x544E5231, element=I32, rank=1, flags=0, zero=0, ring=7, epoch=5, message=0, count=0, tag=TAG):
    return struct.pack(">IBBBBIIIIQ", magic, element, rank, flags, zero, ring, epoch, message, count, tag)


def message(psn, elements, *, mtu=256, opcodes=SEND, flags=0, way={}, **fields):
    """The packets of one message"""
    octets = header(count=len(elements), flags=flags, **fields) + elements
    parts = [octets[at : at + mtu] for at in range(0, len(octets), mtu)]
    kinds = ["only"] if len(parts) == 1 else ["first"] + ["middle"] * (len(parts) - 2) + ["last"]
    return [packet(opcodes[kind], psn + i, part, **way) for i, (kind, part) in enumerate(zip(kinds, parts))]


def i32s(first, count):
    return struct.pack(f"<{count}i", *range(first, first + count))


def good():
    """[(info column without the ring's prefix, packet, {field: values})]"""
    frames = []

    def add(sent, number, total, element, *, marks="", psn, qp=0x12, rank=1, **want):
        for i, octets in enumerate(sent):
            mark = marks if i == 0 or "copy" in marks else ""
            info = f"ring 7 epoch 5 message {number} rank {rank} packet {i + 1} of {total} {element}{mark} QP=0x{qp:06x} PSN={(psn + i) % 2**24}"
            frames.append((info, octets, want if i == 0 else {}))

    whole = i32s(-100, 200)  # 32 + 800 bytes: packets of 256, 256, 256 and 64
    add(message(10, whole), 0, 4, "i32", psn=10, i32=list(range(-100, -84)), bytes=[800], tag=[TAG], first=[])
    # As the switch releases it: the same PSNs, so that they count as copies.
    add(message(10, whole, flags=1), 0, 4, "i32", psn=10, marks=" SUMMED copy", **{"flags.summed": [1]})
    frames[-3:] = [(info.replace(" SUMMED", ""), *rest) for info, *rest in frames[-3:]]
    # Over the wrap of the PSN, and another connection in the same PSNs.
    add(message(2**24 - 2, whole, message=1, opcodes=WRITE), 1, 4, "i32", psn=2**24 - 2)
    other = {"source": 2, "destination": 3, "qp": 0x99}
    add(message(2**24 - 2, whole, message=3, rank=2, way=other), 3, 4, "i32", psn=2**24 - 2, qp=0x99, rank=2)
    add(message(2, i32s(0, 1), message=2), 2, 1, "i32", psn=2, i32=[0], packets=[1])
    add(message(3, struct.pack("<2f", 1.5, -0.25), message=3, element=F32, opcodes=IMMEDIATE), 3, 1, "f32", psn=3, f32=[1.5, -0.25])
    add(message(4, struct.pack("<2e", 1.5, -0.25), message=4, element=F16, opcodes=WRITE), 4, 1, "f16", psn=4, f16=[1.5, -0.25])
    add(message(5, bytes.fromhex("c03f80be"), message=5, element=BF16), 5, 1, "bf16", psn=5, bf16=[1.5, -0.25])
    add(message(6, i32s(0, 200), message=6, opcodes=IMMEDIATE), 6, 4, "i32", psn=6)
    # Between switches: the first, a middle and the last packet of a message, and the only one.
    of = {"count": 800, "mtu": 256}
    want = {"kind": [1], "leaf": [1], "mtu": [256], "packet": [0], "tag": [TAG], "icrc": [0x04030201]}
    frames.append(("PARTIAL ring 7 epoch 5 message 3 leaf 1 packet 1 i32", partial(i32s(0, 56), **of), want))
    frames.append(("TOTAL ring 7 epoch 5 message 3 leaf 0 packet 3 i32", partial(i32s(5, 64), kind=2, leaf=0, which=2, **of), {"kind": [2]}))
    frames.append(("PARTIAL ring 7 epoch 5 message 3 leaf 1 packet 4 i32", partial(i32s(0, 16), which=3, **of), {"i32": list(range(16))}))
    only = partial(struct.pack("<2e", 1.5, -0.25), element=F16, count=4, mtu=36)
    frames.append(("PARTIAL ring 7 epoch 5 message 3 leaf 1 packet 1 f16", only, {"f16": [1.5, -0.25]}))
    return frames


# What is of no ring: it stays RoCE.
ORDINARY = [
    packet(SEND["only"], 1, header(magic=0x544E5232) + bytes(4), qp=0x55),
    packet(SEND["only"], 1, bytes(64), qp=0x55),
    packet(SEND["only"], 1, b"", qp=0x55),
    packet(SEND["only"], 1, header()[:31], qp=0x55),
    packet(SEND["middle"], 11, bytes(256), qp=0x55),
    packet(SEND["middle"], 14, bytes(256)),
    packet(ACKNOWLEDGE, 10, bytes(4)),
    datagram(4792, bytes(64), 1, 2),
]

BAD = [
    ("element 4 is not in use", header(element=4, count=4) + bytes(4), "only"),
    ("rank 64 is above 63", header(rank=64, count=4) + bytes(4), "only"),
    ("flags 0x02 are not in use", header(flags=2, count=4) + bytes(4), "only"),
    ("byte 7 is not 0", header(zero=1, count=4) + bytes(4), "only"),
    ("message numbers do not wrap", header(message=2**32 - 1, count=4) + bytes(4), "only"),
    ("2 bytes of elements", header(count=2) + bytes(2), "only"),
    ("0 bytes of elements", header(count=0), "only"),
    ("36 bytes of header and elements in a packet of 40", header(count=4) + bytes(8), "only"),
    ("36 bytes of header and elements need no packet behind this one", header(count=4) + bytes(4), "first"),
]


BAD_PARTIAL = [
    ("byte 4 is not 0", {"zero": 1}),
    ("kind 3 is not in use", {"kind": 3}),
    ("leaf 64 is above 63", {"leaf": 64}),
    ("element 4 is not in use", {"element": 4}),
    ("message numbers do not wrap", {"number": 2**32 - 1}),
    ("6 bytes of elements", {"count": 6}),
    ("packet 1 of a message of 36 bytes", {"which": 1}),
    ("4 bytes of elements, not 8", {"count": 8, "mtu": 40}),
]


def check_good(start, folder):
    checks, path, frames = Checks(), folder / "good.pcap", good()
    write_pcap(path, [octets for _, octets, _ in frames])
    for row, (info, _, want) in zip(tshark(start, path, ROW), frames, strict=True):
        checks.that(row["_ws.col.Info"] == [info], f"{row['_ws.col.Info']}, expected {info!r}")
        checks.that(not row["netreduce.malformed"] and not row["_ws.malformed"], f"{info}: {row['netreduce.malformed']}")
        checks.that(not row["_ws.lua.error"], f"{info}: {row['_ws.lua.error']}")
        for name, values in want.items():
            shown = [float({"True": "1", "False": "0"}.get(v) or (int(v, 16) if "x" in v else v)) for v in row[f"netreduce.{name}"]]
            checks.that(shown == [float(v) for v in values], f"{info}: {name} is {shown}, expected {values}")
    # A packet behind the first one names its frame.
    checks.that([r["netreduce.first"] for r in tshark(start, path, ROW)][1:4] == [["1"]] * 3, "frames of the first packet")
    found = tshark(start, path, ["frame.number"], "-2", "-Y", "netreduce.ring == 7 && netreduce.message == 1")
    checks.that(len(found) == 4, f"a filter in two passes finds {len(found)}")
    return checks.verdict("packets of rings")


def check_ordinary(start, folder):
    checks, path = Checks(), folder / "ordinary.pcap"
    first = message(10, i32s(0, 200))
    write_pcap(path, first + ORDINARY)
    for row, octets in zip(tshark(start, path, ROW)[len(first) :], ORDINARY, strict=True):
        checks.that(not row["netreduce.ring"] and not row["_ws.lua.error"], f"{octets[42:].hex()}: {row}")
    return checks.verdict("ordinary RoCE")


def check_bad(start, folder):
    checks, path = Checks(), folder / "bad.pcap"
    write_pcap(path, [packet(SEND[kind], 100 + i, payload) for i, (_, payload, kind) in enumerate(BAD)])
    for row, (complaint, _, _) in zip(tshark(start, path, ROW), BAD, strict=True):
        checks.that(complaint in row["netreduce.malformed"], f"{row['netreduce.malformed']}, expected {complaint!r}")
        checks.that(not row["_ws.lua.error"], f"{complaint}: {row['_ws.lua.error']}")
    write_pcap(path, [partial(bytes(4), **{"count": 4, "mtu": 36} | fields) for _, fields in BAD_PARTIAL])
    for row, (complaint, _) in zip(tshark(start, path, ROW), BAD_PARTIAL, strict=True):
        checks.that(complaint in row["netreduce.malformed"], f"{row['netreduce.malformed']}, expected {complaint!r}")
        checks.that(not row["_ws.lua.error"], f"{complaint}: {row['_ws.lua.error']}")
    return checks.verdict("malformed packets")


def check_damage(start, folder):
    """Damaged and cut off: the dissector never stumbles."""
    seed = int(os.environ.get("SEED", "0"), 0) or time.time_ns() & 0xFFFFFFFF
    print(f"seed {seed} (SEED=... repeats it)")
    rng, checks, path, damaged = random.Random(seed), Checks(), folder / "fuzz.pcap", []
    for _ in range(3000):
        octets = bytearray(rng.choice(good())[1])
        for _ in range(rng.choice((0, 1, 2, 8))):
            octets[rng.randrange(42, min(len(octets), 110))] = rng.getrandbits(8)
        damaged.append(bytes(octets))
    for snaplen in (65535, 60, 86, 87, 100):
        write_pcap(path, damaged, snaplen)
        rows = tshark(start, path, ROW)
        checks.that(len(rows) == len(damaged), f"{len(rows)} packets of {len(damaged)}")
        for row in rows:
            checks.that(not row["_ws.lua.error"], f"cut to {snaplen}: packet {row['frame.number']}: {row['_ws.lua.error']}")
        if snaplen == 65535:
            shown = sum(bool(row["netreduce.ring"]) for row in rows)
            checks.that(0 < shown < len(rows), f"{shown} of {len(rows)} are shown")
    return checks.verdict("random damage")


def check_capture(start, path):
    checks, rings, summed, behind = Checks(), 0, 0, 0
    for row in tshark(start, path, ROW, "-Y", "udp.dstport == 4791"):
        checks.that(not row["_ws.lua.error"] and not row["netreduce.malformed"], f"packet {row['frame.number']}: {row}")
        rings += bool(row["netreduce.ring"])
        summed += row["netreduce.flags.summed"] in (["1"], ["True"])
        behind += bool(row["netreduce.first"])
    print(f"{rings} packets of rings: {summed} first ones with a sum, {behind} behind a first one")
    checks.that(rings and summed and behind, "nothing of a ring, or no sum")
    return checks.verdict(path)


def main():
    parser = argparse.ArgumentParser(description="Hold netreduce.lua to docs/NETREDUCE.md, by way of tshark.")
    parser.add_argument("capture", nargs="?", type=pathlib.Path)
    args = parser.parse_args()
    if not shutil.which("tshark"):
        sys.exit("test_netreduce.py: tshark is not installed; nothing was tested")
    with tempfile.TemporaryDirectory(prefix="tally-wireshark-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)  # tshark may run as another user
        start = tshark_with_lua(folder, SCRIPT, "netreduce.ring")
        if args.capture:
            capture = pathlib.Path(shutil.copyfile(args.capture, folder / args.capture.name))
            capture.chmod(0o644)
            return check_capture(start, capture)
        return max(check(start, folder) for check in (check_good, check_ordinary, check_bad, check_damage))


if __name__ == "__main__":
    sys.exit(main())
