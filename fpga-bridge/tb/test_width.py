"""Bench of tally_width: bytes, gaps in tkeep and ends of frames keep their position; full rate."""

import cocotb

from bench import PACES, Clock, Sink, Source, beats_of, dice, spread

LENGTHS = (1, 7, 8, 15, 16, 31, 32, 33, 60, 63, 64, 65, 127, 128, 129, 192, 1088, 1500)


def bytes_of(beats, size):
    """Each frame's kept bytes, by position in the frame, and its user bit."""
    frames, at, kept = [], 0, {}
    for data, keep, last, user in beats:
        for i in range(size):
            if keep >> i & 1:
                kept[at + i] = data >> 8 * i & 0xFF
        at += size
        if last:
            frames.append((kept, user))
            at, kept = 0, {}
    assert at == 0, "a frame without an end"
    return frames


async def start(dut, rng, offers, takes):
    clock = Clock(dut)
    source = clock.attach(Source(dut, "s_axis", rng, offers))
    sink = clock.attach(Sink(dut, "m_axis", rng, takes))
    await clock.reset(dut.s_axis_tdata, dut.s_axis_tkeep, dut.s_axis_tlast, dut.s_axis_tuser)
    return clock, source, sink


async def run(clock, source, sink, frames):
    source.send(beat for beats in frames for beat in beats)
    ends = sink.beats
    await clock.until(lambda: sum(b[2] for b in ends) == len(frames), 40 * 1600 * len(frames), "all frames")
    for _ in range(20):
        await clock.step()
    sent = bytes_of([beat for beats in frames for beat in beats], source.bytes)
    taken = bytes_of(sink.beats, sink.bytes)
    assert len(sent) == len(taken), f"{len(sent)} frames in, {len(taken)} out"
    for i, (want, got) in enumerate(zip(sent, taken)):
        assert want == got, f"frame {i} of {len(want[0])} bytes differs"


@cocotb.test()
async def frames_survive(dut):
    rng = dice(dut._name)
    for offers in PACES:
        for takes in PACES:
            clock, source, sink = await start(dut, rng, offers, takes)
            lengths = [rng.choice(LENGTHS[:-2]) for _ in range(20)] + [rng.choice(LENGTHS)]
            frames = [beats_of(rng.randbytes(n), source.bytes) for n in lengths]
            # The user bit is valid with the last beat only: noise before it.
            frames = [[(d, k, l, rng.getrandbits(1)) for d, k, l, _ in beats] for beats in frames]
            await run(clock, source, sink, frames)


@cocotb.test()
async def gaps_survive(dut):
    rng = dice(dut._name + " gaps")
    clock, source, sink = await start(dut, rng, 0.9, 0.9)
    frames = []
    for _ in range(40):
        beats = []
        for i in range(n := rng.randrange(1, 20)):
            keep = rng.choice(((1 << source.bytes) - 1, rng.getrandbits(source.bytes), 0, 1))
            beats.append((rng.getrandbits(8 * source.bytes) & spread(keep, source.bytes), keep, int(i == n - 1), 0))
        # The converter to a narrower stream does not send the empty parts above a beat's last byte.
        # So positions shift if the beat is not the frame's last. The core never makes such frames.
        if source.bytes > sink.bytes:
            beats = [(d | 0xFF << 8 * source.bytes - 8, k | 1 << source.bytes - 1, l, u) for d, k, l, u in beats]
        frames.append(beats)
    await run(clock, source, sink, frames)


@cocotb.test()
async def full_rate(dut):
    rng = dice(dut._name + " rate")
    clock, source, sink = await start(dut, rng, 1.0, 1.0)
    await run(clock, source, sink, [beats_of(rng.randbytes(1088), source.bytes) for _ in range(10)])
    narrow = source if source.bytes <= sink.bytes else sink
    assert narrow.moved == 10 * 1088 // narrow.bytes
    assert narrow.latest - narrow.first + 1 == narrow.moved, "the narrow side had bubbles"
