#!/usr/bin/python3
"""Say whether an all-reduce gave every worker exactly the right bits.

This is the second opinion on docs/PROTOCOL.md: it was written from that page, in numpy,
and shares no code with the switch or the agent. What it computes from the inputs must
equal the outputs bit for bit; there is no tolerance anywhere.

    check.py --arithmetic fixed --payload 1024 --op sum \\
             --inputs in0.safetensors in1.safetensors --outputs out0.safetensors out1.safetensors
    check.py --arithmetic native --op mean --synthetic 7 --elements 1000000 --workers 8 \\
             --outputs ...
    check.py --arithmetic own --synthetic 7 --element i8 --elements 1000000 --workers 8 \\
             --outputs ...
    check.py --self-test

Files are given in rank order. Exit status: 0 exact; 1 the outputs are wrong, or the inputs
have a sum of integers that does not exist (saturation); 2 the inputs cannot be used at all.

The messages
    Each tensor is a collective of its own (section 9), filled up with zeros to whole fragments:
    no fragment has elements of two tensors. Tensors of F32, F16, BF16, I32, I16 and I8 are summed.
    Other types are refused, and so are workers that disagree on names, types or shapes.

The sum
    native: f32 addition, folded in rank order; every NaN that an addition makes is 0x7fc00000.
    fixed:  section 8 of PROTOCOL.md, of the elements widened exactly to f32. f32(sum q) * 2^-s
            cannot round twice: where the product is subnormal, |sum q| < 2^24 and the first
            rounding changes nothing.
    own:    as native, and then rounded to the tensor's type, to nearest, ties to even.
    With --tree, native and own fold at each switch by itself, what is below it as one number, and
    own rounds there; a switch with one member adds nothing. fixed does not depend on the tree.
    With --ring, native and own fold round a ring (Rina, docs/RINA.md): a tensor of E elements has
    a chunk for each of the G members, the c-th from E*c//G on. Its fold begins with member c + 1
    and ends with member c. A rack adds what it got to its first rank's, and then folds its ranks.
    own rounds after each of these. fixed does not depend on the ring.
    i16, i8: exact; a job whose sum does not fit must fail.
    i32:    exact. Where the exact sum fits but some order of arrival would have
            saturated on the way, a job may rightly fail; if it delivers, it delivers this sum.

The result
    mean is the f32 sum divided by n in f32, and for i32 truncated toward zero. Then every tensor
    is narrowed to its own type, to nearest, ties to even. A NaN keeps its sign and the upper bits
    of its payload and is quiet afterwards.
    With n = 1, native of f32 and own, nothing is added or divided: a NaN keeps its bits, also in
    the mean.

Synthetic data, so that large runs need no input files
    Element i of rank r, all arithmetic in u64 and wrapping:
        x     = splitmix64(seed * 0x9E3779B97F4A7C15 + r * 2^40 + i)
        m     = x >> 40                     24 bits
        k     = x & 0xf
        value = (m - 2^23) * 2^-23 * 2^-k   exact in f32
    where splitmix64(z) is
        z = z + 0x9E3779B97F4A7C15
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB
        z ^ (z >> 31)
    m = 2^23 gives +0. The only tensor is one-dimensional and called "gradient", F32 or of the
    type that --element names: f16 and bf16 round that value, i32 is m - 2^23, and i16 and
    i8 are the same shifted right by 14 and by 22 bits.

It works through a tensor in chunks that fit in the processor's cache; files are mapped,
never read whole.
"""

import argparse
import json
import math
import mmap
import os
import struct
import sys

import numpy as np

MEMBERS_MAX = 64
WORKERS_MAX = 4096
CHUNK_ELEMENTS = 1 << 15
DIFFERENCES_SHOWN_MAX = 10
CANONICAL_NAN = np.uint32(0x7FC00000)
GOLDEN = 0x9E3779B97F4A7C15
U64 = (1 << 64) - 1

# The types of the wire's vectors, as little-endian words of bits.
WORD = {"F32": "<u4", "F16": "<u2", "BF16": "<u2", "I32": "<i4", "I16": "<i2", "I8": "<i1"}
FLOATS = ("F32", "F16", "BF16")
INTS = {"I32": 32, "I16": 16, "I8": 8}


class Refused(Exception):
    """The inputs cannot be summed; nothing is said about the outputs."""


# --- safetensors -------------------------------------------------------------------------


