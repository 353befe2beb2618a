"""Tally frames of docs/PROTOCOL.md, with layout and numbers from the RTL's packages."""

import dataclasses
import os
import pathlib
import re

RTL = pathlib.Path(os.environ["TALLY_RTL"])


def constants(text):
    """The `localparam`s of packages, each a number or an expression of those before it."""
    known = {}
    for name, value in re.findall(r"localparam\b[^;=]*?(\w+)\s*=\s*([^;]+);", text):
        value = re.sub(r"\d+'h([0-9a-f]+)", r"0x\1", value)
        value = re.sub(r"\d+'d(\d+)", r"\1", value).replace("/", "//")
        known[name] = eval(value, {"__builtins__": {}}, known)
    return known


def layout(prefix):
    """The fields of a layout of tally_pkg: lowest bit and width of each, by its name."""
    ends = ((name, name.removesuffix("_AT").removeprefix(prefix)) for name in PKG if name.startswith(prefix) and name.endswith("_AT"))
    return {field.lower(): (PKG[name], PKG[f"{prefix}{field}_BITS"]) for name, field in ends if f"{prefix}{field}_BITS" in PKG}


PKG = constants("".join((RTL / f"{name}.sv").read_text() for name in ("tally_pkg", "tally_regs_pkg")))
FIELDS = layout("FRAME_")

JOIN, ACCEPT, REFUSE, LEAVE, DATA, RESULT, PARTIAL, REMIND, NOT_HERE, NACK, PROBE = range(1, 12)
NONE, I32, F32, SCALE, F16, BF16, I16, I8 = range(8)
RESEND, OVERFLOW, FROM_PS, FINISHED, MARKED, COLLISION = (1 << i for i in range(6))
SWITCH, PS = 254, 255
OWN_MAC, OWN_IP, BASE_PORT = 0x025443000001, 0x0A540001, 41000
ETHERNET_BYTES, IPV4_BYTES, UDP_BYTES, TALLY_BYTES, TAG_BYTES = (
    PKG[name] for name in ("ETHERNET_HEADER_BYTES", "IPV4_HEADER_BYTES", "UDP_HEADER_BYTES", "TALLY_HEADER_BYTES", "TAG_BYTES")
)
IP_HEADERS_BYTES = IPV4_BYTES + UDP_BYTES + TALLY_BYTES


def field(frame, name):
    """A field of a frame's headers; bytes that the frame lacks are 0."""
    at, bits = FIELDS[name]
    return int.from_bytes(frame[:64].ljust(64, b"\0"), "big") >> at & (1 << bits) - 1


def headers(**values):
    """The 64 bytes of headers with these fields."""
    packed = 0
    for name, (at, bits) in FIELDS.items():
        assert 0 <= values[name] < 1 << bits, f"{name} is {values[name]}, of {bits} bits"
        packed |= values[name] << at
    return packed.to_bytes(64, "big")


def checksum(header):
    total = sum(int.from_bytes(header[at : at + 2], "big") for at in range(0, len(header), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


@dataclasses.dataclass
class Frame:
    """Every field of a frame. Lengths that are None follow from the payload."""

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
        values = {name: getattr(self, name, 0) for name in FIELDS}
        if self.units is None:
            values["units"] = len(self.payload) // 64
        if self.bitmap is None:
            values["bitmap"] = 1 << self.rank % 64
        if self.ip_bytes is None:
            values["ip_bytes"] = IP_HEADERS_BYTES + len(self.payload)
        if self.udp_bytes is None:
            values["udp_bytes"] = values["ip_bytes"] - IPV4_BYTES & 0xFFFF
        ipv4 = headers(**values)[ETHERNET_BYTES : ETHERNET_BYTES + IPV4_BYTES]
        return headers(**values | {"ip_checksum": checksum(ipv4)}) + self.payload
