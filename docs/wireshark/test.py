#!/usr/bin/python3
"""Hold tally.lua to docs/PROTOCOL.md, by way of tshark.

    test.py                    frames made here: one of every type and every way to be malformed
    test.py CAPTURE [-p PORT] [-s SHARDS]
                               a capture of the real thing (pcap, pcapng, whole frames): there must
                               be Tally frames in it, each shown as Python's struct reads it, and
                               none may be malformed
    test.py CAPTURE --malformed
                               the same, for a capture that has malformed frames on purpose

Exit status 0 only if tshark ran the dissector and every check held. Needs tshark
(`apt-get install tshark`). As root: where Wireshark runs no Lua for the superuser, tshark runs as
uid 65534, on a copy of the capture.
"""

import argparse
import collections
import contextlib
import io
import math
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

SCRIPT = pathlib.Path(__file__).resolve().parent / "tally.lua"
SPECIFICATION = SCRIPT.parents[1] / "PROTOCOL.md"
PORT, SHARDS = 31249, 16
FAILURES_SHOWN_MAX = 5
SEPARATOR, LIST = "\x1f", "\x1e"
TYPES = "? JOIN ACCEPT REFUSE LEAVE DATA RESULT PARTIAL REMIND NOT_HERE NACK PROBE".split()
JOIN, ACCEPT, REFUSE, LEAVE, DATA, RESULT, PARTIAL, REMIND, NOT_HERE, NACK, PROBE = range(1, 12)
# Types with a tag in the header. PARTIAL has its tag behind the payload.
TAGGED = (RESULT, REMIND, NOT_HERE, NACK, PROBE)
TAG = 0x0123456789ABCDEF
RESEND, OVERFLOW, FROM_PS, FINISHED, MARKED, COLLISION = 1, 2, 4, 8, 16, 32
NONE, I32, F32, SCALE, F16, BF16, I16, I8 = range(8)
SWITCH, PS = 254, 255
CONTROL_FIELDS = {
    JOIN: [(0, "Q", "instance"), (8, "Q", "challenge"), (16, "B", "role"), (17, "B", "workers"), (18, "B", "job_units"),
           (19, "B", "running"), (20, "H", "window"), (24, "32s", "shape"), (56, "I", "sent"), (60, "B", "has_sent"),
           (61, "B", "ready"), (62, "H", "awaiting"), (64, "Q", "salt"), (72, "H", "first_rank"), (74, "H", "job_workers"),
           (76, "H", "node_ranks"), (78, "H", "behind_from"), (80, "H", "behind_to"), (82, "B", "ps_missing"),
           (84, "H", "slowest_in_tree"), (86, "B", "part"), (87, "B", "parts")],
    ACCEPT: [(0, "Q", "instance"), (8, "Q", "challenge"), (16, "B", "state"), (17, "B", "workers"),
             (18, "B", "job_units"), (19, "B", "shards"), (20, "H", "base_port"), (22, "H", "window"),
             (24, "Q", "joined"), (32, "Q", "left"), (40, "B", "ps_joined"), (41, "B", "slowest"),
             (42, "H", "awaiting"), (44, "4s", "group"),
             (48, "I", "least"), (52, "H", "slowest_in_tree"), (54, "B", "part"), (55, "B", "parts"),
             (56, "Q", "behind"), (64, "6s", "switch_mac"), (72, "Q", "salt"),
             (80, "16s", "wrapped"), (96, "B", "has_wrapped"), (97, "B", "tree"), (98, "B", "local_rank"),
             (99, "B", "node_hosts"), (100, "H", "first_rank"), (102, "H", "job_workers"), (104, "H", "behind_from"),
             (106, "H", "behind_to")],
    REFUSE: [(0, "Q", "instance"), (8, "Q", "challenge"), (16, "B", "reason"), (17, "B", "about"), (18, "B", "tree"),
             (20, "I", "found"), (24, "I", "allowed"), (28, "H", "behind_from"), (30, "H", "behind_to"), (32, "Q", "behind"),
             (40, "H", "about_from"), (42, "H", "about_to"), (48, "64s", "switch_name")],
    LEAVE: [(0, "Q", "instance"), (8, "Q", "challenge"), (16, "B", "code"), (17, "B", "leave_role"), (18, "B", "tree"),
            (20, "I", "failed_fragment"), (24, "Q", "behind"), (32, "Q", "salt"), (40, "H", "behind_from"),
            (42, "H", "behind_to"), (44, "H", "first_rank")],
}  # fmt: skip
# LEAVE of a switch below which the job failed: byte 19 says so.
BELOW_AT = 19
LEAVE_BELOW = [(0, "Q", "instance"), (8, "Q", "challenge"), (16, "B", "code"), (17, "B", "leave_role"), (18, "B", "tree"),
               (19, "B", "below"), (20, "I", "allowed"), (24, "I", "found"), (28, "H", "behind_from"), (30, "H", "behind_to"),
               (32, "Q", "salt"), (40, "H", "about_from"), (42, "H", "about_to"), (48, "64s", "switch_name")]  # fmt: skip


def control_fields(kind, payload):
    return LEAVE_BELOW if kind == LEAVE and payload[BELOW_AT] else CONTROL_FIELDS[kind]


SHOWN = (
    ["version", "type", "flags", "flags.resend", "flags.overflow", "flags.from_ps", "flags.finished", "flags.marked",
     "flags.collision", "priority", "element", "job", "epoch", "fragment", "rank", "units", "bitmap", "contributions", "tag", "i32", "f32", "scale", "f16", "bf16", "i16", "i8", "mac"]
    + sorted({name for fields in [*CONTROL_FIELDS.values(), LEAVE_BELOW] for _, _, name in fields})
)  # fmt: skip


# --- tshark ------------------------------------------------------------------------------


