"""Bench of tally_jobs against a table in Python: commands at any time, walks of any length.

A command is executed if none is in progress, and lost otherwise. The table changes only by a
command, and only after the pipeline was quiet for so long that no frame is in flight.
"""

import collections

import cocotb

from bench import PACES, Clock, dice, get, put

# Cycles of `quiet` in a row after which no frame is in flight, and until the command is executed.
SILENCE, SOON = 15, 18
REGISTERS = {"number": 16, "epoch": 16, "units": 8, "workers": 8, "ports": 16, "hash": 32}
ORDERS = ("clear_all", "unload", "load")  # commands; the first of several at once counts


class Model:
    def __init__(self, dut):
        self.jobs, self.members = int(dut.JOBS.value), int(dut.MEMBERS.value)
        self.table = {}

    def carry_out(self, order, place, values):
        if order == "load":
            workers = min(values["workers"], self.members)
            self.table[place] = values | {"all": (1 << workers) - 1}
        elif order == "unload":
            self.table.pop(place, None)
        else:
            self.table.clear()


class Ends:
    def __init__(self, dut, rng, orders, silent, walks):
        self.dut, self.rng, self.orders, self.silent, self.walks = dut, rng, orders, silent, walks
        # Commands (name, place) to be given as soon as possible, in this order.
        self.script = collections.deque()
        self.model = Model(dut)
        # The command in progress. A reset clears all places.
        self.order = ("clear_all", None, None)
        # Whether its walk has begun; cycles of silence before, left of the walk, and after it.
        self.walking, self.silence, self.left, self.over = False, 0, None, None
        self.stays, self.counts = 0, collections.Counter()
        self.sizes = REGISTERS | {"all": self.model.members}

    def drive(self):
        dut, rng, model = self.dut, self.rng, self.model
        self.given = [name for name in ORDERS if rng.random() < self.orders]
        # Mostly one command at a time.
        if len(self.given) > 1 and rng.random() < 0.5:
            self.given = [rng.choice(self.given)]
        if self.given == ["clear_all"] and rng.random() < 0.7:
            self.given = ["load"]
        self.place = rng.randrange(model.jobs)
        if self.script and self.order is None:
            name, self.place = self.script.popleft()
            self.given = [name]
        for name in ORDERS:
            put(getattr(dut, name), int(name in self.given))
        self.values = {name: rng.getrandbits(size) for name, size in REGISTERS.items()}
        if rng.random() < 0.7:
            self.values["workers"] = rng.randrange(2, model.members + 1)
        for name, value in self.values.items():
            put(getattr(dut, name), value)
        put(dut.select, self.place)
        # Silence and traffic come in stretches.
        if self.stays == 0:
            self.quiet = int(rng.random() < self.silent)
            self.stays = rng.choice((1, 2, 5, 13, 14, 15, 16, 17, 40))
        self.stays -= 1
        # Once no frame is in flight, no frame comes until the command is executed.
        if self.order is not None and self.silence >= SILENCE:
            self.quiet = 1
        put(dut.quiet, self.quiet)
        self.walked = int(self.left == 0)
        put(dut.walked, self.walked)

    def sample(self, cycle):
        dut, model = self.dut, self.model
        busy, walk, live = get(dut.busy), get(dut.walk), get(dut.live)
        assert get(dut.hold) == busy, "frames are let in, or kept, at the wrong time"
        self.under_way(busy, walk, live)
        wanted = sum(1 << place for place in model.table)
        assert live == wanted, f"live is {live:b}, not {wanted:b}"
        for name, size in self.sizes.items():
            bits = getattr(dut, f"job_{name}")._handle.get_signal_val_binstr()
            for place, values in model.table.items():
                # The registers of an empty place may be unknown.
                end = len(bits) - size * place
                got = bits[end - size : end]
                assert got == f"{values[name]:0{size}b}", f"{name} of place {place} is {got}, not {values[name]:b}"
        if self.order is None and self.given:
            order = next(name for name in ORDERS if name in self.given)
            self.order = (order, self.place, self.values)
            self.walking, self.silence, self.left, self.over = False, 0, None, None
            self.counts[order] += 1
        elif self.order is not None:
            self.counts["lost"] += bool(self.given)
            if not self.walking:
                self.silence = self.silence + 1 if self.quiet else 0
            elif self.walked:
                self.left, self.over = None, 0
            elif self.left is not None:
                self.left -= 1

    def under_way(self, busy, walk, live):
        """Follows the command in progress, and updates the model in the module's cycle."""
        dut, model = self.dut, self.model
        if self.order is None:
            assert not busy and not walk, "busy without an order"
            return
        kind, place, _ = self.order
        if self.walking:
            assert not walk, "two walks"
            assert get(dut.walk_all) == (kind == "clear_all")
            assert kind == "clear_all" or get(dut.walk_place) == place, "the place changed on the way"
            if self.over is None:
                assert busy, "not busy before the walk is over"
                return
            self.over += 1
            assert not busy or self.over < 3, "busy after the walk"
            if not busy:
                self.order = None
            return
        if kind == "load":
            assert not walk, "a walk of a place that is loaded"
            done = not busy
        else:
            assert busy, "not busy before the walk"
            done = bool(walk)
        assert not done or self.silence >= SILENCE, f"after {self.silence} cycles of silence"
        assert done or self.silence < SOON, "never carried out"
        if done:
            model.carry_out(*self.order)
            if kind == "load":
                self.order = None
            else:
                assert get(dut.walk_all) == (kind == "clear_all")
                assert kind == "clear_all" or get(dut.walk_place) == place
                self.walking, self.left = True, self.rng.randrange(*self.walks)


async def start(dut, rng, *paces):
    clock = Clock(dut)
    inputs = (*ORDERS, *REGISTERS, "select", "quiet", "walked")
    await clock.reset(*(getattr(dut, name) for name in inputs))
    return clock, clock.attach(Ends(dut, rng, *paces))


@cocotb.test()
async def as_ordered(dut):
    rng, counts = dice("jobs"), collections.Counter()
    for orders in (0.01, 0.1, 0.6):
        for silent in PACES:
            for walks in ((1, 2), (1, 40)):
                # A reset comes at any time.
                clock, ends = await start(dut, rng, orders, silent, walks)
                for _ in range(500):
                    await clock.step()
                counts += ends.counts
    assert all(counts[name] > 10 for name in (*ORDERS, "lost")), counts


@cocotb.test()
async def each_place(dut):
    """All places are loaded, reloaded, unloaded one by one, loaded again and cleared at once."""
    rng = dice("jobs places")
    clock, ends = await start(dut, rng, 0.0, 1.0, (1, 5))
    places = list(range(ends.model.jobs))

    async def order(name, those):
        ends.script.extend((name, place) for place in those)
        await clock.until(lambda: not ends.script and ends.order is None, 100 * len(places) + 100, "all orders")
        return sorted(ends.model.table)

    assert await order("load", places) == places
    assert await order("load", rng.sample(places, len(places))) == places
    for place in rng.sample(places, len(places)):
        assert place not in await order("unload", [place])
    assert await order("unload", places) == []
    assert await order("load", places) == places
    assert await order("clear_all", [places[-1]]) == []
