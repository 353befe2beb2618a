"""Bench of tally_regs against registers.json: all registers, counters and addresses, at any pace.

Addresses, data and responses of writes and reads move independently. The model is a table of words,
made from registers.json. It changes in the cycle in which a write is answered.
"""

import collections
import json

import cocotb

from bench import PACES, Clock, dice, get, put
from frames import RTL

OKAY, SLVERR = 0, 2
MAP = json.loads((RTL.parent / "registers.json").read_text())
INPUTS = ("uptime", "clearing", "fault")


class Field:
    def __init__(self, register, field):
        high, _, low = field["bits"].partition(":")
        self.low = int(low or high)
        self.mask = (1 << int(high) - self.low + 1) - 1
        self.access, self.constant, self.input = field["access"], field.get("constant"), field.get("input")
        self.signal = field.get("signal", register["name"].lower())
        self.part = int(field["part"].partition(":")[2]) if "part" in field else 0
        self.always = field.get("always", False)

    def of(self, word):
        return word >> self.low & self.mask


REGISTERS = {
    int(register["address"], 16): [Field(register, field) for field in register["fields"]]
    for block in MAP["blocks"]
    for register in block["registers"]
}
FIELDS = [field for fields in REGISTERS.values() for field in fields]
STATE = sorted({field.signal for field in FIELDS if field.access == "rw"})
COMMANDS = sorted({field.signal for field in FIELDS if field.access == "command"})
COUNTERS = int(MAP["counters"]["address"], 16)
COUNT = sum(len(group["counters"]) for group in MAP["counters"]["groups"])
WRITABLE = [at for at, fields in REGISTERS.items() if any(field.access != "ro" for field in fields)]


class Model:
    def __init__(self, constants):
        self.constants = constants
        self.state = dict.fromkeys(STATE, 0)
        self.inputs = dict.fromkeys(INPUTS, 0) | {"counters": 0}

    def read(self, address):
        """Response and word."""
        if COUNTERS <= address < COUNTERS + 8 * COUNT and address % 4 == 0:
            return OKAY, self.inputs["counters"] >> 8 * (address - COUNTERS) & 0xFFFFFFFF
        if address not in REGISTERS:
            return SLVERR, 0
        word = 0
        for field in REGISTERS[address]:
            if field.constant:
                value = self.constants[field.constant]
            elif field.input:
                value = self.inputs[field.input]
            else:
                value = self.state[field.signal] >> field.part if field.access == "rw" else 0
            word |= (value & field.mask) << field.low
        return OKAY, word

    def commands(self, address, word):
        return [f for f in REGISTERS.get(address, ()) if f.access == "command" and f.of(word)]

    def answers(self, address, word, strobes, cleared):
        """Allowed responses to a write, by the values of `clearing` while it waited."""
        if address not in WRITABLE or strobes != 15:
            return {SLVERR}
        if all(field.always for field in self.commands(address, word)):
            return {OKAY}
        return {SLVERR if clearing else OKAY for clearing in cleared}

    def write(self, address, word):
        """Executes a write and returns its commands."""
        for field in REGISTERS[address]:
            if field.access == "rw":
                self.state[field.signal] &= ~(field.mask << field.part)
                self.state[field.signal] |= field.of(word) << field.part
        return {field.signal for field in self.commands(address, word)}


class Sender:
    """Channel of requests. A request stays until it is taken."""

    def __init__(self, dut, name, fields, rng, pace):
        self.valid, self.ready = (getattr(dut, f"s_axil_{name}{end}") for end in ("valid", "ready"))
        self.fields = [getattr(dut, f"s_axil_{field}") for field in fields]
        self.rng, self.pace = rng, pace
        self.waiting, self.offered, self.taken = collections.deque(), None, collections.deque()
        put(self.valid, 0)

    def drive(self):
        if self.offered is None and self.waiting and self.rng.random() < self.pace:
            self.offered = self.waiting.popleft()
        put(self.valid, int(self.offered is not None))
        # Noise while valid is low.
        noise = [self.rng.getrandbits(len(field)) for field in self.fields]
        for field, value in zip(self.fields, self.offered or noise):
            put(field, value)

    def sample(self, cycle):
        if get(self.ready) and self.offered is not None:
            self.taken.append(self.offered)
            self.offered = None
            return True
        return False