def tshark_with_lua(folder, dissector, field):
    """The beginning of a command line on which tshark runs a dissector that has this field."""
    script = pathlib.Path(shutil.copy(dissector, folder))  # Uid 65534 may not reach the checkout
    script.chmod(0o644)
    as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/nonexistent"]
    empty = folder / "empty.pcap"
    write_pcap(empty, [])
    for start in [[], as_user] if os.geteuid() == 0 else [[]]:
        command = start + ["tshark", "-X", f"lua_script:{script}", "-r", str(empty), "-Y", field]
        tried = subprocess.run(command, capture_output=True, text=True)
        if tried.returncode == 0:  # it knows the field
            return start + ["tshark", "-n", "-X", f"lua_script:{script}"]
    sys.exit(f"test.py: tshark does not load {dissector}:\n{tried.stderr}")


def tshark(start, capture, fields, *options):
    """[{field: [values]}] of each frame"""
    command = start + ["-r", str(capture), "-T", "fields"]
    command += ["-E", f"separator={SEPARATOR}", "-E", f"aggregator={LIST}", "-E", "occurrence=a", *options]
    for field in fields:
        command += ["-e", field]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0 or "Lua" in ran.stderr:
        sys.exit(f"test.py: tshark failed:\n{ran.stderr}")
    rows = [line.split(SEPARATOR) for line in ran.stdout.split("\n")[:-1]]
    return [{f: v.split(LIST) if v else [] for f, v in zip(fields, row)} for row in rows]


# --- what must be shown ------------------------------------------------------------------


def expected_fields(udp_payload):
    """Expected {field without "tally.": values} of a well-formed frame's header and payload."""
    version_type, flags, priority, element, job, epoch, fragment, rank, units, bitmap = struct.unpack_from(
        ">BBBBHHIBBQ", udp_payload
    )
    kind, payload = version_type & 15, udp_payload[22:]
    want = {name: [] for name in SHOWN}
    want.update({
        "version": [version_type >> 4], "type": [kind], "flags": [flags], "priority": [priority],
        "flags.resend": [flags & 1], "flags.overflow": [flags >> 1 & 1], "flags.from_ps": [flags >> 2 & 1],
        "flags.finished": [flags >> 3 & 1], "flags.marked": [flags >> 4 & 1], "flags.collision": [flags >> 5 & 1], "element": [element & 15], "job": [job], "epoch": [epoch],
        "fragment": [fragment], "rank": [rank], "units": [units],
    })  # fmt: skip
    if kind in TAGGED:
        want["tag"] = [bitmap]
    else:
        want["bitmap"], want["contributions"] = [bitmap], [bin(bitmap).count("1")]
    if kind == PARTIAL:
        want["tag"] = list(struct.unpack(">Q", payload[-8:]))
    if kind in CONTROL_FIELDS:
        for at, code, name in control_fields(kind, payload):
            want[name] = list(struct.unpack_from(">" + code, payload, at))
        want["mac"] = [payload[112:]]
    elif element == I32:
        want["i32"] = list(struct.unpack_from(">16i", payload))
    elif element == F32:
        want["f32"] = list(struct.unpack_from("<16f", payload))
    elif element == SCALE:
        want["scale"] = list(payload[:16])
    elif element == F16:
        want["f16"] = list(struct.unpack_from("<16e", payload))
    elif element == BF16:
        # The upper half of an f32.
        want["bf16"] = [struct.unpack("<f", bytes(2) + payload[2 * i : 2 * i + 2])[0] for i in range(16)]
    elif element == I16:
        want["i16"] = list(struct.unpack_from(">16h", payload))
    elif element == I8:
        want["i8"] = list(struct.unpack_from("16b", payload))
    return want


FLAGS = {
    DATA: RESEND | OVERFLOW | MARKED | COLLISION,
    RESULT: OVERFLOW | FROM_PS | MARKED | COLLISION,
    PARTIAL: RESEND | OVERFLOW | MARKED | COLLISION,
    NOT_HERE: FINISHED,
}
WORKERS, MEMBERS = set(range(64)), set(range(64)) | {PS}
RANKS = {JOIN: MEMBERS, ACCEPT: MEMBERS, REFUSE: MEMBERS, LEAVE: MEMBERS, DATA: WORKERS, RESULT: MEMBERS | {SWITCH},
         PARTIAL: {SWITCH}, REMIND: {PS}, NOT_HERE: {SWITCH}, NACK: WORKERS, PROBE: WORKERS}  # fmt: skip
LIMITS = {"role": (0, 2), "running": (0, 1), "state": (0, 2), "reason": (1, 18), "code": (0, 4), "has_sent": (0, 1),
          "has_wrapped": (0, 1), "ready": (0, 1), "ps_missing": (0, 1), "below": (1, 18)}  # fmt: skip


def bytes_of(udp_payload):
    """Bytes that a datagram with this header has."""
    return 22 + 64 * udp_payload[13] + (8 if udp_payload[0] & 15 == PARTIAL else 0)


def datagrams_of(udp_payload):
    """Datagrams of a superframe: all of one length, the last maybe shorter. Else the payload."""
    if len(udp_payload) < 22:
        return [udp_payload]
    one = bytes_of(udp_payload)
    parts = [udp_payload[at : at + one] for at in range(0, len(udp_payload), one)]
    whole = all(len(p) >= 22 and p[0] >> 4 == 2 and p[0] & 15 in RANKS and len(p) == bytes_of(p) for p in parts)
    return parts if whole else [udp_payload]


def well_formed(udp_payload):
    """Sections 1, 2 and 4, for a UDP payload whose IPv4 and UDP lengths agree."""
    return all(map(datagram_is_well_formed, datagrams_of(udp_payload)))