class Tensor:
    def __init__(self, name, dtype, shape, words):
        self.name, self.dtype, self.shape, self.words = name, dtype, shape, words

    def kind(self):
        return f"{self.dtype} {list(self.shape)}"


def without_repeats(pairs):
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)


def read_safetensors(path):
    """{name: Tensor}; `words` is a view of the mapped file, None for types we do not know."""
    with open(path, "rb") as f:
        if os.fstat(f.fileno()).st_size < 8:
            raise ValueError("shorter than its own header length")
        data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    if begin > len(data):
        raise ValueError("the header does not fit in the file")
    header = json.loads(data[8:begin].decode("utf-8"), object_pairs_hook=without_repeats)
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        first, end = entry["data_offsets"]
        if not 0 <= first <= end <= len(data) - begin:
            raise ValueError(f"{name}: offsets {first}..{end} are outside the file")
        words = None
        if dtype in WORD:
            word = np.dtype(WORD[dtype])
            if math.prod(shape) * word.itemsize != end - first:
                raise ValueError(f"{name}: {end - first} bytes cannot be {dtype} {list(shape)}")
            words = np.frombuffer(data, word, math.prod(shape), begin + first)
        tensors[name] = Tensor(name, dtype, shape, words)
    return tensors


# --- types -------------------------------------------------------------------------------


def widen(words, dtype):
    """Bits of `dtype` to the bits of the same value in f32. NaNs keep sign and payload."""
    if dtype == "F32":
        return words
    wide = words.astype(np.uint32)
    if dtype == "BF16":
        return wide << np.uint32(16)
    bits = words.view("<f2").astype("<f4").view("<u4")
    nan = (wide & 0x7FFF) > 0x7C00
    if nan.any():  # the hardware's conversion would quiet them
        kept = (wide & 0x8000) << np.uint32(16) | np.uint32(0x7F800000) | (wide & 0x3FF) << np.uint32(13)
        bits[nan] = kept[nan]
    return bits


def narrow(bits, dtype):
    """Bits of f32 to the bits of the nearest value in `dtype`, ties to even."""
    if dtype == "F32":
        return bits
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    if dtype == "BF16":
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        words = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype("<u2")
        quieted = (bits >> np.uint32(16)) | np.uint32(0x40)
    else:
        words = bits.view("<f4").astype("<f2").view("<u2")
        quieted = (
            (bits >> np.uint32(16)) & np.uint32(0x8000) | np.uint32(0x7E00) | (bits >> np.uint32(13)) & np.uint32(0x3FF)
        )
    words[nan] = quieted[nan]
    return words


# --- inputs ------------------------------------------------------------------------------


class FileInputs:
    def __init__(self, paths):
        self.workers = []
        for path in paths:
            try:
                self.workers.append(read_safetensors(path))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
                raise Refused(f"{path}: {e}")
        self.tensors = self.workers[0]
        for t in self.tensors.values():
            if t.dtype not in WORD:
                raise Refused(f"{paths[0]}: {t.name} is {t.dtype}, which Tally does not sum")
        kinds = {t.name: t.kind() for t in self.tensors.values()}
        for path, tensors in zip(paths, self.workers):
            if {t.name: t.kind() for t in tensors.values()} != kinds:
                raise Refused(f"{path}: other names, types or shapes than {paths[0]}")

    def words(self, tensor, rank, lo, hi):
        """Elements lo..hi of `rank`'s tensor."""
        return self.workers[rank][tensor.name].words[lo:hi]


class SyntheticInputs:
    def __init__(self, seed, elements, dtype="F32"):
        self.seed, self.dtype = seed, dtype
        self.tensors = {"gradient": Tensor("gradient", dtype, (elements,), None)}

    def words(self, tensor, rank, lo, hi):
        if self.dtype in FLOATS:
            return narrow(synthetic(self.seed, rank, lo, hi).view("<u4"), self.dtype)
        m = (synthetic_words(self.seed, rank, lo, hi) >> np.uint64(40)).astype(np.int64) - (1 << 23)
        return (m >> {"I32": 0, "I16": 14, "I8": 22}[self.dtype]).astype(WORD[self.dtype])


def synthetic_words(seed, rank, lo, hi):
    z = np.arange(lo, hi, dtype=np.uint64)
    z += np.uint64((seed * GOLDEN + (rank << 40) + GOLDEN) & U64)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def synthetic(seed, rank, lo, hi):
    z = synthetic_words(seed, rank, lo, hi)
    m = (z >> np.uint64(40)).astype(np.int32) - np.int32(1 << 23)
    z &= np.uint64(15)
    # 2^-23 * 2^-k, made from its exponent bits
    scale = ((np.uint32(127 - 23) - z.astype(np.uint32)) << np.uint32(23)).view("<f4")
    value = m.astype("<f4")
    value *= scale
    return value