class Taker:
    """Channel of responses. An offered response must not change until it is taken."""

    def __init__(self, dut, name, fields, rng, pace):
        self.valid, self.ready = (getattr(dut, f"s_axil_{name}{end}") for end in ("valid", "ready"))
        self.fields = [getattr(dut, f"s_axil_{field}") for field in fields]
        self.rng, self.pace, self.held = rng, pace, None

    def drive(self):
        self.takes = self.rng.random() < self.pace
        put(self.ready, int(self.takes))

    def sample(self, cycle):
        """A response in the first cycle of its offer, else None."""
        if not get(self.valid):
            assert self.held is None, "an answer went away before it was taken"
            return None
        answer = tuple(get(field) for field in self.fields)
        assert self.held in (None, answer), "an answer changed before it was taken"
        fresh = self.held is None
        self.held = None if self.takes else answer
        return answer if fresh else None


class Ends:
    """Channels and inputs of the module, and the check of its outputs against the model."""

    def __init__(self, dut, rng, paces, clears=0.02):
        self.dut, self.rng, self.clears = dut, rng, clears
        pace = iter(paces)
        self.aw = Sender(dut, "aw", ["awaddr"], rng, next(pace))
        self.w = Sender(dut, "w", ["wdata", "wstrb"], rng, next(pace))
        self.b = Taker(dut, "b", ["bresp"], rng, next(pace))
        self.ar = Sender(dut, "ar", ["araddr"], rng, next(pace))
        self.r = Taker(dut, "r", ["rdata", "rresp"], rng, next(pace))
        sizes = ("SLOTS", "PAYLOAD_BYTES", "JOBS", "MEMBERS", "RING", "CLOCK_KHZ")
        constants = {name: int(getattr(dut, name).value) for name in sizes}
        constants |= {"F32": int(dut.F32.value != 0), "ID": int(MAP["id"], 16), "INTERFACE": MAP["interface"]}
        self.model = Model(constants)
        self.outputs = [(name, getattr(dut, name)) for name in STATE]
        self.strobes = [(name, getattr(dut, name)) for name in COMMANDS]
        # `clearing`, and the register's value, in each cycle since the request was complete.
        self.cleared, self.found = None, None
        self.asked, self.answered, self.busy = [], 0, 0
        self.seen = collections.Counter()

    def write(self, address, word, strobes=15):
        self.aw.waiting.append((address,))
        self.w.waiting.append((word, strobes))

    def read(self, address):
        self.ar.waiting.append((address,))

    def idle(self):
        waits = any(end.waiting or end.offered is not None or end.taken for end in (self.aw, self.w, self.ar))
        return not waits and self.b.held is None and self.r.held is None

    def drive(self):
        inputs, rng = self.model.inputs, self.rng
        self.busy = max(self.busy - 1, 0) if self.busy or rng.random() >= self.clears else rng.randrange(1, 40)
        inputs["clearing"] = int(self.busy > 0)
        if rng.random() < 0.1:
            inputs["uptime"] = rng.getrandbits(32)
            inputs["fault"] = rng.getrandbits(1)
        if rng.random() < 0.01:
            inputs["counters"] = rng.getrandbits(64 * COUNT)
            put(self.dut.counters, inputs["counters"])
        for name in INPUTS:
            put(getattr(self.dut, name), inputs[name])
        for end in (self.aw, self.w, self.b, self.ar, self.r):
            end.drive()

    def sample(self, cycle):
        strobes = self.writes(cycle)
        for name, signal in self.outputs:
            got, wanted = get(signal), self.model.state[name]
            assert got == wanted, f"{name} is {got:x}, not {wanted:x}"
        given = {name for name, signal in self.strobes if get(signal)}
        assert given == strobes, f"commands {given}, not {strobes}"
        if given & {"clear_all", "job_load", "job_unload"}:
            # High from the next cycle on.
            self.busy = self.rng.randrange(2, 30)
        self.reads(cycle)

    def writes(self, cycle):
        strobes = set()
        answer = self.b.sample(cycle)
        if answer is not None:
            assert self.cleared, "an answer to no write"
            (address,), (word, enables) = self.aw.taken.popleft(), self.w.taken.popleft()
            allowed = self.model.answers(address, word, enables, self.cleared)
            where = f"write of {word:x} to {address:x}, strobes {enables:x}"
            assert answer[0] in allowed, f"{where}: answered {answer[0]}, not {allowed}"
            if answer[0] == OKAY:
                strobes = self.model.write(address, word)
                if any(field.always for field in self.model.commands(address, word)):
                    self.seen["always"] += self.cleared[-1]
                else:
                    assert not strobes or not self.cleared[-1], f"{where}: given while a place is being cleared"
            self.seen["write", address, answer[0], bool(self.model.commands(address, word))] += 1
            self.cleared = None
        self.aw.sample(cycle)
        self.w.sample(cycle)
        # The next write is decoded only after the last response is taken.
        complete = self.aw.taken and self.w.taken
        if complete and self.b.held is None:
            self.cleared = (self.cleared or []) + [self.model.inputs["clearing"]]
            assert len(self.cleared) <= 4, "a write is not answered"
        return strobes

    def reads(self, cycle):
        answer = self.r.sample(cycle)
        if answer is not None:
            assert self.found, "an answer to no read"
            (address,) = self.ar.taken.popleft()
            word, response = answer
            assert (response, word) in self.found, f"read of {address:x}: {response}, {word:x}, not of {self.found}"
            self.seen["read", address, response] += 1
            self.asked.append(answer)
            self.found = None
        self.ar.sample(cycle)
        if self.ar.taken and self.r.held is None:
            self.found = (self.found or []) + [self.model.read(self.ar.taken[0][0])]
            assert len(self.found) <= 4, "a read is not answered"


