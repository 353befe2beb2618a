"""What stands in a head, the part of an output frame's headers that the tables decide."""

from aggregator import TO_PS

FIELDS = ("kind", "flags", "priority", "element", "place", "fragment", "rank", "units", "bitmap", "to", "asker")


def unpacked(head, bits, members):
    """The fields of a head of so many bits; the place takes what the others leave."""
    sizes = {"kind": 4, "flags": 8, "priority": 8, "element": 3, "place": bits - 81 - members, "fragment": 32, "rank": 8,
             "units": 8, "bitmap": members, "to": 2, "asker": 8}  # fmt: skip
    fields = {}
    for name in reversed(FIELDS):
        fields[name] = head & (1 << sizes[name]) - 1
        head >>= sizes[name]
    return fields


def is_of(head, out, bits, members):
    """Whether a head is that of a frame that leaves. Whose member it is for matters only where it is for one."""
    fields = unpacked(head, bits, members)
    if out.origin == "RAW":
        return fields["fragment"] == out.fragment
    names = [name for name in FIELDS if name != "asker" or out.to != TO_PS]
    return all(fields[name] == getattr(out, name) for name in names)