def datagram_is_well_formed(udp_payload):
    if len(udp_payload) < 22:
        return False
    version_type, flags, _, element, _, _, _, rank, units, bitmap = struct.unpack_from(">BBBBHHIBBQ", udp_payload)
    kind, payload = version_type & 15, udp_payload[22:]
    if version_type >> 4 != 2 or kind not in RANKS or rank not in RANKS[kind] or flags & ~FLAGS.get(kind, 0):
        return False
    if len(udp_payload) != bytes_of(udp_payload) or units > 128:
        return False
    prefix = bitmap != 0 and bitmap & (bitmap + 1) == 0
    if kind in (DATA, RESULT, PARTIAL):
        if units == 0 or not I32 <= element <= I8:
            return False
        if kind == RESULT:
            return True
        if kind == PARTIAL:
            return bitmap != 0 and (element in (I32, SCALE) or prefix or bitmap & (bitmap - 1) == 0)
        return bitmap == 1 << rank
    if element != NONE:
        return False
    if kind not in CONTROL_FIELDS:
        return units == 0
    if bitmap != 0:
        return False
    if units != 2:
        return False
    values = {name: struct.unpack_from(">" + code, payload, at)[0] for at, code, name in control_fields(kind, payload)}
    if values["instance"] == 0 and kind != REFUSE:
        return False
    return all(low <= values[name] <= high for name, (low, high) in LIMITS.items() if name in values)


def same(name, text, value):
    """Whether tshark's `text` says `value`."""
    if name == "group":
        return text == ".".join(str(b) for b in value)
    if name == "switch_name":
        return text == "".join(chr(b) if 32 <= b < 127 else f"\\x{b:02x}" for b in value.split(b"\0")[0])
    if isinstance(value, bytes):
        return bytes.fromhex(text.replace(":", "")) == value
    if isinstance(value, float):
        shown = float(text)
        if math.isnan(value) or math.isinf(value):
            return text.lower().lstrip("-") == f"{value}".lstrip("-") and (math.isnan(value) or shown == value)
        # tshark prints six digits or more
        return abs(shown - value) <= abs(value) * 1e-5 and math.copysign(1, shown) == math.copysign(1, value)
    return int({"True": "1", "False": "0"}.get(text, text), 0) == value


class Checks:
    def __init__(self):
        self.made, self.failed = 0, 0

    def that(self, holds, text):
        self.made += 1
        if not holds:
            self.failed += 1
            if self.failed <= FAILURES_SHOWN_MAX:
                print(f"FAILED: {text}")

    def frame(self, number, row, udp_payload):
        datagrams = [expected_fields(datagram) for datagram in datagrams_of(udp_payload)]
        for name in SHOWN:
            values = [value for datagram in datagrams for value in datagram[name]]
            shown = row[f"tally.{name}"]
            if name == "switch_name":  # tshark shows nothing of an empty one
                values = [value for value in values if value[0]]
            holds = len(shown) == len(values) and all(same(name, t, v) for t, v in zip(shown, values))
            self.that(holds, f"frame {number}: tally.{name} is {shown}, expected {values}")

    def verdict(self, what):
        print(f"{what}: {self.made - self.failed} of {self.made} checks hold")
        return 1 if self.failed or not self.made else 0


ROW = ["frame.number", "frame.protocols", "udp.srcport", "udp.dstport", "udp.payload", "_ws.col.Info", "_ws.malformed",
       "_ws.lua.error", "_ws.expert.message", "tally.malformed"] + [f"tally.{n}" for n in SHOWN]  # fmt: skip


# --- a capture of the real thing ---------------------------------------------------------


def check_capture(start, path, port, shards, malformed_allowed):
    checks, kinds, malformed = Checks(), collections.Counter(), 0
    ports = range(port, port + shards)
    rows = tshark(start, path, ROW, "-o", f"tally.port:{port}", "-o", f"tally.shards:{shards}",
                  "-Y", f"udp.port >= {port} && udp.port < {port + shards} && !icmp")  # fmt: skip
    for row in rows:
        number = row["frame.number"][0]
        if not any(int(p) in ports for p in row["udp.srcport"] + row["udp.dstport"]):
            continue
        if not row["udp.payload"]:
            malformed += 1
            checks.that(malformed_allowed, f"frame {number}: an empty datagram")
            continue
        checks.that(row["frame.protocols"][0].endswith(":tally"), f"frame {number}: {row['frame.protocols']}")
        checks.that(not row["_ws.lua.error"], f"frame {number}: the dissector failed: {row['_ws.lua.error']}")
        if row["tally.malformed"]:
            malformed += 1
            checks.that(malformed_allowed, f"frame {number}: malformed: {row['tally.malformed']}")
            continue
        payload = bytes.fromhex("".join(row["udp.payload"]).replace(":", ""))
        checks.that(well_formed(payload), f"frame {number}: malformed, and the dissector does not say so")
        if not well_formed(payload):
            continue
        checks.frame(number, row, payload)
        kinds.update(TYPES[datagram[0] & 15] for datagram in datagrams_of(payload))
    kinds["malformed"] = malformed
    print(", ".join(f"{count} {kind}" for kind, count in kinds.most_common() if count) or "no Tally frame in this capture")
    return checks.verdict(path)


# --- frames made here --------------------------------------------------------------------


def checksum(header):
    total = sum(struct.unpack(">10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def frame(udp_payload, source=40000, destination=PORT, ip_extra=0, padding=0):
    """Ethernet to UDP. `ip_extra`: bytes after the UDP datagram that IPv4 counts."""
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 28 + len(udp_payload) + ip_extra, 1, 0, 64, 17, 0,
                     bytes([10, 84, 0, 2]), bytes([10, 84, 0, 1]))  # fmt: skip
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    udp = struct.pack(">HHHH", source, destination, 8 + len(udp_payload), 0)
    return bytes.fromhex("0200000000fe0200000000010800") + ip + udp + udp_payload + bytes(ip_extra + padding)


def tally(kind, *, version=2, flags=0, priority=9, element=NONE, job=7, epoch=3, fragment=0, rank=2, units=None,
          bitmap=0, tag=TAG, payload=b""):  # fmt: skip
    units = len(payload) // 64 if units is None else units
    if kind in TAGGED:
        bitmap = tag
    if kind == PARTIAL:
        payload += struct.pack(">Q", tag)
    return struct.pack(">BBBBHHIBBQ", version << 4 | kind, flags, priority, element, job, epoch, fragment, rank, units,
                       bitmap) + payload  # fmt: skip


def control(kind, **values):
    body = bytearray(112)
    for at, code, name in LEAVE_BELOW if "below" in values else CONTROL_FIELDS[kind]:
        struct.pack_into(">" + code, body, at, values.get(name, bytes(32) if "s" in code else 0))
    return bytes(body) + bytes(range(0xA0, 0xB0))


def write_pcap(path, frames, snaplen=65535):
    out = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, snaplen, 1)
    for i, octets in enumerate(frames):
        kept = octets[:snaplen]
        out += struct.pack("<IIII", 1_700_000_000, i, len(kept), len(octets)) + kept
    path.write_bytes(out)


