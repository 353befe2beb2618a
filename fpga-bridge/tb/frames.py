"""Tally frames as docs/PROTOCOL.md has them, and the numbers of the RTL's packages."""

import dataclasses
import os
import pathlib
import re
import struct

RTL = pathlib.Path(os.environ["TALLY_RTL"])
PACKAGES = "".join((RTL / f"{name}.sv").read_text() for name in ("tally_pkg", "tally_regs_pkg"))
PKG = {
    name: int(value.rsplit("'", 1)[-1].lstrip("dh"), 16 if "'h" in value else 10)
    for name, value in re.findall(r"localparam [^;=]*?(\w+)\s*=\s*([\w']+);", PACKAGES)
    if value.rsplit("'", 1)[-1].lstrip("dh").strip("0123456789abcdef") == ""
}

JOIN, ACCEPT, REFUSE, LEAVE, DATA, RESULT, PARTIAL, REMIND, NOT_HERE, NACK, PROBE = range(1, 12)
NONE, I32, F32, SCALE, F16, BF16, I16, I8 = range(8)
RESEND, OVERFLOW, FROM_PS, FINISHED, MARKED, COLLISION = (1 << i for i in range(6))
SWITCH, PS = 254, 255
OWN_MAC, OWN_IP, BASE_PORT = 0x025443000001, 0x0A540001, 41000


def checksum(header):
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


@dataclasses.dataclass
class Frame:
    """Every field of a frame; lengths that are None follow from the payload."""

    kind: int = DATA
    flags: int = 0
    priority: int = 0
    element: int = I32
    job: int = 1
    epoch: int = 1
    fragment: int = 0
    rank: int = 0
    units: int | None = None
    bitmap: int | None = None
    payload: bytes = bytes(64)
    destination: int = OWN_MAC
    source: int = 0x020000000001
    ethertype: int = 0x0800
    version_ihl: int = 0x45
    tos: int = 2
    ip_bytes: int | None = None
    identification: int = 0
    fragmenting: int = 0x4000
    ttl: int = 64
    protocol: int = 17
    from_ip: int = 0x0A540101
    to_ip: int = OWN_IP
    from_port: int = 40000
    to_port: int = BASE_PORT
    udp_bytes: int | None = None
    version: int = PKG["VERSION"]

    def pack(self):
        units = len(self.payload) // 64 if self.units is None else self.units
        bitmap = 1 << self.rank % 64 if self.bitmap is None else self.bitmap
        tally = struct.pack(
            ">BBBBHHIBBQ", self.version << 4 | self.kind, self.flags, self.priority, self.element, self.job,
            self.epoch, self.fragment, self.rank, units, bitmap,
        )  # fmt: skip
        ip_bytes = 50 + len(self.payload) if self.ip_bytes is None else self.ip_bytes
        udp_bytes = ip_bytes - 20 & 0xFFFF if self.udp_bytes is None else self.udp_bytes
        ip = struct.pack(
            ">BBHHHBBHII", self.version_ihl, self.tos, ip_bytes, self.identification, self.fragmenting, self.ttl,
            self.protocol, 0, self.from_ip, self.to_ip,
        )  # fmt: skip
        ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
        udp = struct.pack(">HHHH", self.from_port, self.to_port, udp_bytes, 0)
        ethernet = self.destination.to_bytes(6, "big") + self.source.to_bytes(6, "big") + self.ethertype.to_bytes(2, "big")
        return ethernet + ip + udp + tally + self.payload