# --- the sum -----------------------------------------------------------------------------


def native_sum(contributions):
    """Rows of f32 bits, one per rank, to the bits of the fold in rank order."""
    values = contributions.view("<f4")
    total = values[0].copy()
    for row in values[1:]:
        total += row
    bits = total.view("<u4")
    if len(values) > 1:
        nan = np.isnan(total)
        if nan.any():
            bits[nan] = CANONICAL_NAN
    return bits


def tree_sum(tree, contributions, rounding):
    """Rows of f32 bits, one per rank, to the bits of the fold of `tree`: a rank, or the members of
    a switch in their order. `rounding` is what each switch does to its sum."""
    if isinstance(tree, int):
        return contributions[tree]
    members = [tree_sum(member, contributions, rounding) for member in tree]
    return members[0] if len(members) == 1 else rounding(native_sum(np.stack(members)))


def ranks_of(tree):
    return [tree] if isinstance(tree, int) else [rank for member in tree for rank in ranks_of(member)]


def parsed_tree(text):
    """Nested lists of ranks: [[0, 1], [2, 3]] is a root above two switches with two workers."""
    tree = json.loads(text)

    def is_tree(node):
        if type(node) is int:
            return True
        return isinstance(node, list) and 1 <= len(node) <= MEMBERS_MAX and all(map(is_tree, node))

    if not isinstance(tree, list) or not is_tree(tree):
        raise ValueError
    return tree


def parsed_ring(text):
    """A list of ranks for each member: [[0, 1], [2]] is a rack of two that sums, and a host."""
    ring = parsed_tree(text)
    if not all(isinstance(member, list) and all(type(rank) is int for rank in member) for member in ring):
        raise ValueError
    return ring


