"""Bench of tally_tags: ports in MAC addresses both ways, all else unchanged, a beat each cycle."""

import cocotb

from bench import PACES, Clock, Sink, Source, beats_of, dice, frames_of, put

OWN = bytes.fromhex("02544304a1b2")
PASSED = 1 << 31
LENGTHS = (1, 5, 6, 11, 12, 13, 14, 60, 63, 64, 65, 128, 129, 640, 1088)


def port_tag(port):
    return bytes.fromhex("02544300") + port.to_bytes(2, "big")


def mask_tag(mask):
    return bytes.fromhex("02544301") + mask.to_bytes(2, "big")


async def start(dut, rng, offers, takes):
    clock = Clock(dut)
    ends = clock.attach(
        Source(dut, "s_net", rng, offers),
        Sink(dut, "m_core", rng, takes),
        Source(dut, "s_core", rng, offers),
        Sink(dut, "m_net", rng, takes),
    )
    await clock.reset(*(getattr(dut, f"s_{end}_{name}") for end in ("net", "core") for name in ("tdata", "tkeep", "tlast", "tuser")))
    put(dut.own_mac, int.from_bytes(OWN, "big"))
    return clock, *ends


def arriving(rng, length):
    """A frame from the switch, the frame that the core must see, and the port."""
    frame = rng.randbytes(length)
    kind = rng.randrange(6)
    if kind < 3:
        port = rng.choice((0, 1, 15, 0x1234, 0xFFFE, 0xFF00, 0x00FF, rng.randrange(0xFFFF)))
        frame = (port_tag(port) + frame)[: max(length, 6)]
        return frame, OWN + frame[6:], port
    if kind == 3:
        # A destination one bit away from a tag.
        near = bytearray(port_tag(rng.randrange(0x10000)))
        near[rng.randrange(4)] ^= 1 << rng.randrange(8)
        frame = bytes(near) + frame
    elif kind == 4:
        frame = port_tag(0xFFFF) + frame
    return frame, frame, 0xFFFF


async def run(clock, ends, rng, count, lengths=LENGTHS):
    net, to_core, core, to_net = ends
    sent, wanted = [], []
    for _ in range(count):
        frame, seen, port = arriving(rng, rng.choice(lengths))
        bad = rng.getrandbits(1)
        # A tag in a later beat is payload.
        beats = beats_of(frame + (port_tag(3) * 11 if rng.random() < 0.3 else b""), 64)
        seen = seen + frame_tail(beats, len(frame))
        sent += [(d, k, l, bad if l else rng.getrandbits(1)) for d, k, l, _ in beats]
        wanted.append((seen, bad << 16 | port))
    net.send(sent)

    made, leaving = [], []
    for _ in range(count):
        frame = rng.randbytes(max(rng.choice(lengths), 12))
        noise = rng.getrandbits(15) << 16
        if rng.random() < 0.5:
            mask = rng.getrandbits(16)
            made += beats_of(frame, 64, noise | mask)
            leaving.append(frame[:6] + mask_tag(mask) + frame[12:])
        else:
            port = rng.choice((0xFFFF, rng.getrandbits(16)))
            made += beats_of(frame, 64, PASSED | noise | port)
            leaving.append(frame if port == 0xFFFF else port_tag(port) + frame[6:])
    core.send(made)

    await clock.until(
        lambda: sum(b[2] for b in to_core.beats) == count and sum(b[2] for b in to_net.beats) == count,
        30 * (len(sent) + len(made)),
        "all frames",
    )
    for _ in range(10):
        await clock.step()
    got = frames_of(to_core.beats, 64)
    assert len(got) == count
    for i, (a, b) in enumerate(zip(wanted, got)):
        assert a == b, f"in, frame {i}: {b[0][:16].hex()} {b[1]:x}, not {a[0][:16].hex()} {a[1]:x}"
    ports = iter(to_core.beats)
    for seen, user in wanted:
        for beat in iter(lambda: next(ports), None):
            assert beat[3] & 0xFFFF == user & 0xFFFF, "the port changed within a frame"
            if beat[2]:
                break
    got = [frame for frame, _ in frames_of(to_net.beats, 64)]
    assert len(got) == count
    for i, (a, b) in enumerate(zip(leaving, got)):
        assert a == b, f"out, frame {i}: {b[:16].hex()}, not {a[:16].hex()}"


def frame_tail(beats, length):
    whole = b"".join(d.to_bytes(64, "little")[: k.bit_length()] for d, k, _, _ in beats)
    return whole[length:]


@cocotb.test()
async def tags_both_ways(dut):
    rng = dice("tags")
    for offers in PACES:
        for takes in PACES:
            clock, *ends = await start(dut, rng, offers, takes)
            await run(clock, ends, rng, 60)


@cocotb.test()
async def full_rate(dut):
    rng = dice("tags rate")
    clock, *ends = await start(dut, rng, 1.0, 1.0)
    await run(clock, ends, rng, 60)
    for end in ends:
        assert end.latest - end.first + 1 == end.moved, f"{end.data._path} had bubbles"
