"""Heads: the fields of an output frame's headers that the tables decide; layout: tally_pkg."""

from aggregator import TO_PS
from frames import PKG, layout

FIXED = layout("HEAD_")
FIELDS = (*FIXED, "bitmap", "place")


def fields_of(bits, members):
    """Lowest bit and width of each field of a head of `bits` bits."""
    place_at = PKG["HEAD_FIXED_BITS"] + members
    return FIXED | {"bitmap": (PKG["HEAD_BITMAP_AT"], members), "place": (place_at, bits - place_at)}


def packed(values, bits, members):
    """A head of `bits` bits."""
    head = 0
    for name, (at, width) in fields_of(bits, members).items():
        assert 0 <= values[name] < 1 << width, f"{name} is {values[name]}, of {width} bits"
        head |= values[name] << at
    return head


def unpacked(head, bits, members):
    """The fields of a head of `bits` bits."""
    return {name: head >> at & (1 << width) - 1 for name, (at, width) in fields_of(bits, members).items()}


def is_of(head, out, bits, members):
    """Whether a head is that of an output frame. The member counts only in a frame for a member."""
    fields = unpacked(head, bits, members)
    if out.origin == "RAW":
        return fields["fragment"] == out.fragment
    names = [name for name in FIELDS if name != "asker" or out.to != TO_PS]
    return all(fields[name] == getattr(out, name) for name in names)
