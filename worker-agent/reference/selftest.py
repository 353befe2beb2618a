"""Tests of check.py, run by `check.py --self-test`.

The arithmetic is done a second time here, one element at a time on Python's integers and
fractions, with no numpy and no float in the way; then whole runs go through the command
line, right ones and ones with a single bit wrong. A checker that cannot fail proves
nothing, so most of these tests are about failing.
"""

import contextlib
import io
import json
import os
import pathlib
import random
import struct
import tempfile
import time
import unittest
from fractions import Fraction

import numpy as np

import check

SEED = int(os.environ.get("SEED", "0"), 0) or time.time_ns() & 0xFFFFFFFF
GRADIENTS = pathlib.Path(__file__).resolve().parent.parent / "gradients"
NAN = 0x7FC00000


# --- binary formats of IEEE 754, on integers ---------------------------------------------


class Format:
    def __init__(self, exponent_bits, fraction_bits):
        self.p = fraction_bits
        self.top = (1 << exponent_bits) - 1
        self.bias = self.top >> 1
        self.sign_at = exponent_bits + fraction_bits

    def parts(self, bits):
        return bits >> self.sign_at, bits >> self.p & self.top, bits & (1 << self.p) - 1

    def is_nan(self, bits):
        _, e, f = self.parts(bits)
        return e == self.top and f != 0

    def is_inf(self, bits):
        _, e, f = self.parts(bits)
        return e == self.top and f == 0

    def inf(self, negative):
        return int(negative) << self.sign_at | self.top << self.p

    def value(self, bits):
        negative, e, f = self.parts(bits)
        magnitude = Fraction(f + (1 << self.p if e else 0)) * Fraction(2) ** (max(e, 1) - self.bias - self.p)
        return -magnitude if negative else magnitude

    def nearest(self, value, negative_zero=False):
        """Round to nearest, ties to even: find the binade, then round the integer in it."""
        if value == 0:
            return int(negative_zero) << self.sign_at
        magnitude = abs(value)
        # 2^(guess - 1) < magnitude < 2^(guess + 1)
        guess = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
        e = max(guess - 1 + self.bias, 1)
        quantum = Fraction(2) ** (e - self.bias - self.p)
        while magnitude >= quantum * 2 ** (self.p + 1):
            quantum, e = quantum * 2, e + 1
        whole = nearest_integer(magnitude / quantum)
        # the carry out of the fraction is the next exponent, and out of that infinity
        bits = whole if whole < 1 << self.p else (e << self.p) + whole - (1 << self.p)
        if bits >= self.top << self.p:
            bits = self.top << self.p
        return int(value < 0) << self.sign_at | bits


def nearest_integer(x):
    floor = x.numerator // x.denominator
    rest = x - floor
    return floor + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and floor % 2 == 1))


F32, F16, BF16 = Format(8, 23), Format(5, 10), Format(8, 7)


def slow_widen(bits, fmt):
    if fmt.is_nan(bits) or fmt.is_inf(bits):
        sign, _, f = fmt.parts(bits)
        return sign << 31 | 0x7F800000 | f << (23 - fmt.p)
    return F32.nearest(fmt.value(bits), negative_zero=bits >> fmt.sign_at == 1)


def slow_narrow(bits, fmt):
    sign, _, f = F32.parts(bits)
    if F32.is_nan(bits):
        return fmt.inf(sign) | 1 << (fmt.p - 1) | f >> (23 - fmt.p)
    if F32.is_inf(bits):
        return fmt.inf(sign)
    # a tiny negative number rounds to -0, and so nearest() must see its sign
    return fmt.nearest(F32.value(bits), negative_zero=sign == 1)


def slow_add(a, b):
    if F32.is_nan(a) or F32.is_nan(b):
        return NAN
    if F32.is_inf(a) or F32.is_inf(b):
        if F32.is_inf(a) and F32.is_inf(b) and a != b:
            return NAN
        return a if F32.is_inf(a) else b
    return F32.nearest(F32.value(a) + F32.value(b), negative_zero=a == b == 0x80000000)


