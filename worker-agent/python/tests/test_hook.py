"""The hook for DDP's gradients, through a real switch: one process for each of 4 ranks."""

import subprocess
import sys

import pytest
from cluster import Cluster
from ranks import texts

import tally

pytest.importorskip("torch")

# A small model, in several buckets. The first iteration has other buckets than the rest.
START = """
import os, time, torch, torch.distributed as dist, tally, tally.compress, tally.torch
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("tally")
rank, size = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group(backend="gloo")

def make(**options):
    torch.manual_seed(3)
    net = torch.nn.Sequential(
        torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 100),
        torch.nn.ReLU(), torch.nn.Linear(100, 5))
    return DistributedDataParallel(net, bucket_cap_mb=0.05, **options)

def gradients(model):
    return torch.cat([it.grad.float().flatten() for it in model.parameters()])

def expected(model, x):
    '''What the gradients are without a hook or a wire, by Gloo in f64.'''
    plain = make().module
    plain.load_state_dict(model.module.state_dict())
    plain(x).square().mean().backward()
    mean = torch.cat([it.grad.double().flatten() for it in plain.parameters()])
    dist.all_reduce(mean, group=gloo)
    return (mean / size).float()
"""

WIRES = START + """
for wire, tolerance in (("f32", 1e-6), ("fixed", 1e-5), ("bf16", 2e-2), ("f16", 2e-3)):
    model = make()
    model.register_comm_hook(tally.torch.HookState(wire=wire, model=model), tally.ddp_hook)
    for step in range(3):
        torch.manual_seed(100 * step + rank)
        x = torch.randn(32, 20)
        want = expected(model, x)
        model.zero_grad()
        model(x).square().mean().backward()
        got = gradients(model)
        largest = want.abs().max()
        assert (got - want).abs().max() < tolerance * largest, (wire, step, (got - want).abs().max() / largest)
        # The same bits everywhere.
        first = got.clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, got), wire
time.sleep(0.5)
status = tally.status(os.environ["TALLY_SOCKET"])["jobs"][0]["ranks"][0]
print("priorities", status["priority_min"], status["priority_max"])
"""

OTHER_TYPES = """
for dtype, wire in ((torch.bfloat16, "bf16"), (torch.bfloat16, "f32"), (torch.float16, "f16")):
    model = DistributedDataParallel(torch.nn.Linear(64, 64).to(dtype))
    model.register_comm_hook(tally.torch.HookState(wire=wire), tally.torch.ddp_hook)
    for step in range(3):
        model.zero_grad()
        model(torch.full((2, 64), rank + 1.0, dtype=dtype)).sum().backward()
        # The mean of 2, 4, 6 and 8.
        assert (model.module.weight.grad == 5).all(), model.module.weight.grad
"""

REFUSED = """
def refused(text, f):
    try:
        f()
    except tally.ArgumentError as error:
        assert text in str(error), error
    else:
        assert False, text

State = tally.torch.HookState
refused("wire: found 'int4', expected one of f32, fixed, bf16, f16", lambda: State(wire="int4"))
refused("wire: found None", lambda: State(wire=None))
refused("expected an instance", lambda: State(compression="top-k"))
refused("travel as int8", lambda: State("fixed", tally.compress.Int8()))
refused("process group of its own", lambda: State(model=make(process_group=gloo)))
refused("expected a tally.torch.HookState", lambda: tally.ddp_hook(None, None))
for dtype, wire, text in (
    (torch.float64, "f32", "torch.float64, expected torch.float32"),
    (torch.bfloat16, "fixed", "travels as 'bf16' or 'f32', not as 'fixed'"),
    (torch.float16, "bf16", "travels as 'f16' or 'f32', not as 'bf16'"),
):
    model = DistributedDataParallel(torch.nn.Linear(4, 4).to(dtype))
    model.register_comm_hook(State(wire=wire), tally.ddp_hook)
    try:
        model(torch.ones(1, 4, dtype=dtype)).sum().backward()
    except tally.ArgumentError as error:
        assert text in str(error) and "gradients of bucket 0 (2 parameters from [4, 4] on)" in str(error), error
    else:
        assert False, dtype
dist.destroy_process_group()
refused("no process group", State)
print("all good")
"""