def ring_sum(ring, contributions, lo, elements, rounding):
    """Rows of f32 bits, one per rank and from element `lo` of `elements` on, to the bits of the
    fold round `ring`: the ranks of each member. `rounding` is what follows each sum."""
    bits, count = np.empty(contributions.shape[1], "<u4"), len(ring)
    for owner in range(count):
        start = max(elements * owner // count - lo, 0)
        end = min(elements * (owner + 1) // count - lo, len(bits))
        if start >= end:
            continue
        total = None
        for step in range(1, count + 1):
            rows = [contributions[rank, start:end] for rank in ring[(owner + step) % count]]
            if total is not None:
                rows[0] = rounding(native_sum(np.stack([total, rows[0]])))
            total = rows[0] if len(rows) == 1 else rounding(native_sum(np.stack(rows)))
        bits[start:end] = total
    return bits


def fixed_sum(contributions, fragment_elements):
    """Rows of f32 bits, one per rank and a whole number of fragments long, to the bits of the
    sum in block fixed point (B-1 to B-5)."""
    n = len(contributions)
    by_fragment = contributions.reshape(n, -1, fragment_elements)
    # The largest exponent belongs to the largest magnitude (B-2), and magnitudes order as integers
    # do.
    largest = (by_fragment & np.uint32(0x7FFFFFFF)).max(axis=(0, 2))
    e = (largest >> np.uint32(23)).astype(np.int64)
    # Above 128 workers rounding may reach the bound of an element.
    c = (n if n > 128 else n - 1).bit_length()
    s = 31 - c - (np.maximum(e, 1) - 126)
    up = np.ldexp(1.0, s)[:, None]
    # Integers below 2^31 are exact in f64, and so are v * 2^s: 24 bits at exponents of f64.
    # The sum starts at +0, so that no -0 survives in it.
    total = np.zeros(by_fragment.shape[1:], np.float64)
    q = np.empty_like(total)
    for row in by_fragment.view("<f4"):
        np.multiply(row, up, out=q)
        total += np.rint(q, out=q)
    value = total.astype("<f4")
    result = np.multiply(value, 1 / up, dtype=np.float64).astype("<f4")
    bits = result.view("<u4")
    bits[e == 255] = CANONICAL_NAN
    return bits.reshape(-1)


def mean_of(bits, n):
    if n > 1:
        values = bits.view("<f4")
        values /= np.float32(n)
    return bits


def float_results(inputs, tensor, n, args):
    """Yields (lo, expected words of the float tensor from there on), chunk by chunk."""
    dtype, elements = tensor.dtype, math.prod(tensor.shape)
    unit = args.payload // 4 if args.arithmetic == "fixed" else 1
    chunk = max(CHUNK_ELEMENTS // unit, 1) * unit
    contributions = np.zeros((n, chunk), "<u4")
    for lo in range(0, elements, chunk):
        hi = min(lo + chunk, elements)
        if args.arithmetic == "own" and n == 1:
            yield lo, inputs.words(tensor, 0, lo, hi)
            continue
        used = -(-(hi - lo) // unit) * unit
        contributions[:, hi - lo : used] = 0
        for rank in range(n):
            contributions[rank, : hi - lo] = widen(inputs.words(tensor, rank, lo, hi), dtype)
        if args.arithmetic == "fixed":
            bits = fixed_sum(np.ascontiguousarray(contributions[:, :used]), unit)[: hi - lo]
        else:
            own = args.arithmetic == "own"
            rounding = (lambda bits: widen(narrow(bits, dtype), dtype)) if own else (lambda bits: bits)
            rows = contributions[:, : hi - lo]
            if args.ring:
                bits = ring_sum(args.ring, rows, lo, elements, rounding)
            else:
                bits = tree_sum(args.tree or list(range(n)), rows, rounding)
        yield lo, narrow(mean_of(bits, n) if args.op == "mean" else bits, dtype)


class Saturated(Exception):
    pass


def int_results(inputs, tensor, n, args):
    """As float_results, for a tensor of integers."""
    dtype, elements = tensor.dtype, math.prod(tensor.shape)
    limit = 1 << (INTS[dtype] - 1)
    for lo in range(0, elements, CHUNK_ELEMENTS):
        hi = min(lo + CHUNK_ELEMENTS, elements)
        total = np.zeros(hi - lo, np.int64)
        for rank in range(n):
            total += inputs.words(tensor, rank, lo, hi)
        outside = np.flatnonzero((total < -limit) | (total >= limit))
        if len(outside):
            at = int(outside[0])
            raise Saturated(
                f"overflow: {tensor.name} index {lo + at}: the sum {total[at]} does not fit in {dtype.lower()}; "
                "the job must end with an error and deliver nothing"
            )
        if args.op == "mean":
            total = np.sign(total) * (np.abs(total) // n)
        yield lo, total.astype(WORD[dtype])


# --- the comparison ----------------------------------------------------------------------


def shown(word, dtype):
    word = np.asarray(word)
    if dtype in INTS:
        return str(int(word))
    value = widen(word.reshape(1), dtype).view("<f4")[0]
    return f"{int(word):#0{2 + 2 * word.itemsize}x} ({value!s})"


class Verdict:
    def __init__(self):
        self.lines, self.count, self.workers = [], 0, set()

    def differs(self, worker, text, count=1):
        self.count += count
        self.workers.add(worker)
        if len(self.lines) < DIFFERENCES_SHOWN_MAX:
            self.lines.append(f"worker {worker}: {text}")


def read_outputs(paths, tensors, verdict):
    """The outputs whose structure is right: {worker: {name: Tensor}}."""
    good = {}
    for worker, path in enumerate(paths):
        try:
            found = read_safetensors(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            verdict.differs(worker, f"{path}: {e}")
            continue
        kinds = {n: t.kind() for n, t in found.items()}
        wanted = {n: t.kind() for n, t in tensors.items()}
        for name in sorted(kinds.keys() | wanted.keys()):
            if kinds.get(name) != wanted.get(name):
                verdict.differs(
                    worker, f"tensor {name}: expected {wanted.get(name, 'none')}, found {kinds.get(name, 'none')}"
                )
        if kinds == wanted:
            good[worker] = found
    return good


def compare(results, tensor, outputs, verdict):
    for lo, expected in results:
        for worker, found in outputs.items():
            words = found[tensor.name].words[lo : lo + len(expected)]
            if np.array_equal(words, expected):
                continue
            wrong = np.flatnonzero(words != expected)
            for at in wrong[:DIFFERENCES_SHOWN_MAX]:
                verdict.differs(
                    worker,
                    f"tensor {tensor.name} index {lo + at}: expected {shown(expected[at], tensor.dtype)}, "
                    f"found {shown(words[at], tensor.dtype)}",
                )
            verdict.count += max(len(wrong) - DIFFERENCES_SHOWN_MAX, 0)


def check(args):
    """(exit status, lines to print)"""
    if args.synthetic is None:
        inputs, n = FileInputs(args.inputs), len(args.inputs)
    else:
        inputs, n = SyntheticInputs(args.synthetic, args.elements, args.element.upper()), args.workers
    if not 1 <= n <= WORKERS_MAX:
        raise Refused(f"{n} workers; a job has 1 to {WORKERS_MAX}")
    if n > MEMBERS_MAX and not args.tree and not args.ring:
        raise Refused(f"{n} workers; a job without --tree has 1 to {MEMBERS_MAX}")
    if args.ring and ranks_of(args.ring) != list(range(n)):
        raise Refused(f"--ring has the ranks {ranks_of(args.ring)}, a job of {n} has 0 to {n - 1} in their order")
    if args.tree and ranks_of(args.tree) != list(range(n)):
        raise Refused(f"--tree has the ranks {ranks_of(args.tree)}, a job of {n} has 0 to {n - 1} in their order")
    if len(args.outputs) != n:
        raise Refused(f"{n} workers, but {len(args.outputs)} outputs")

    verdict = Verdict()
    outputs = read_outputs(args.outputs, inputs.tensors, verdict)
    # infinities, NaNs and sums above the largest f32 are part of the job, not accidents
    with np.errstate(all="ignore"):
        try:
            for tensor in inputs.tensors.values():
                results = int_results if tensor.dtype in INTS else float_results
                compare(results(inputs, tensor, n, args), tensor, outputs, verdict)
        except Saturated as e:
            return 1, [str(e)]
    if verdict.count:
        where = " ".join(str(w) for w in sorted(verdict.workers))
        return 1, verdict.lines + [f"different: {verdict.count} differences, in workers {where}"]
    return 0, [f"exact: {n} workers x {sum(math.prod(t.shape) for t in inputs.tensors.values())} elements"]


def arguments(argv):
    parser = argparse.ArgumentParser(
        description="Say whether an all-reduce gave every worker exactly the right bits.",
        epilog="How the expected bits come about, and the synthetic data, is at the top of this file.",
    )
    parser.add_argument("--arithmetic", choices=("fixed", "native", "own"))
    parser.add_argument("--payload", type=int, metavar="BYTES", help="payload of a fragment (fixed needs it)")
    parser.add_argument("--op", choices=("sum", "mean"), default="sum")
    parser.add_argument("--inputs", nargs="+", metavar="FILE", help="safetensors, in rank order")
    parser.add_argument("--synthetic", type=int, metavar="SEED", help="instead of --inputs")
    parser.add_argument("--element", choices=[d.lower() for d in WORD], default="f32", help="type of the synthetic tensor")
    parser.add_argument("--elements", type=int, metavar="N", help="of the synthetic tensor")
    parser.add_argument("--workers", type=int, metavar="N", help="of the synthetic job")
    parser.add_argument("--tree", type=parsed_tree, metavar="LISTS", help="switches: [[0, 1], [2, 3]]; one, unless given")
    parser.add_argument("--ring", type=parsed_ring, metavar="LISTS", help="ranks of each member: [[0, 1], [2]]")
    parser.add_argument("--outputs", nargs="+", metavar="FILE", help="safetensors, in rank order")
    parser.add_argument("--self-test", action="store_true", help="test this program against slow exact arithmetic")
    args = parser.parse_args(argv)
    if args.self_test:
        return args
    if not args.arithmetic or not args.outputs:
        parser.error("--arithmetic and --outputs are needed")
    if (args.inputs is None) == (args.synthetic is None):
        parser.error("either --inputs or --synthetic")
    if args.synthetic is not None and (args.elements is None or args.workers is None):
        parser.error("--synthetic needs --elements and --workers")
    if args.synthetic is not None and not (0 <= args.synthetic <= U64 and 0 <= args.elements < 1 << 40):
        parser.error("--synthetic SEED is a u64, --elements below 2^40")
    if args.arithmetic == "fixed" and args.payload is None:
        parser.error("--arithmetic fixed needs --payload")
    if args.payload is not None and not (64 <= args.payload <= 8192 and args.payload % 64 == 0):
        parser.error("--payload is a multiple of 64, up to 8192")
    return args


def main(argv=None):
    args = arguments(argv)
    if args.self_test:
        import selftest

        return selftest.run_all()
    try:
        status, lines = check(args)
    except Refused as e:
        status, lines = 2, [f"refused: {e}"]
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