def slow_mean(bits, n):
    if n == 1 or F32.is_nan(bits) or F32.is_inf(bits):
        return bits
    return F32.nearest(F32.value(bits) / n, negative_zero=bits >> 31 == 1)


def slow_native(rows):
    out = []
    for column in zip(*rows):
        total = column[0]
        for bits in column[1:]:
            total = slow_add(total, bits)
        out.append(total)
    return out


def slow_fixed(rows, fragment_elements):
    """Section 8 as it is written, once rounding after f32() and once after the product, and
    once rounding only the exact quotient: all must agree."""
    n, out = len(rows), []
    for start in range(0, len(rows[0]), fragment_elements):
        columns = list(zip(*rows))[start : start + fragment_elements]
        e = max(bits >> 23 & 0xFF for column in columns for bits in column)
        if e == 255:
            out += [NAN] * len(columns)
            continue
        c = 0
        # B-1: one more from 129 workers on.
        while 1 << c < n + (n > 128):
            c += 1
        s = 31 - c - (max(e, 1) - 126)
        for column in columns:
            total = sum(nearest_integer(F32.value(bits) * Fraction(2) ** s) for bits in column)
            assert -(1 << 31) <= total < 1 << 31, "B-3 promises that the sum fits"
            once = F32.nearest(total * Fraction(2) ** -s)
            rounded = F32.value(F32.nearest(Fraction(total)))
            assert F32.nearest(rounded * Fraction(2) ** -s) == once, "B-4 would round twice"
            out.append(once)
    return out


# --- inputs that hurt --------------------------------------------------------------------

EXTREMES = [
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x80800001, 0x00FFFFFF,
    0x01000001, 0x3F800000, 0xBF800001, 0x3F7FFFFF, 0x4B7FFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F000001,
]  # fmt: skip
NOT_FINITE = [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001, 0x7FC12345]


def random_f32(rng, flavour):
    if flavour == "extremes":
        return rng.choice(EXTREMES)
    if flavour == "not finite":
        return rng.choice(EXTREMES + NOT_FINITE)
    if flavour == "anything finite":
        return rng.getrandbits(1) << 31 | rng.randrange(0x7F800000)
    lowest, highest = {"subnormal": (0, 0), "tiny": (0, 12), "alike": (120, 128), "huge": (246, 254)}[flavour]
    return rng.getrandbits(1) << 31 | rng.randint(lowest, highest) << 23 | rng.getrandbits(23)


FLAVOURS = ["extremes", "not finite", "anything finite", "subnormal", "tiny", "alike", "huge"]


def random_rows(rng, flavour, n, elements):
    return [[random_f32(rng, flavour) for _ in range(elements)] for _ in range(n)]


def array(rows):
    return np.array(rows, "<u4")