ids = {"instance": 0x1122334455667788, "challenge": 0xFEDCBA9876543210}
i32s = struct.pack(">16i", *range(-3, 11), 2**31 - 1, -(2**31)) * 4
f32s = struct.pack("<16f", 1.5, -0.0, 3.4e38, 1e-45, float("inf"), float("-inf"), float("nan"), *range(1, 10)) * 16
scales = bytes(range(100, 164))
f16s = struct.pack("<16H", 0x3C01, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, *range(0x4000, 0x4008)) * 2
bf16s = struct.pack("<16H", 0x3F81, 0x8000, 0x0001, 0x807F, 0x7F7F, 0x7F80, 0xFF80, 0x7FC0, *range(0x4000, 0x4008)) * 2
i16s = struct.pack(">16h", *range(-3, 11), 2**15 - 1, -(2**15)) * 2

# (info column, frame's UDP payload, port on the switch's side, whether the switch sends it)
GOOD = [
    ("JOIN job 7 rank 2 of 8 workers, 16 units, window 512",
     tally(JOIN, epoch=0, payload=control(JOIN, **ids, workers=8, job_units=16, window=512, shape=bytes(range(32)))), 0, 0),
    ("JOIN job 7 rank 2 of 8 workers, 16 units, window 512",
     tally(JOIN, payload=control(JOIN, **ids, workers=8, job_units=16, window=512, running=1, sent=2**32 - 1, has_sent=1,
                                 awaiting=999)), 0, 0),
    ("JOIN job 7 PS", tally(JOIN, rank=PS, payload=control(JOIN, **ids, role=1)), 0, 0),
    ("JOIN job 7 PS part 3 of 4", tally(JOIN, rank=PS, payload=control(JOIN, **ids, role=1, part=3, parts=4)), 0, 0),
    ("JOIN job 7 rank 2 as switch of ranks 8-11 of 16 workers",
     tally(JOIN, payload=control(JOIN, **ids, role=2, ready=1, first_rank=8, job_workers=16, node_ranks=4, behind_from=9,
                                 behind_to=10, ps_missing=1, slowest_in_tree=10)), 0, 0),
    ("JOIN job 7 rank 2 (global rank 4095 of 4096) of 0 workers, 16 units, window 9",
     tally(JOIN, payload=control(JOIN, **ids, job_units=16, window=9, first_rank=4095, job_workers=4096)), 0, 0),
    ("ACCEPT job 7 rank 2 waiting epoch 3",
     tally(ACCEPT, payload=control(ACCEPT, **ids, state=0, workers=64, part=15, parts=16)), 0, 1),
    ("ACCEPT job 7 rank 2 running epoch 3",
     tally(ACCEPT, payload=control(ACCEPT, **ids, state=1, workers=64, job_units=16, shards=4, base_port=PORT, window=900,
                                   joined=2**64 - 1, left=1 << 63 | 5, ps_joined=1, group=bytes([239, 84, 0, 7]))), 0, 1),
    ("ACCEPT job 7 rank 2 running epoch 3",
     tally(ACCEPT, payload=control(ACCEPT, **ids, state=1, workers=64, least=2**32 - 1, behind=1 << 63 | 5, slowest=63,
                                   awaiting=1000)), 0, 1),
    ("ACCEPT job 7 rank 2 running epoch 3",
     tally(ACCEPT, payload=control(ACCEPT, **ids, state=1, workers=64, wrapped=bytes(range(16)), has_wrapped=1)), 0, 1),
    ("ACCEPT job 7 PS waiting epoch 3", tally(ACCEPT, rank=PS, payload=control(ACCEPT, **ids, state=0)), 0, 1),
    ("ACCEPT job 7 rank 2 ended epoch 3", tally(ACCEPT, payload=control(ACCEPT, **ids, state=2)), 0, 1),
    *[(f"REFUSE job 7 rank 2 {name}" + more, tally(REFUSE, epoch=0, payload=control(REFUSE, **ids, reason=reason, **v)), 0, 1)
      for reason, name, v, more in [
          (1, "CHALLENGE", {"about": 255}, ""), (2, "UNKNOWN_JOB", {"about": 255}, ""), (3, "BAD_MAC", {"about": 255}, ""),
          (4, "BAD_RANK", {"about": 255, "found": 9, "allowed": 8}, " (found 9, allowed 8)"),
          (5, "WORKERS", {"about": 0, "found": 4, "allowed": 8}, " about rank 0 (found 4, allowed 8)"),
          (6, "PAYLOAD", {"about": 1, "found": 16, "allowed": 8}, " about rank 1 (found 16, allowed 8)"),
          (7, "SHAPE", {"about": 5}, " about rank 5"), (8, "RANK_TAKEN", {"about": 2}, " about rank 2"),
          (9, "MEMBER_LOST", {"about": 6}, " about rank 6"),
          (10, "MEMBER_FAILED", {"about": 6, "found": 2, "allowed": 4711}, " about rank 6 (found 2, allowed 4711)"),
          (10, "MEMBER_FAILED", {"about": 6, "found": 4, "allowed": 4711, "behind": 1 << 63 | 5}, " about rank 6 (found 4, allowed 4711)"),
          (11, "STALE_EPOCH", {"about": 255}, ""),
          (12, "WINDOW", {"about": 255, "found": 4000, "allowed": 512}, " (found 4000, allowed 512)"),
          (13, "REMOVED", {"about": 255}, ""), (14, "DRAINING", {"about": 255}, ""),
          (15, "TENANT_JOBS", {"about": 255, "found": 5, "allowed": 4}, " (found 5, allowed 4)"),
          (16, "TENANT_WORKERS", {"about": 255, "found": 65, "allowed": 64}, " (found 65, allowed 64)"),
          (17, "PARENT", {"about": 255, "tree": 1, "switch_name": b"spine1"}, " at spine1"),
          (18, "PARTS", {"about": 255, "found": 2, "allowed": 4}, " (found 2, allowed 4)"),
          (9, "MEMBER_LOST", {"about": 255, "tree": 3, "about_from": 8, "about_to": 12, "switch_name": b"leaf3"},
           " about ranks 8-11 at leaf3"),
          (10, "MEMBER_FAILED", {"about": 255, "tree": 1, "found": 4, "about_from": 9, "about_to": 10, "behind_from": 3,
                                 "behind_to": 5, "switch_name": bytes(range(65, 91)) + bytes(range(97, 123)) + b"012345678901"},
           " about rank 9 at ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz012345678901 (found 4, allowed 0)")]],
    ("LEAVE job 7 rank 2 finished", tally(LEAVE, payload=control(LEAVE, **ids)), 0, 0),
    ("LEAVE job 7 rank 2 failed", tally(LEAVE, payload=control(LEAVE, **ids, code=1)), 0, 0),
    ("LEAVE job 7 rank 2 overflow in fragment 4711",
     tally(LEAVE, payload=control(LEAVE, **ids, code=2, failed_fragment=4711)), 0, 0),
    ("LEAVE job 7 rank 2 stalled in fragment 4711",
     tally(LEAVE, payload=control(LEAVE, **ids, code=4, failed_fragment=4711, behind=1 << 63 | 5)), 0, 0),
    ("LEAVE job 7 rank 2 stalled in fragment 0",
     tally(LEAVE, payload=control(LEAVE, **ids, code=4, tree=1, behind_from=70, behind_to=72, first_rank=66)), 0, 0),
    ("LEAVE job 7 rank 2 failed below: MEMBER_LOST about rank 9 at leaf3 (found 0, allowed 5000)",
     tally(LEAVE, payload=control(LEAVE, **ids, code=1, leave_role=2, tree=1, below=9, allowed=5000, about_from=9, about_to=10,
                                  behind_from=1, behind_to=2, switch_name=b"leaf3")), 0, 0),
    ("LEAVE job 7 PS interrupted", tally(LEAVE, rank=PS, payload=control(LEAVE, **ids, code=3)), 0, 0),
    ("DATA job 7 rank 2 fragment 4711 f32 RESEND",
     tally(DATA, flags=RESEND, element=F32, fragment=4711, bitmap=4, payload=f32s), 4711 % 16, 0),
    ("DATA job 65535 rank 63 fragment 4294967295 i32",
     tally(DATA, job=65535, element=I32, fragment=2**32 - 1, rank=63, bitmap=1 << 63, payload=i32s), 15, 0),
    ("DATA job 7 rank 0 fragment 0 scale", tally(DATA, element=SCALE, rank=0, bitmap=1, payload=scales), 0, 0),
    ("DATA job 7 rank 2 fragment 1 i32", tally(DATA, element=I32, fragment=1, bitmap=4, payload=bytes(8192)), 1, 0),
    ("RESULT job 7 switch fragment 5 i32 OVERFLOW FROM_PS",
     tally(RESULT, flags=OVERFLOW | FROM_PS, element=I32, fragment=5, rank=SWITCH, bitmap=255, payload=i32s), 0, 1),
    ("RESULT job 7 switch fragment 5 f32",
     tally(RESULT, element=F32, fragment=5, rank=SWITCH, bitmap=2**64 - 1, payload=f32s), 0, 1),
    ("RESULT job 7 PS fragment 5 f32", tally(RESULT, element=F32, fragment=5, rank=PS, bitmap=255, payload=f32s), 5, 0),
    ("RESULT job 7 rank 2 fragment 5 f32", tally(RESULT, element=F32, fragment=5, bitmap=255, payload=f32s), 5, 0),
    ("PARTIAL job 7 switch fragment 6 i32 ranks 0,2-4,63 RESEND OVERFLOW MARKED COLLISION",
     tally(PARTIAL, flags=RESEND | OVERFLOW | MARKED | COLLISION, element=I32, fragment=6, rank=SWITCH, bitmap=1 << 63 | 29, payload=i32s), 0, 1),
    ("PARTIAL job 7 switch fragment 6 f32 ranks 0-33",
     tally(PARTIAL, element=F32, fragment=6, rank=SWITCH, bitmap=2**34 - 1, payload=f32s), 0, 1),
    ("PARTIAL job 7 switch fragment 6 f32 rank 33",
     tally(PARTIAL, element=F32, fragment=6, rank=SWITCH, bitmap=1 << 33, payload=f32s), 0, 1),
    *[(f"DATA job 7 rank 2 fragment 9 {name}", tally(DATA, element=element, fragment=9, bitmap=4, payload=payload), 9, 0)
      for name, element, payload in [("f16", F16, f16s), ("bf16", BF16, bf16s), ("i16", I16, i16s), ("i8", I8, scales)]],
    ("PARTIAL job 7 switch fragment 6 i16 rank 33",
     tally(PARTIAL, element=I16, fragment=6, rank=SWITCH, bitmap=1 << 33, payload=i16s), 0, 1),
    ("REMIND job 7 PS fragment 8", tally(REMIND, fragment=8, rank=PS), 8, 0),
    ("NOT_HERE job 7 switch fragment 8", tally(NOT_HERE, fragment=8, rank=SWITCH), 0, 1),
    ("NOT_HERE job 7 switch fragment 8 FINISHED", tally(NOT_HERE, flags=FINISHED, fragment=8, rank=SWITCH), 0, 1),
    ("NACK job 7 rank 2 fragment 8", tally(NACK, fragment=8), 8, 0),
    ("PROBE job 7 rank 2 fragment 8", tally(PROBE, fragment=8), 8, 0),
]  # fmt: skip

