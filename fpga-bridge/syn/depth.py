"""How long the longest paths between registers are, by a rough model of an UltraScale+ device, from
yosys' JSON.

A guide to pipelining, no timing analysis: nothing is placed, and a wire is taken for the same delay
everywhere. The constants are round numbers of the right size for the
slowest speed grade.
"""

import collections

# Nanoseconds. A cell's delay, and that of the wire to it.
LUT, MUX, CARRY_IN, CARRY, WIRE = 0.15, 0.10, 0.20, 0.03, 0.35
FROM_REGISTER, TO_REGISTER = 0.10, 0.05
# Outputs of memories without a register of their own, and distributed memory.
FROM_BLOCK_RAM, FROM_ULTRA_RAM, LUT_RAM, TO_RAM = 1.20, 1.40, 0.45, 0.40


def kind_of(cell):
    kind = cell["type"]
    if kind.startswith(("FD", "LD")):
        return "register"
    if kind.startswith("RAMB"):
        return "block"
    if kind.startswith("URAM"):
        return "ultra"
    if kind.startswith("RAM") or kind.startswith("SRL"):
        return "lutram"
    if kind.startswith("CARRY"):
        return "carry"
    if kind.startswith("MUXF"):
        return "mux"
    if kind.startswith("DSP"):
        return "register"
    if kind.startswith(("BUFG", "IBUF", "OBUF")):
        return "buffer"
    return "lut"


CLOCKS = {"C", "CLK", "WCLK", "CLKARDCLK", "CLKBWRCLK"}


def paths(module, count):
    """The `count` longest paths to different registers.

    Each is (nanoseconds, levels of LUT, end, names from its start).
    """
    cells, names = module["cells"], {}
    for name, net in module["netnames"].items():
        for i, bit in enumerate(net["bits"]):
            # The shortest name that a person gave.
            label = f"{name}[{i}]" if len(net["bits"]) > 1 else name
            if not net.get("hide_name") and (bit not in names or len(label) < len(names[bit])):
                names[bit] = label
    driver, users = {}, collections.defaultdict(list)
    starts, waits = {}, {}
    ends = []
    for name, cell in cells.items():
        kind = kind_of(cell)
        outputs, inputs = [], []
        for port, bits in cell["connections"].items():
            if cell["port_directions"][port] == "output":
                outputs += [(port, b) for b in bits if not isinstance(b, str)]
            elif port not in CLOCKS:
                inputs += [(port, b) for b in bits if not isinstance(b, str)]
        if kind in ("register", "block", "ultra"):
            clock_to = {"register": FROM_REGISTER, "block": FROM_BLOCK_RAM, "ultra": FROM_ULTRA_RAM}[kind]
            for _, bit in outputs:
                starts[bit] = clock_to
            ends += [(bit, TO_REGISTER if kind == "register" else TO_RAM, name, port) for port, bit in inputs]
            continue
        if kind == "lutram":
            # Written at the clock, read through.
            addresses = [b for p, b in inputs if p.startswith(("A", "DPRA")) and not cell["type"].startswith("SRL")]
            ends += [(bit, TO_RAM, name, port) for port, bit in inputs]
            for _, bit in outputs:
                driver[bit] = (name, kind, addresses)
                if not addresses:
                    starts[bit] = LUT_RAM
            inputs = [("", b) for b in addresses]
            if not addresses:
                continue
        else:
            for _, bit in outputs:
                driver[bit] = (name, kind, [b for _, b in inputs])
    cost = {"lut": LUT + WIRE, "mux": MUX, "lutram": LUT_RAM + WIRE, "buffer": 0.0}

    # Arrival by depth first, without recursion; (time, levels, bit before it).
    arrival = {bit: (time, 0, None) for bit, time in starts.items()}
    for bit in {b for b, *_ in ends}:
        stack = [bit]
        while stack:
            at = stack[-1]
            if at in arrival:
                stack.pop()
                continue
            if at not in driver:
                arrival[at] = (0.0, 0, None)  # an input of the module
                stack.pop()
                continue
            name, kind, inputs = driver[at]
            missing = [b for b in inputs if b not in arrival]
            if missing:
                if at in waits:  # a loop through a cell, which the design has none of
                    arrival[at] = (0.0, 0, None)
                    stack.pop()
                    continue
                waits[at] = True
                stack += missing
                continue
            best = (0.0, 0, None)
            for before in inputs:
                time, levels, _ = arrival[before]
                if kind == "carry":
                    chained = driver.get(before, (None, None))[1] == "carry"
                    time += CARRY if chained else CARRY_IN + WIRE
                else:
                    time += cost[kind]
                best = max(best, (time, levels + (kind == "lut"), before), key=lambda x: x[0])
            arrival[at] = best
            stack.pop()

    longest = {}
    for bit, extra, cell, port in ends:
        time, levels, _ = arrival[bit]
        total = time + extra + WIRE
        # One path for each group of registers with one name.
        q = cells[cell]["connections"].get("Q", [None])[0]
        end = (names.get(q) or names.get(bit) or cell.split("$")[0] or cell).split("[")[0]
        if kind_of(cells[cell]) != "register":
            end = f"{cell.split('.genblk')[0].lstrip('$')}.{port}"
        if end not in longest or total > longest[end][0]:
            longest[end] = (total, levels, end, bit)
    result = []
    for total, levels, end, bit in sorted(longest.values(), reverse=True, key=lambda x: x[0])[:count]:
        way = []
        while bit is not None:
            if bit in names and names[bit].split("[")[0] not in way[-1:]:
                way.append(names[bit].split("[")[0])
            bit = arrival[bit][2]
        result.append((total, levels, end, list(reversed(way))))
    return result