class Arithmetic(unittest.TestCase):
    def setUp(self):
        self.rng = random.Random(SEED)
        quiet = np.errstate(all="ignore")
        quiet.__enter__()
        self.addCleanup(quiet.__exit__)

    def same(self, found, expected, about):
        found = [int(x) for x in found]
        for i, (f, e) in enumerate(zip(found, expected)):
            self.assertEqual(f, e, f"{about}: element {i}: {f:#x} is not {e:#x}, seed {SEED}")
        self.assertEqual(len(found), len(expected))

    def test_the_slow_formats_agree_with_python(self):
        for fmt, code in ((F32, "<f"), (F16, "<e")):
            for bits in EXTREMES + [self.rng.getrandbits(32) for _ in range(500)]:
                bits &= (1 << fmt.sign_at + 1) - 1
                if fmt.is_nan(bits) or fmt.is_inf(bits):
                    continue
                packed = bits.to_bytes((fmt.sign_at + 1) // 8, "little")
                self.assertEqual(Fraction(struct.unpack(code, packed)[0]), fmt.value(bits))
                self.assertEqual(fmt.nearest(fmt.value(bits), bits >> fmt.sign_at == 1), bits)

    def test_every_f16_and_bf16_widens_and_returns(self):
        words = np.arange(1 << 16, dtype="<u2")
        for name, fmt in (("F16", F16), ("BF16", BF16)):
            wide = check.widen(words, name)
            self.same(wide, [slow_widen(w, fmt) for w in range(1 << 16)], name)
            back = check.narrow(wide, name)
            quiet = 1 << (fmt.p - 1)
            self.same(back, [w | quiet if fmt.is_nan(w) else w for w in range(1 << 16)], f"{name} back")

    def test_narrowing_rounds_to_nearest_even(self):
        for name, fmt in (("F16", F16), ("BF16", BF16)):
            bits = EXTREMES + NOT_FINITE + [self.rng.getrandbits(32) for _ in range(2000)]
            for word in [self.rng.getrandbits(16) for _ in range(1000)] + [0x7BFF, 0xFBFF, 0x7F7F, 0, 1, 0x03FF]:
                if not fmt.is_nan(word) and not fmt.is_inf(word):
                    # between two words one bit apart, and a hair to both sides
                    middle = (fmt.value(word) + fmt.value(word ^ 1)) / 2
                    half = F32.nearest(middle)
                    bits += [half, half + 1, max(half - 1, 0)]
            self.same(check.narrow(array(bits), name), [slow_narrow(b, fmt) for b in bits], name)
        # 65520 rounds to infinity.
        self.assertEqual(int(check.narrow(array([0x477FF000]), "F16")[0]), 0x7C00)
        self.assertEqual(int(check.narrow(array([0x7F7FFFFF]), "BF16")[0]), 0x7F80)

    def test_native_fold(self):
        for n in (1, 2, 3, 8, 64):
            for flavour in FLAVOURS:
                rows = random_rows(self.rng, flavour, n, 40)
                expected = slow_native(rows)
                found = check.native_sum(array(rows))
                self.same(found, expected, f"{flavour}, n = {n}")
                mean = check.mean_of(found, n)
                self.same(mean, [slow_mean(b, n) for b in expected], f"mean, {flavour}, n = {n}")

    def test_native_order_matters_and_nans_are_canonical(self):
        one, big, minus_big = 0x3F800000, 0x7F000000, 0xFF000000
        self.same(check.native_sum(array([[one], [big], [minus_big]])), [0], "1 lost")
        self.same(check.native_sum(array([[big], [minus_big], [one]])), [one], "1 kept")
        self.same(check.native_sum(array([[0x7F800000, 0xFFC00001], [0xFF800000, one]])), [NAN, NAN], "NaN")
        self.same(check.native_sum(array([[0x7F812345]])), [0x7F812345], "a lone NaN")
        self.same(check.native_sum(array([[0x80000000]] * 2)), [0x80000000], "-0 + -0")

    def test_a_ring_folds_each_chunk_from_the_member_behind_its_owner(self):
        one, big = 0x3F800000, 0x4B800000  # 1 and 2^24: 2^24 + 1 is 2^24
        plain = lambda bits: bits
        rows = array([[one] * 3, [big] * 3, [one] * 3])
        # Chunk 0: 1, 2, 0; chunk 1: 2, 0, 1; chunk 2: 0, 1, 2.
        want = [big, 0x4B800001, big]
        self.same(check.ring_sum([[0], [1], [2]], rows, 0, 3, plain), want, "three members")
        self.same(check.ring_sum([[0], [1], [2]], rows[:, :1], 2, 3, plain), want[2:], "the last of three")
        # A rack: what came is added to its first rank's, then the others.
        self.same(check.ring_sum([[0, 1], [2]], rows[:, :2], 0, 2, plain), [0x4B800001, big], "a rack")
        self.same(check.ring_sum([[0, 1, 2]], rows[:, :1], 0, 1, plain), [big], "one rack")

    def test_a_tree_folds_at_each_switch(self):
        def slow(tree, rows):
            parts = [[rows[node]] if isinstance(node, int) else [slow(node, rows)] for node in tree]
            return slow_native([part[0] for part in parts])

        plain = lambda bits: bits
        for tree in ([[0, 1], [2, 3, 4]], [0, [1, [2, 3]], [4]], [[[[0]], [1, 2, 3, 4]]]):
            for flavour in FLAVOURS:
                rows = random_rows(self.rng, flavour, 5, 40)
                self.same(check.tree_sum(tree, array(rows), plain), slow(tree, rows), f"{flavour}, {tree}")
        one, big, minus_big = 0x3F800000, 0x7F000000, 0xFF000000
        rows = array([[one], [big], [minus_big]])
        self.same(check.tree_sum([0, 1, 2], rows, plain), [0], "1 lost")
        self.same(check.tree_sum([0, [1, 2]], rows, plain), [one], "1 kept")
        # 2049 is no f16: the lower switch rounds it to 2048, the upper one adds 1 twice.
        halves = lambda bits: check.widen(check.narrow(bits, "F16"), "F16")
        rows = array([[0x45000000], [one], [one]])
        self.same(check.tree_sum([[0, 1], 2], rows, halves), [0x45000000], "rounded at each switch")
        self.same(check.tree_sum([0, [1, 2]], rows, halves), [0x45002000], "rounded once")

    def test_fixed_point(self):
        for n in (1, 2, 3, 4, 5, 8, 33, 63, 64, 129):
            for flavour in FLAVOURS:
                rows = random_rows(self.rng, flavour, n, 48)
                expected = slow_fixed(rows, 16)
                found = check.fixed_sum(array(rows), 16)
                self.same(found, expected, f"{flavour}, n = {n}")
                mean = check.mean_of(found, n)
                self.same(mean, [slow_mean(b, n) for b in expected], f"mean, {flavour}, n = {n}")

    def test_fixed_point_at_every_exponent(self):
        for n in (1, 2, 5, 64):
            rows = [[] for _ in range(n)]
            for e in range(255):
                for row in rows:
                    row += [self.rng.getrandbits(1) << 31 | e << 23 | self.rng.getrandbits(23)]
                    row += [self.rng.getrandbits(1) << 31 | self.rng.randint(max(e - 26, 0), e) << 23
                            | self.rng.getrandbits(23)]
            self.same(check.fixed_sum(array(rows), 2), slow_fixed(rows, 2), f"n = {n}")

    def test_fixed_point_at_the_edge_of_i32(self):
        for n in (1, 2, 3, 32, 33, 64):
            for bits in (0x3FFFFFFF, 0xBFFFFFFF, 0x7F7FFFFF, 0x007FFFFF):
                rows = [[bits] * 16 for _ in range(n)]
                self.same(check.fixed_sum(array(rows), 16), slow_fixed(rows, 16), f"{n} x {bits:#x}")

    def test_one_infinity_spoils_its_fragment_and_no_other(self):
        rows = [[0x3F800000] * 32 for _ in range(3)]
        rows[1][20] = 0xFF800000
        self.same(check.fixed_sum(array(rows), 16), [0x40400000] * 16 + [NAN] * 16, "infinity")

    def test_synthetic_data_is_as_specified(self):
        def splitmix64(z):
            z = (z + 0x9E3779B97F4A7C15) % 2**64
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
            z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
            return z ^ z >> 31

        # First output of the published generator.
        self.assertEqual(splitmix64(0), 0xE220A8397B1DCDAF)
        for seed, rank, lo in ((0, 0, 0), (7, 3, 1000), (2**64 - 1, 63, 2**40 - 100)):
            expected = []
            for i in range(lo, lo + 100):
                x = splitmix64((seed * 0x9E3779B97F4A7C15 + rank * 2**40 + i) % 2**64)
                value = Fraction((x >> 40) - 2**23) / 2**23 / 2 ** (x & 0xF)
                expected.append(F32.nearest(value))
                self.assertEqual(F32.value(expected[-1]), value)
            self.same(check.synthetic(seed, rank, lo, lo + 100).view("<u4"), expected, f"seed {seed}")


# --- whole runs --------------------------------------------------------------------------


def write(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}, in the order given"""
    header, blobs, end = {}, b"", 0
    for name, (dtype, shape, blob) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(blob)]}
        blobs, end = blobs + blob, end + len(blob)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + blobs)
    return str(path)


def words(values, size=4):
    return b"".join((v % (1 << 8 * size)).to_bytes(size, "little") for v in values)


def run(*args):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = check.main([str(a) for a in args])
    return status, out.getvalue()


class CommandLine(unittest.TestCase):
    def setUp(self):
        self.rng = random.Random(SEED)
        kept = tempfile.TemporaryDirectory(prefix="tally-check-")
        self.addCleanup(kept.cleanup)
        self.dir = pathlib.Path(kept.name)

    def files(self, kind, per_worker):
        return [write(self.dir / f"{kind}{r}.safetensors", t) for r, t in enumerate(per_worker)]

    def mixed_job(self, n):
        """Inputs with every type, an empty tensor, a scalar, names out of order and a header of
        odd length, and its results by the slow arithmetic (native, sum)."""
        shapes = {"z": ("F32", [5, 7]), "é": ("F16", [9]), "a.b": ("BF16", [3, 1, 2]), "A": ("I32", [6]),
                  "empty": ("F32", [0, 4]), "s": ("F32", []), "k": ("I32", [])}  # fmt: skip
        formats = {"F32": F32, "F16": F16, "BF16": BF16}
        inputs, results = [{} for _ in range(n)], {}
        for name, (dtype, shape) in shapes.items():
            count = int(np.prod(shape, dtype=int))
            if dtype == "I32":
                rows = [[self.rng.randint(-(2**24), 2**24) for _ in range(count)] for _ in range(n)]
                size, result = 4, [sum(c) for c in zip(*rows)]
            else:
                fmt = formats[dtype]
                size = (fmt.sign_at + 1) // 8
                rows = [[self.rng.getrandbits(8 * size) for _ in range(count)] for _ in range(n)]
                wide = [[slow_widen(w, fmt) for w in row] for row in rows]
                result = [slow_narrow(b, fmt) if dtype != "F32" else b for b in slow_native(wide)]
            for tensors, row in zip(inputs, rows):
                tensors[name] = (dtype, shape, words(row, size))
            results[name] = (dtype, shape, words(result, size))
        return inputs, results

    def test_mixed_types_pass_and_any_flipped_bit_fails(self):
        n = 3
        inputs, results = self.mixed_job(n)
        ins, outs = self.files("in", inputs), self.files("out", [results] * n)
        command = ["--arithmetic", "native", "--inputs", *ins, "--outputs", *outs]
        elements = 35 + 9 + 6 + 6 + 0 + 1 + 1
        self.assertEqual(run(*command), (0, f"exact: {n} workers x {elements} elements\n"), f"seed {SEED}")

        for _ in range(60):
            worker = self.rng.randrange(n)
            name = self.rng.choice([k for k, v in results.items() if v[2]])
            dtype, shape, blob = results[name]
            bit = self.rng.randrange(8 * len(blob))
            flipped = bytearray(blob)
            flipped[bit // 8] ^= 1 << bit % 8
            good = pathlib.Path(outs[worker]).read_bytes()
            write(pathlib.Path(outs[worker]), {**results, name: (dtype, shape, bytes(flipped))})
            status, said = run(*command)
            size = {"F16": 2, "BF16": 2}.get(dtype, 4)
            self.assertEqual(status, 1)
            self.assertIn(f"worker {worker}: tensor {name} index {bit // 8 // size}: expected", said)
            self.assertIn(f"different: 1 differences, in workers {worker}", said)
            pathlib.Path(outs[worker]).write_bytes(good)
        self.assertEqual(run(*command)[0], 0)

    def test_tensors_in_their_own_types(self):
        # A sum is rounded once either way; a mean is that of the rounded sum.
        n = 3
        inputs, results = self.mixed_job(n)
        ins, outs = self.files("in", inputs), self.files("out", [results] * n)
        command = ["--arithmetic", "own", "--inputs", *ins, "--outputs", *outs]
        self.assertEqual(run(*command)[0], 0, f"seed {SEED}")
        # 2048 + 1 is 2048 in f16, so that the mean of two is 1024; unrounded it would be 1024.5.
        job = lambda row, dtype, size: {"h": (dtype, [1], words(row, size))}
        ins = self.files("in", [job([0x6800], "F16", 2), job([0x3C00], "F16", 2)])
        for arithmetic, mean in (("own", 0x6400), ("native", 0x6400), ("own", 0x6401)):
            outs = self.files("out", [job([mean], "F16", 2)] * 2)
            status, _ = run("--arithmetic", arithmetic, "--op", "mean", "--inputs", *ins, "--outputs", *outs)
            self.assertEqual(status, mean != 0x6400)
        for dtype, size, limit in (("I16", 2, 2**15), ("I8", 1, 2**7)):
            ins = self.files("in", [job([v], dtype, size) for v in (limit - 1, limit - 1, 1 - limit, 1 - limit)])
            outs = self.files("out", [job([0], dtype, size)] * 4)
            self.assertEqual(run("--arithmetic", "own", "--inputs", *ins, "--outputs", *outs)[0], 0)
            ins = self.files("in", [job([v], dtype, size) for v in (limit - 1, 0, 0, 1)])
            status, said = run("--arithmetic", "own", "--inputs", *ins, "--outputs", *outs)
            self.assertEqual((status, said[:26]), (1, "overflow: h index 0: the s"))

    def test_synthetic_tensors_of_every_type(self):
        x = [int(v) >> 40 for v in check.synthetic_words(7, 0, 0, 50)]
        for dtype, shift, size in (("i32", 0, 4), ("i16", 14, 2), ("i8", 22, 1)):
            result = [(v - 2**23) >> shift for v in x]
            outs = self.files("out", [{"gradient": (dtype.upper(), [50], words(result, size))}])
            command = ["--synthetic", 7, "--elements", 50, "--workers", 1, "--element", dtype, "--outputs", *outs]
            self.assertEqual(run("--arithmetic", "own", *command)[0], 0, dtype)
        for dtype, fmt in (("f16", F16), ("bf16", BF16)):
            result = [slow_narrow(int(v), fmt) for v in check.synthetic(7, 0, 0, 50).view("<u4")]
            outs = self.files("out", [{"gradient": (dtype.upper(), [50], words(result, 2))}])
            command = ["--synthetic", 7, "--elements", 50, "--workers", 1, "--element", dtype, "--outputs", *outs]
            self.assertEqual(run("--arithmetic", "own", *command)[0], 0, dtype)

    def test_fixed_point_begins_anew_at_each_tensor(self):
        # 16-element fragments: "a" ends in the middle of its second.
        n, rows = 2, [[random_f32(self.rng, "alike") for _ in range(53)] for _ in range(2)]
        rows[0][20] = 0x7F800000  # spoils the end of "a", and nothing of "b"
        pad = lambda rows: slow_fixed([r + [0] * (-len(r) % 16) for r in rows], 16)[: len(rows[0])]
        result = pad([r[:23] for r in rows]) + pad([r[23:] for r in rows])
        cut = lambda v: {"b": ("F32", [30], words(v[23:])), "a": ("F32", [23], words(v[:23]))}
        ins, outs = self.files("in", map(cut, rows)), self.files("out", [cut(result)] * n)
        command = ["--arithmetic", "fixed", "--inputs", *ins, "--outputs", *outs, "--payload"]
        self.assertEqual(run(*command, 64)[0], 0)
        self.assertEqual(run(*command, 128)[0], 1, "another payload is another result")
        mean = [slow_mean(b, n) for b in result]
        self.files("out", [cut(mean)] * n)
        self.assertEqual(run(*command, 64, "--op", "mean")[0], 0)
        self.assertEqual(run(*command, 64)[0], 1)

    def test_one_worker_in_its_own_type_keeps_the_bits_of_a_nan(self):
        signalling = {"h": ("F16", [2], words([0x7C01, 0xFC02], 2)), "b": ("BF16", [1], words([0x7F81], 2))}
        quiet = {"h": ("F16", [2], words([0x7E01, 0xFE02], 2)), "b": ("BF16", [1], words([0x7FC1], 2))}
        ins = self.files("in", [signalling])
        for arithmetic, result in (("own", signalling), ("native", quiet)):
            for op in ("sum", "mean"):
                outs = self.files("out", [result])
                command = ["--arithmetic", arithmetic, "--op", op, "--inputs", *ins, "--outputs", *outs]
                self.assertEqual(run(*command)[0], 0, f"{arithmetic} {op}")

    def test_rank_order_is_part_of_a_native_sum(self):
        rows = [[0x3F800000], [0x7F000000], [0xFF000000]]
        ins = self.files("in", [{"g": ("F32", [1], words(r))} for r in rows])
        outs = self.files("out", [{"g": ("F32", [1], words([0]))}] * 3)
        self.assertEqual(run("--arithmetic", "native", "--inputs", *ins, "--outputs", *outs)[0], 0)
        self.assertEqual(run("--arithmetic", "native", "--inputs", *ins[::-1], "--outputs", *outs)[0], 1)

    def test_a_tree_is_nested_ranks_in_their_order(self):
        rows = [[0x3F800000], [0x7F000000], [0xFF000000]]
        ins = self.files("in", [{"g": ("F32", [1], words(r))} for r in rows])
        outs = self.files("out", [{"g": ("F32", [1], words([0x3F800000]))}] * 3)
        command = ["--arithmetic", "native", "--inputs", *ins, "--outputs", *outs, "--tree"]
        self.assertEqual(run(*command, "[0, [1, 2]]")[0], 0)
        self.assertEqual(run(*command, "[[0, 1], 2]")[0], 1)
        for bad in ("[0, [2, 1]]", "[0, 1]", "[0, [1, 2], 3]"):
            status, said = run(*command, bad)
            self.assertEqual((status, said[:19]), (2, "refused: --tree has"), bad)
        for bad in ("7", "[]", "[0, [], [1, 2]]", "[0, true]", "[0", '{"0": 1}'):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                check.arguments([*command, bad])

    def test_integers(self):
        def job(rows, result, *more):
            ins = self.files("in", [{"c": ("I32", [len(r)], words(r))} for r in rows])
            outs = self.files("out", [{"c": ("I32", [len(result)], words(result))}] * len(rows))
            return run("--arithmetic", "native", "--inputs", *ins, "--outputs", *outs, *more)

        self.assertEqual(job([[7, -7, 2**31 - 1], [1, -1, -5]], [8, -8, 2**31 - 6])[0], 0)
        self.assertEqual(job([[7, -7, -1], [2, -2, 0]], [4, -4, 0], "--op", "mean")[0], 0)
        self.assertEqual(job([[7, -7, -1], [2, -2, 0]], [4, -5, -1], "--op", "mean")[0], 1)
        for sign, limit in ((1, 2**31 - 1), (-1, -(2**31))):
            status, said = job([[0, limit], [0, sign]], [0, limit])
            self.assertEqual((status, said[:26]), (1, "overflow: c index 1: the s"))

    def test_structure_of_outputs(self):
        inputs, results = self.mixed_job(2)
        ins, outs = self.files("in", inputs), self.files("out", [results] * 2)
        command = ["--arithmetic", "native", "--inputs", *ins, "--outputs", *outs]
        dtype, shape, blob = results["z"]
        wrong = {
            "a missing tensor": {k: v for k, v in results.items() if k != "empty"},
            "one too many": {**results, "extra": ("F32", [1], words([0]))},
            "another shape": {**results, "z": (dtype, shape[::-1], blob)},
            "another type": {**results, "z": ("I32", shape, blob)},
            "an unknown type": {**results, "z": ("F64", [1], blob[:8])},
        }
        for about, tensors in wrong.items():
            write(pathlib.Path(outs[1]), tensors)
            status, said = run(*command)
            self.assertEqual((status, said.splitlines()[-1]), (1, "different: 1 differences, in workers 1"), about)
        pathlib.Path(outs[1]).write_bytes(pathlib.Path(outs[0]).read_bytes()[:-1])
        self.assertEqual(run(*command)[0], 1, "a file cut short")
        pathlib.Path(outs[1]).unlink()
        self.assertEqual(run(*command)[0], 1, "no file")

    def test_inputs_that_are_refused(self):
        one = ("F32", [1], words([0]))
        for about, second in {
            "f64": {"g": ("F64", [1], bytes(8))},
            "i64": {"g": ("I64", [1], bytes(8))},
            "other names": {"h": one},
            "other shapes": {"g": ("F32", [], words([0]))},
        }.items():
            for inputs in ([{"g": one}, second], [second, {"g": one}]):
                ins = self.files("in", inputs)
                outs = self.files("out", [{"g": one}] * 2)
                status, said = run("--arithmetic", "native", "--inputs", *ins, "--outputs", *outs)
                self.assertEqual((status, said[:8]), (2, "refused:"), about)
        status, _ = run("--arithmetic", "native", "--inputs", *ins, "--outputs", outs[0])
        self.assertEqual(status, 2, "outputs of one worker are missing")
        pathlib.Path(ins[0]).write_bytes(bytes(7))
        self.assertEqual(run("--arithmetic", "native", "--inputs", *ins, "--outputs", *outs)[0], 2)

    def test_synthetic_run_over_many_chunks(self):
        n, elements, payload = 3, 2 * check.CHUNK_ELEMENTS + 1000, 448
        rows = [check.synthetic(9, r, 0, elements).view("<u4") for r in range(n)]
        at = [0, 1, check.CHUNK_ELEMENTS - 1, check.CHUNK_ELEMENTS, elements - 1]
        padded = np.zeros((n, -(-elements // 112) * 112), "<u4")
        padded[:, :elements] = rows
        fixed, native = check.fixed_sum(padded, 112)[:elements], check.native_sum(np.array(rows))
        self.assertEqual([int(native[i]) for i in at], slow_native([[int(r[i]) for i in at] for r in rows]))
        for arithmetic, bits in (("fixed", fixed), ("native", native)):
            command = ["--arithmetic", arithmetic, "--payload", payload, "--synthetic", 9, "--elements", elements,
                       "--workers", n, "--outputs"]  # fmt: skip
            outs = self.files("out", [{"gradient": ("F32", [elements], bits.tobytes())}] * n)
            self.assertEqual(run(*command, *outs), (0, f"exact: {n} workers x {elements} elements\n"))
            bits = bits.copy()
            bits[-1] ^= np.uint32(1)
            outs[1] = write(self.dir / "wrong", {"gradient": ("F32", [elements], bits.tobytes())})
            self.assertIn(f"worker 1: tensor gradient index {elements - 1}: expected", run(*command, *outs)[1])

    def test_the_recorded_gradients(self):
        """Every element of the recorded gradients, by the slow arithmetic in native mode."""
        folders = [GRADIENTS / "digits/step0", GRADIENTS / "digits/step399", GRADIENTS / "mixed"]
        for folder in folders:
            ins = [folder / f"rank{r}.safetensors" for r in range(8)]
            tensors = [check.read_safetensors(p) for p in ins]
            results = {}
            for name, t in tensors[0].items():
                rows = [[int(w) for w in x[name].words] for x in tensors]
                if t.dtype == "I32":
                    bits = [sum(c) for c in zip(*rows)]
                elif t.dtype == "F32":
                    bits = slow_native(rows)
                else:
                    fmt = {"F16": F16, "BF16": BF16}[t.dtype]
                    wide = slow_native([[slow_widen(w, fmt) for w in row] for row in rows])
                    bits = [slow_narrow(b, fmt) for b in wide]
                results[name] = (t.dtype, list(t.shape), words(bits, 2 if t.dtype in ("F16", "BF16") else 4))
            outs = self.files("out", [results] * 8)
            status, said = run("--arithmetic", "native", "--inputs", *ins, "--outputs", *outs)
            self.assertEqual(status, 0, said)


def run_all():
    print(f"seed {SEED} (SEED=... repeats it)", flush=True)
    tests = unittest.TestSuite(
        unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in (Arithmetic, CommandLine)
    )
    return 0 if unittest.TextTestRunner(verbosity=2).run(tests).wasSuccessful() else 1