data = {"element": F32, "bitmap": 4, "payload": f32s}
result = {"element": F32, "bitmap": 255, "payload": f32s, "rank": SWITCH}
one, nack = tally(DATA, **data), tally(NACK, fragment=8, bitmap=4)
# Superframes: datagrams of one length and a last one that may be shorter, of any types.
GOOD += [
    ("2 in one: the first is DATA job 7 rank 2 fragment 16 f32",
     tally(DATA, fragment=16, **data) + tally(DATA, fragment=32, **data), 0, 0),
    ("4 in one: the first is DATA job 7 rank 2 fragment 16 f32",
     b"".join(tally(DATA, fragment=fragment, **data) for fragment in (16, 32, 48)) + nack, 0, 0),
    ("3 in one: the first is RESULT job 7 switch fragment 5 f32",
     tally(RESULT, fragment=5, **result) + tally(RESULT, fragment=6, **result)
     + tally(DATA, element=I32, fragment=7, bitmap=4, payload=i32s[:64]), 0, 1),
    ("64 in one: the first is NACK job 7 rank 2 fragment 0",
     b"".join(tally(NACK, fragment=fragment, bitmap=4) for fragment in range(64)), 0, 0),
    ("2 in one: the first is ACCEPT job 7 rank 2 waiting epoch 3",
     tally(ACCEPT, payload=control(ACCEPT, **ids)) + tally(ACCEPT, rank=3, payload=control(ACCEPT, **ids)), 0, 1),
]  # fmt: skip