COMPRESSION = START + """
from tally.compress import Int8, TopK, ZeroBlocks

for compression, wire in (
    (ZeroBlocks(), "f32"), (ZeroBlocks(100), "fixed"), (TopK(0.1), "f32"), (TopK(0.1, block=16), "bf16"), (Int8(), "f32"),
):
    model = make()
    model.register_comm_hook(tally.torch.HookState(wire, compression, model), tally.ddp_hook)
    wanted = got = 0
    for step in range(4):
        torch.manual_seed(100 * step + rank)
        x = torch.randn(32, 20)
        want = expected(model, x)
        model.zero_grad()
        model(x).square().mean().backward()
        it = gradients(model)
        first = it.clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, it), compression
        if compression == ZeroBlocks():
            assert torch.allclose(want, it, rtol=1e-5, atol=1e-7)
        wanted, got = wanted + want, got + it
    # Nothing is lost for good: what is missing, all ranks owe together.
    error = (got - wanted).norm() / wanted.norm()
    print(compression, wire, "error", error.item())
    assert error < {ZeroBlocks: 1e-5, TopK: 0.9, Int8: 0.05}[type(compression)], (compression, wire, error)

# Buckets of zeros alone, and values that are infinite or NaN.
for compression in (ZeroBlocks(), TopK(0.1), Int8()):
    model = DistributedDataParallel(torch.nn.Linear(1000, 1, bias=False))
    model.register_comm_hook(tally.torch.HookState(compression=compression), tally.ddp_hook)
    for value in (0, 1, torch.nan, torch.inf, 2):
        x = torch.zeros(1, 1000)
        x[0, :2] = value if rank == 1 else 1
        model.zero_grad()
        (model(x) * float(bool(value))).sum().backward()
        grad = model.module.weight.grad[0]
        if value in (1, 2):
            assert torch.allclose(grad[:2], torch.tensor((3 + value) / 4), rtol=0.03), (compression, grad[:2])
        elif value == 0:
            assert not grad[2:].any()
        else:
            assert not grad[:2].isfinite().any(), (compression, value, grad[:2])
            assert grad[256:].isfinite().all()
print("all good")
dist.destroy_process_group()
"""

GLOO = """
import tally, tally.torch, torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
try:
    tally.torch.HookState()
except tally.ArgumentError as error:
    print(error)
"""

NOT_FINITE = """
for wire in ("f32", "fixed", "bf16", "f16"):
    model = DistributedDataParallel(torch.nn.Linear(1000, 1, bias=False))
    model.register_comm_hook(tally.torch.HookState(wire=wire), tally.ddp_hook)
    x = torch.ones(1, 1000)
    if rank == 1:
        x[0, 3], x[0, 5], x[0, 7] = torch.nan, torch.inf, -torch.inf
    model(x).sum().backward()
    grad = model.module.weight.grad[0]
    assert grad[3].isnan(), (wire, grad[:10])
    if wire == "fixed":
        assert grad[5].isnan() and grad[7].isnan()
    else:
        assert grad[5] == torch.inf and grad[7] == -torch.inf, (wire, grad[:10])
        assert (grad[8:] == 1).all()
"""

DEATH = START + """
# Buffers would go by Gloo, which has words of its own.
model = make(broadcast_buffers=False)
model.register_comm_hook(tally.torch.HookState(wire="fixed", model=model), tally.ddp_hook)
try:
    for step in range(10):
        if step == 5 and rank == 2:
            os._exit(3)
        model(torch.randn(8, 20)).square().mean().backward()
    print("no error")
except Exception as error:
    print(type(error).__name__, "at", step, error)
os._exit(1)
"""

MISMATCH = START + """
model = DistributedDataParallel(torch.nn.Linear(64, 64))
model.register_comm_hook(tally.torch.HookState(wire="bf16" if rank == 1 else "f32", model=model), tally.ddp_hook)
try:
    model(torch.ones(1, 64)).sum().backward()
    print("no error")
except Exception as error:
    print(type(error).__name__, error)
os._exit(1)
"""


@pytest.fixture(scope="module")
def cluster():
    with Cluster(4) as cluster:
        yield cluster
        print(cluster.logs())


def run(cluster, program):
    return cluster.run_python(program)


def test_importing_the_package_does_not_import_torch():
    program = "import sys, tally; assert 'torch' not in sys.modules; tally.ddp_hook; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(AttributeError, match="no attribute 'ddp_hok'"):
        tally.ddp_hok


def test_gradients_are_those_without_a_hook_and_first_layers_are_more_urgent(cluster):
    for text in texts(run(cluster, WIRES + OTHER_TYPES + NOT_FINITE + REFUSED)):
        assert "all good" in text
        least, most = map(int, text.split("priorities ")[1].split()[:2])
        # 24 between the model's ends, before anything is measured and after.
        assert least <= most - 24, text


def test_compressed_gradients_are_those_without_in_the_long_run(cluster):
    for text in texts(run(cluster, COMPRESSION)):
        assert "all good" in text


def test_other_backends_are_refused():
    done = subprocess.run([sys.executable, "-c", GLOO], capture_output=True, text=True, check=True)
    assert "of the backend 'gloo', expected 'tally'" in done.stdout


def test_a_rank_that_dies_is_named_in_backward(cluster):
    outcomes = run(cluster, DEATH)
    for rank, (code, text) in enumerate(outcomes):
        if rank == 2:
            assert code == 3
        else:
            assert "at 5" in text and "MemberError" in text and "rank 2" in text, text


def test_ranks_with_other_wires_are_named_with_the_tensor(cluster):
    for _, text in run(cluster, MISMATCH):
        assert "MismatchError" in text and "rank 1" in text, text
        assert "gradients of bucket 0 (weight to bias)" in text, text