async def start(dut, rng, paces, **options):
    clock = Clock(dut)
    ends = Ends(dut, rng, paces, **options)
    names = ("awaddr", "awvalid", "wdata", "wstrb", "wvalid", "bready", "araddr", "arvalid", "rready")
    await clock.reset(*(getattr(dut, f"s_axil_{name}") for name in names), *(getattr(dut, name) for name in (*INPUTS, "counters")))
    clock.attach(ends)
    return clock, ends


def random_word(rng):
    return rng.choice((0, 1, 2, 3, 0xFFFFFFFF, rng.getrandbits(32), rng.getrandbits(32) & 3))


@cocotb.test()
async def every_register(dut):
    """Writes and reads of every register, with all strobes, and of unknown addresses."""
    rng = dice("regs")
    clock, ends = await start(dut, rng, (1.0,) * 5, clears=0)

    async def done():
        await clock.until(ends.idle, 100 * (len(ends.ar.waiting) + len(ends.aw.waiting)) + 100, "all answers")

    registers = [*REGISTERS, *range(COUNTERS, COUNTERS + 8 * COUNT, 4)]
    for word in (0xFFFFFFFF, 0x12345678, 0xEDCBA987, 0):
        for at in registers:
            # The last write's command must not refuse this write.
            ends.busy = 0
            ends.write(at, word)
            await done()
            ends.read(at)
            await done()
    for at in WRITABLE:
        for strobes in range(15):
            ends.write(at, rng.getrandbits(32), strobes)
    await done()
    # All addresses near by, and registers with one more address bit set.
    far = {at | 1 << bit for at in registers for bit in range(11, 16)}
    for at in (*range(0x700), *sorted(far), 0xFFFC):
        ends.read(at)
        # Writable registers were written above.
        if at not in WRITABLE:
            ends.write(at, rng.getrandbits(32))
    await done()
    for at in registers:
        assert ends.seen["read", at, OKAY] >= 4, f"{at:x} was not read"
        if at in WRITABLE:
            assert ends.seen["write", at, SLVERR, False] + ends.seen["write", at, SLVERR, True] >= 15