# (what the complaint says, and nothing else may be complained about; UDP payload, keywords of
# frame())
BAD = [
    ("21 bytes are shorter than a header", tally(REMIND, rank=PS)[:21], {}),
    ("0 bytes are shorter than a header", b"", {}),
    ("version 0 is not 2", tally(DATA, version=0, **data), {}),
    ("version 1 is not 2", tally(DATA, version=1, **data), {}),
    ("type 0 is not in use", tally(0), {}),
    ("type 12 is not in use", tally(12), {}),
    ("type 15 is not in use", tally(15), {}),
    *[("reserved flags are set", tally(DATA, flags=1 << bit, **data), {}) for bit in (6, 7)],
    ("DATA does not have FROM_PS", tally(DATA, flags=FROM_PS, **data), {}),
    ("RESULT does not have RESEND", tally(RESULT, flags=RESEND | FROM_PS, **result), {}),
    ("RESULT does not have FINISHED", tally(RESULT, flags=FINISHED, **result), {}),
    ("NOT_HERE does not have RESEND OVERFLOW FROM_PS", tally(NOT_HERE, flags=15, rank=SWITCH), {}),
    ("REMIND does not have FINISHED", tally(REMIND, flags=FINISHED, rank=PS), {}),
    ("JOIN does not have RESEND", tally(JOIN, flags=RESEND, payload=control(JOIN, **ids)), {}),
    ("reserved bits beside the element type are set", tally(DATA, **{**data, "element": 0x80 | F32}), {}),
    ("element type 8 is not in use", tally(DATA, **{**data, "element": 8}), {}),
    ("DATA does not have element type none", tally(DATA, **{**data, "element": NONE}), {}),
    ("NACK does not have element type f32", tally(NACK, element=F32, bitmap=4), {}),
    ("LEAVE does not have element type i32", tally(LEAVE, element=I32, payload=control(LEAVE, **ids)), {}),
    ("DATA does not have rank 254", tally(DATA, rank=SWITCH, element=F32, payload=f32s, bitmap=4), {"also": "bitmap"}),
    ("PARTIAL does not have rank 2", tally(PARTIAL, **data), {}),
    ("REMIND does not have rank 254", tally(REMIND, rank=SWITCH), {}),
    ("RESULT does not have rank 64", tally(RESULT, **{**result, "rank": 64}), {}),
    ("JOIN does not have rank 254", tally(JOIN, rank=SWITCH, payload=control(JOIN, **ids)), {}),
    ("DATA does not have 0 units", tally(DATA, element=F32, bitmap=4), {}),
    ("DATA does not have 129 units", tally(DATA, element=F32, bitmap=4, payload=bytes(129 * 64)), {}),
    ("NACK does not have 1 units", tally(NACK, bitmap=4, payload=bytes(64)), {}),
    ("JOIN does not have 3 units", tally(JOIN, payload=control(JOIN, **ids) + bytes(64)), {}),
    ("16 units are 1024 bytes, but UDP carries 1023 after the header", tally(DATA, units=16, **{**data, "payload": f32s[1:]}), {}),
    ("15 units are 960 bytes, but UDP carries 1024 after the header", tally(DATA, units=15, **data), {}),
    ("2 units are 128 bytes, but UDP carries 64 after the header", tally(JOIN, units=2, payload=control(JOIN, **ids)[:64]), {}),
    ("the IPv4 length 1078 is not 20 + 8 + 22 + 1024", tally(DATA, **data), {"ip_extra": 4}),
    ("DATA of rank 2 does not have the bitmap of no rank", tally(DATA, **{**data, "bitmap": 0}), {}),
    ("DATA of rank 2 does not have the bitmap of rank 3", tally(DATA, **{**data, "bitmap": 8}), {}),
    ("DATA of rank 2 does not have the bitmap of ranks 2-3", tally(DATA, **{**data, "bitmap": 12}), {}),
    ("PARTIAL of switch does not have the bitmap of no rank", tally(PARTIAL, **{**result, "bitmap": 0}), {}),
    ("PARTIAL of switch does not have the bitmap of ranks 0,2", tally(PARTIAL, **{**result, "bitmap": 5}), {}),
    ("role 3 is not in use", tally(JOIN, payload=control(JOIN, **ids, role=3)), {}),
    ("running 2 is not in use", tally(JOIN, payload=control(JOIN, **ids, running=2)), {}),
    ("the instance is 0", tally(JOIN, payload=control(JOIN)), {}),
    ("state 3 is not in use", tally(ACCEPT, payload=control(ACCEPT, **ids, state=3)), {}),
    ("reason 19 is not in use", tally(REFUSE, payload=control(REFUSE, **ids, reason=19)), {}),
    ("below 19 is not in use", tally(LEAVE, payload=control(LEAVE, **ids, below=19)), {}),
    ("reason 0 is not in use", tally(REFUSE, payload=control(REFUSE, **ids)), {}),
    ("has_sent 2 is not in use", tally(JOIN, payload=control(JOIN, **ids, has_sent=2)), {}),
    ("code 5 is not in use", tally(LEAVE, payload=control(LEAVE, **ids, code=5)), {}),
    # No superframes: what follows is no datagram, or longer, or neither as long nor the last; or
    # IPv4 is against it.
    *[(f"16 units are 1024 bytes, but UDP carries {1024 + len(rest)} after the header", one + rest, {})
      for rest in [bytes(5), bytes(22), bytes(64), bytes(len(one)), b"\xff" * len(one), nack[:21], nack + b"\0", nack + nack,
                   nack + one, one + bytes(22), one[:-64], tally(DATA, **{**data, "payload": f32s + bytes(64)}),
                   tally(DATA, version=1, **data), tally(0, **data), tally(12, **data), tally(DATA, units=15, **data),
                   tally(DATA, units=0, **data)]],
    ("0 units are 0 bytes, but UDP carries 1046 after the header", nack + one, {}),
    ("16 units are 1024 bytes, but UDP carries 2070 after the header", one + one, {"ip_extra": 4}),
    # Superframes with a datagram that is malformed.
    ("DATA of rank 2 does not have the bitmap of rank 3", one + tally(DATA, **{**data, "bitmap": 8}), {}),
    ("NACK does not have RESEND", one + one + tally(NACK, flags=RESEND, bitmap=4), {}),
    ("DATA does not have 0 units", tally(DATA, element=F32, bitmap=4) + nack, {}),
]  # fmt: skip


