"""Bench of tally_ingress: good frames are forwarded whole and in order, bad frames leave no trace.

A bad frame is counted once, by the first reason. Frames have random and limiting lengths; streams
have gaps, and readers random rates. A frame has none, one or several random errors.
"""

import cocotb

from bench import PACES, Clock, Source, dice, get, put

MAX_FRAME = 1550  # as `run` sets it: no multiple of a beat
LENGTHS = (1, 63, 64, 65, 127, 128, 129, 577, 1088, 1536, 1537, 1549, 1550, 1551, 1600, 1601, 3200)
EVENTS = ("count_frame", "count_beat", "count_error", "count_keep", "count_oversize")


def drawn(rng):
    """Beats of a frame, and the expected event or (header, bytes, port, beats)."""
    length = rng.choice((rng.choice(LENGTHS), rng.randrange(1, 200), rng.randrange(1, 1601)))
    frame = rng.randbytes(length)
    port = rng.getrandbits(16)
    beats = []
    for at in range(0, length, 64):
        part = frame[at : at + 64]
        beats.append([int.from_bytes(part, "little"), (1 << len(part)) - 1, 0, port if at == 0 else rng.getrandbits(16)])
    beats[-1][2] = 1
    ragged = rng.random() < 0.15
    if ragged:
        beat = rng.choice(beats)
        before = beat[1]
        kind = rng.randrange(4)
        if kind == 0 and beat[1] & 2:
            beat[1] &= ~1
        elif kind == 1:
            beat[1] = 0
        elif kind == 2:
            beat[1] >>= rng.randrange(1, 64)
        else:
            beat[1] &= ~(1 << rng.randrange(64))
        if beat[2]:
            # A last beat that is only shorter is good.
            size = beat[1].bit_length()
            ragged = beat[1] == 0 or beat[1] != (1 << size) - 1
            length += size - before.bit_length() if not ragged else 0
        else:
            ragged = beat[1] != before
    bad = rng.random() < 0.1
    for beat in beats[:-1]:
        beat[3] |= rng.getrandbits(1) << 16
    beats[-1][3] |= bad << 16
    if bad:
        result = "count_error"
    elif ragged:
        result = "count_keep"
    elif length > MAX_FRAME:
        result = "count_oversize"
    else:
        # Bytes outside tkeep are forwarded, too.
        result = (beats[0][0], length, port, [(data, last) for data, _, last, _ in beats])
    return [tuple(beat) for beat in beats], result


class Readers:
    """Takes headers and beats, each at its own rate."""

    def __init__(self, dut, rng, pace):
        self.dut, self.rng, self.pace = dut, rng, pace
        self.headers, self.beats, self.events = [], [], dict.fromkeys(EVENTS, 0)

    def drive(self):
        dut = self.dut
        self.header = bool(get(dut.header_valid)) and self.rng.random() < self.pace
        self.beat = bool(get(dut.beat_valid)) and self.rng.random() < self.pace
        put(dut.header_pop, int(self.header))
        put(dut.beat_pop, int(self.beat))

    def sample(self, cycle):
        dut = self.dut
        if self.header:
            self.headers.append((get(dut.header_data), get(dut.header_bytes), get(dut.header_port)))
        if self.beat:
            self.beats.append((get(dut.beat_data), get(dut.beat_last)))
        for event in EVENTS:
            self.events[event] += get(getattr(dut, event))


async def run(dut, rng, offers, takes, count):
    clock = Clock(dut)
    source = Source(dut, "s_axis", rng, offers)
    await clock.reset(dut.s_axis_tdata, dut.s_axis_tkeep, dut.s_axis_tlast, dut.s_axis_tuser, dut.header_pop, dut.beat_pop)
    readers = Readers(dut, rng, takes)
    clock.attach(source, readers)
    frames = [drawn(rng) for _ in range(count)]
    # The last frame is always good.
    while isinstance(frames[-1][1], str):
        frames[-1] = drawn(rng)
    wanted = [result for _, result in frames if not isinstance(result, str)]
    source.send(beat for beats, _ in frames for beat in beats)
    total = sum(len(beats) for beats, _ in frames)
    await clock.until(
        lambda: len(readers.headers) >= len(wanted) and len(readers.beats) >= sum(len(w[3]) for w in wanted),
        20 * total + 1000,
        "all good frames",
    )
    for _ in range(20):
        await clock.step()
    assert get(dut.empty), "not empty at the end"
    assert readers.headers == [w[:3] for w in wanted]
    assert readers.beats == [beat for w in wanted for beat in w[3]]
    results = [result for _, result in frames]
    expected = {"count_frame": count, "count_beat": total}
    expected |= {event: results.count(event) for event in ("count_error", "count_keep", "count_oversize")}
    assert readers.events == expected, f"{readers.events}, not {expected}"
    return source


@cocotb.test()
async def whole_or_not_at_all(dut):
    rng = dice("ingress")
    for offers in PACES:
        for takes in PACES:
            await run(dut, rng, offers, takes, 60)


@cocotb.test()
async def full_rate(dut):
    source = await run(dut, dice("ingress rate"), 1.0, 1.0, 150)
    assert source.latest - source.first + 1 == source.moved, "the stream had to wait"