@cocotb.test()
async def any_pace(dut):
    rng = dice("regs paces")
    seen = collections.Counter()
    commands = [at for at in WRITABLE if any(field.access == "command" for field in REGISTERS[at])]
    # All channels at one pace, one channel slower or faster, and mixed paces.
    rounds = [(pace,) * 5 for pace in PACES]
    rounds += [tuple(slow if i == j else fast for j in range(5)) for slow, fast in ((0.1, 1.0), (1.0, 0.25)) for i in range(5)]
    rounds += [tuple(rng.choice(PACES) for _ in range(5)) for _ in range(4)]
    for paces in rounds:
        clock, ends = await start(dut, rng, paces)
        for _ in range(100):
            others = (rng.choice(WRITABLE), rng.choice([*REGISTERS]), rng.getrandbits(9) & ~3, rng.getrandbits(16))
            at = rng.choice((*commands, *commands, *others))
            ends.write(at, random_word(rng), rng.choice((15, 15, 15, 15, 15, rng.getrandbits(4))))
            at = rng.choice((at, rng.choice([*REGISTERS]), COUNTERS + 4 * rng.randrange(2 * COUNT + 2), rng.getrandbits(16)))
            ends.read(at)
        await clock.until(ends.idle, 20000, "all answers")
        for _ in range(5):
            await clock.step()
        seen += ends.seen
    for at in commands:
        assert seen["write", at, OKAY, True], f"no command at {at:x} was taken"
        refused = any(field.access == "command" and not field.always for field in REGISTERS[at])
        assert bool(seen["write", at, SLVERR, True]) or not refused, f"no command at {at:x} was refused"
    assert seen["always"], "no snapshot while a place was being cleared"


@cocotb.test()
async def one_waits_for_the_other(dut):
    """Address or data alone, and untaken responses, have no effect. A reset forgets all of them."""
    rng = dice("regs alone")
    names = {field.signal: at for at, fields in REGISTERS.items() for field in fields if field.access == "rw"}
    at = names["own_ip"]
    for first, second in (("aw", "w"), ("w", "aw")):
        for resets in (False, True):
            clock, ends = await start(dut, rng, (1.0,) * 5)
            getattr(ends, first).waiting.append({"aw": (at,), "w": (1234, 15)}[first])
            for _ in range(20):
                await clock.step()
            assert len(getattr(ends, first).taken) == 1, f"{first} waits for {second}"
            if resets:
                clock, ends = await start(dut, rng, (1.0,) * 5)
                ends.write(at, 77)
            else:
                getattr(ends, second).waiting.append({"aw": (at,), "w": (1234, 15)}[second])
            ends.read(0)
            await clock.until(ends.idle, 30, "answers")
            assert get(dut.own_ip) == (77 if resets else 1234)
    # While a response is not taken, at most one more request is taken, and it has no effect.
    clock, ends = await start(dut, rng, (1.0, 1.0, 0.0, 1.0, 0.0))
    for value in (1, 2, 3):
        ends.write(at, value)
        ends.read(at)
    for _ in range(30):
        await clock.step()
    assert get(dut.own_ip) == 1 and len(ends.aw.taken) <= 1 and len(ends.ar.taken) <= 1
    ends.b.pace = ends.r.pace = 1.0
    await clock.until(ends.idle, 60, "answers")
    assert get(dut.own_ip) == 3
    # A reset while both responses are not taken.
    clock, ends = await start(dut, rng, (1.0, 1.0, 0.0, 1.0, 0.0))
    ends.write(at, 5)
    ends.read(at)
    for _ in range(10):
        await clock.step()
    assert get(dut.s_axil_bvalid) and get(dut.s_axil_rvalid)
    clock, ends = await start(dut, rng, (1.0,) * 5)
    for _ in range(10):
        await clock.step()


@cocotb.test()
async def at_full_speed(dut):
    """Requests back to back, responses taken at once: at most four cycles each."""
    rng = dice("regs speed")
    clock, ends = await start(dut, rng, (1.0,) * 5)
    for _ in range(200):
        ends.write(rng.choice(WRITABLE), random_word(rng))
        ends.read(rng.choice([*REGISTERS]))
    before = clock.cycle
    await clock.until(ends.idle, 2000, "all answers")
    assert clock.cycle - before <= 4 * 200 + 4