def check_good(start, folder, port, options):
    checks, path = Checks(), folder / "good.pcap"
    frames = []
    for _, octets, shard, from_switch in GOOD:
        ends = (port + shard, 40000) if from_switch else (40000, port + shard)
        frames.append(frame(octets, *ends, padding=0 if len(octets) > 22 else 6))
    write_pcap(path, frames)
    rows = tshark(start, path, ROW, *options)
    checks.that(len(rows) == len(GOOD), f"{len(rows)} frames of {len(GOOD)}")
    for row, (info, octets, _, _) in zip(rows, GOOD):
        checks.that(well_formed(octets), f"{info}: this test makes it wrong")
        checks.that(row["_ws.col.Info"] == [info], f"info column {row['_ws.col.Info']}, expected {info!r}")
        checks.that(not row["tally.malformed"] and not row["_ws.malformed"], f"{info}: malformed {row['tally.malformed']}")
        checks.that(not row["_ws.lua.error"], f"{info}: {row['_ws.lua.error']}")
        checks.frame(info, row, octets)
        refused = [m for m in row["_ws.expert.message"] if m.startswith("Refused: ")]
        checks.that(len(refused) == info.startswith("REFUSE"), f"{info}: expert infos {row['_ws.expert.message']}")
    return checks.verdict(f"well-formed frames, port {port}")


def check_bad(start, folder):
    checks, path = Checks(), folder / "bad.pcap"
    write_pcap(path, [frame(octets, **{k: v for k, v in more.items() if k != "also"}) for _, octets, more in BAD])
    rows = tshark(start, path, ROW)
    checks.that(len(rows) == len(BAD), f"{len(rows)} frames of {len(BAD)}")
    for row, (complaint, octets, more) in zip(rows, BAD):
        said = [m for m in row["tally.malformed"] if not ("also" in more and more["also"] in m)]
        if not octets:  # Wireshark does not hand over an empty payload
            checks.that(not row["_ws.lua.error"], f"empty datagram: {row['_ws.lua.error']}")
            continue
        checks.that(said == [complaint], f"complaints {said}, expected {complaint!r}")
        checks.that(complaint in row["_ws.expert.message"], f"expert infos {row['_ws.expert.message']}")
        checks.that(not row["_ws.lua.error"], f"{complaint}: {row['_ws.lua.error']}")
    found = tshark(start, path, ["frame.number"], "-Y", "tally.malformed")
    checks.that(len(found) == sum(1 for _, octets, _ in BAD if octets), f"the filter finds {len(found)}")
    return checks.verdict("malformed frames")


def check_specification(start, folder):
    """The fields are those of section 4, and its examples neither malformed nor strange."""
    checks, path, text = Checks(), folder / "examples.pcap", SPECIFICATION.read_text()
    section = text.split("\n## 4.")[1].split("\n## ")[0]
    for kind, fields in CONTROL_FIELDS.items():
        table = section.split(f"\n{TYPES[kind]}\n\n")[1].split("\n\n")[0]
        rows = re.findall(r"^\| (\d+) \| (\d+) \|", table, re.MULTILINE)
        listed = {byte for at, size in rows for byte in range(int(at), int(at) + int(size))}
        known = {byte for at, code, _ in fields + (LEAVE_BELOW if kind == LEAVE else [])
                 for byte in range(at, at + struct.calcsize(">" + code))}  # fmt: skip
        missing = sorted((listed | set(range(48, 112)) if kind == LEAVE else listed) ^ known)
        checks.that(not missing, f"{TYPES[kind]}: bytes {missing} are in one of table and dissector")
    examples = re.findall(r"\n### ([^\n]*)\n\n```text\n(.*?)```", text.split("\n## 10.")[1], re.DOTALL)
    frames = []
    for name, lines in examples:
        octets = bytes.fromhex("".join(line.split("|")[0] for line in lines.splitlines()))
        frames.append(octets if name.endswith("the whole frame") else frame(octets))
    write_pcap(path, frames)
    rows = tshark(start, path, ROW)
    checks.that(len(rows) == len(examples) > 20, f"{len(rows)} frames of {len(examples)}")
    for row, (name, _), octets in zip(rows, examples, frames):
        strange = [m for m in row["_ws.expert.message"] if not m.startswith("Refused: ")]
        checks.that(not row["tally.malformed"] and not strange, f"{name}: {row['tally.malformed']} {strange}")
        checks.frame(name, row, octets[42:])
    return checks.verdict("examples of the specification")


def check_warnings(start, folder):
    checks, path = Checks(), folder / "warnings.pcap"
    stray = bytearray(tally(JOIN, payload=control(JOIN, **ids)))
    stray[22 + 22] = stray[22 + 90] = stray[22 + 111] = 1
    cases = [("payload bytes that should be 0: 22 90 111", bytes(stray)),
             ("Epoch 0 in a frame that needs one", tally(DATA, epoch=0, **data)),
             ("The sum saturated and is not valid", tally(RESULT, flags=OVERFLOW, **{**result, "element": I32}))]  # fmt: skip
    write_pcap(path, [frame(octets) for _, octets in cases])
    for row, (warning, _) in zip(tshark(start, path, ROW), cases):
        checks.that(row["_ws.expert.message"] == [warning], f"{row['_ws.expert.message']}, expected {warning!r}")
        checks.that(not row["tally.malformed"], f"{warning}: malformed {row['tally.malformed']}")
    return checks.verdict("warnings")


def check_truncated_captures(start, folder):
    """However short the capture cuts, the dissector neither fails nor calls the sender wrong."""
    checks = Checks()
    for snaplen in list(range(42, 70)) + [100, 175, 191, 192, 1000, 1088, 1100, 1200, 1500]:
        path = folder / f"snap{snaplen}.pcap"
        write_pcap(path, [frame(octets) for _, octets, _, _ in GOOD], snaplen)
        for row, (info, _, _, _) in zip(tshark(start, path, ROW), GOOD):
            # UDP says itself that it was cut; what counts is that Lua does not stumble
            checks.that(not row["_ws.lua.error"] and not row["tally.malformed"],
                        f"{info} cut to {snaplen}: {row['_ws.lua.error']} {row['tally.malformed']}")  # fmt: skip
    return checks.verdict("captures cut short")


def check_fuzz(start, folder):
    """Damaged frames: the dissector never stumbles, and agrees with well_formed()."""
    seed = int(os.environ.get("SEED", "0"), 0) or time.time_ns() & 0xFFFFFFFF
    print(f"seed {seed} (SEED=... repeats it)")
    rng, checks, path = random.Random(seed), Checks(), folder / "fuzz.pcap"
    damaged = []
    for _ in range(5000):
        octets = bytearray(rng.choice(GOOD)[1])
        for _ in range(rng.choice((1, 1, 2, 8))):
            octets[rng.randrange(min(len(octets), rng.choice((22, 150))))] = rng.getrandbits(8)
        cut = rng.choice((len(octets), len(octets), len(octets), rng.randrange(1, len(octets) + 1)))
        damaged.append(bytes(octets[:cut]))
    write_pcap(path, [frame(octets) for octets in damaged])
    rows = tshark(start, path, ROW)
    checks.that(len(rows) == len(damaged), f"{len(rows)} frames of {len(damaged)}")
    for row, octets in zip(rows, damaged):
        number = row["frame.number"]
        checks.that(not row["_ws.lua.error"], f"frame {number}: {row['_ws.lua.error']}")
        agreed = well_formed(octets) == (not row["tally.malformed"])
        checks.that(agreed, f"frame {number}: complaints {row['tally.malformed']} about {octets[:64].hex()}")
        if agreed and well_formed(octets):
            checks.frame(number, row, octets)
    fine = sum(map(well_formed, damaged))
    checks.that(0 < fine < len(damaged), f"{fine} of the damaged frames are well formed")
    return checks.verdict("random damage")


def main():
    parser = argparse.ArgumentParser(description="Hold tally.lua to docs/PROTOCOL.md, by way of tshark.")
    parser.add_argument("capture", nargs="?", type=pathlib.Path)
    parser.add_argument("-p", "--port", type=int, default=PORT, help="the switch's base port")
    parser.add_argument("-s", "--shards", type=int, default=SHARDS)
    parser.add_argument("--malformed", action="store_true", help="malformed frames are there on purpose")
    args = parser.parse_args()
    if not shutil.which("tshark"):
        sys.exit("test.py: tshark is not installed; nothing was tested")
    with tempfile.TemporaryDirectory(prefix="tally-wireshark-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)  # tshark may run as another user
        start = tshark_with_lua(folder, SCRIPT, "tally.type")
        if args.capture:
            capture = pathlib.Path(shutil.copyfile(args.capture, folder / args.capture.name))
            capture.chmod(0o644)
            return check_capture(start, capture, args.port, args.shards, args.malformed)
        failed = [
            check_good(start, folder, PORT, []),
            check_good(start, folder, 40100, ["-o", "tally.port:40100"]),
            check_bad(start, folder),
            check_specification(start, folder),
            check_warnings(start, folder),
            check_truncated_captures(start, folder),
            check_fuzz(start, folder),
            check_capture(start, folder / "good.pcap", 40100, SHARDS, False),
        ]
        with contextlib.redirect_stdout(io.StringIO()):
            passed = check_capture(start, folder / "bad.pcap", PORT, SHARDS, False) == 0
        if passed:
            print("FAILED: a capture of malformed frames passed")
    return max(failed + [int(passed)])


if __name__ == "__main__":
    sys.exit(main())
