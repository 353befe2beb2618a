"""The backend "tally" against Gloo: the same program with either, one process for each rank."""

import math

import pytest
from cluster import Cluster
from ranks import texts

pytest.importorskip("torch")

SUMS = """
import sys, torch, torch.distributed as dist, tally.torch

dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group(backend="gloo")
torch.manual_seed(rank)

def both(tensor, op):
    want = tensor.clone()
    dist.all_reduce(want, op=op if op != dist.ReduceOp.AVG else dist.ReduceOp.SUM, group=gloo)
    got = tensor.clone()
    assert dist.all_reduce(got, op=op) is None
    return got, want / size if op == dist.ReduceOp.AVG else want

for n in (1, 7, 1000, 100_003):
    got, want = both(torch.randint(-(2**20), 2**20, (n,), dtype=torch.int32), dist.ReduceOp.SUM)
    assert torch.equal(got, want), (got, want)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 4e-2)):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            got, want = both(torch.randn(n, dtype=dtype), op)
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
            # The same bits everywhere, which Gloo's broadcast tells.
            first = got.clone()
            dist.broadcast(first, 0)
            assert torch.equal(first, got)

# Shapes, and what has no elements or no dimensions.
for shape in ((), (0,), (3, 5, 7)):
    got, want = both(torch.full(shape, rank + 1.0), dist.ReduceOp.SUM)
    torch.testing.assert_close(got, want)

# What Gloo does underneath.
got, want = both(torch.randn(100), dist.ReduceOp.MAX)
assert torch.equal(got, want)
got, want = both(torch.arange(10, dtype=torch.int64), dist.ReduceOp.SUM)
assert torch.equal(got, want)
strided = torch.full((4, 4), rank + 1.0)[:, ::2]
dist.all_reduce(strided)
assert (strided == sum(range(1, size + 1))).all()
parts = [torch.empty(3) for _ in range(size)]
dist.all_gather(parts, torch.full((3,), float(rank)))
assert [int(it[0]) for it in parts] == list(range(size))
part = torch.empty(2)
dist.reduce_scatter_tensor(part, torch.arange(2.0 * size))
assert part.tolist() == [2.0 * rank * size, (2.0 * rank + 1) * size]
pair = dist.new_group(list(range(size)))
one = torch.ones(5)
dist.all_reduce(one, group=pair)
assert (one == size).all()

# Several at a time.
tensors = [torch.full((20_000,), float(rank + i)) for i in range(20)]
works = [dist.all_reduce(it, async_op=True) for it in tensors]
for i, (work, tensor) in enumerate(zip(works, tensors)):
    work.wait()
    assert work.is_completed()
    assert (tensor == sum(range(size)) + i * size).all()
dist.barrier()
print("all good", dist.get_backend())
backend = tally.torch._world
dist.destroy_process_group()
try:
    backend.monitored_barrier()
    raise AssertionError("served by a destroyed group")
except tally.ArgumentError as error:
    assert "monitored_barrier: the process group is destroyed" in str(error)
"""

TRAINING = """
import os, sys, torch, torch.distributed as dist, tally.torch
from tally._c10d.adapter import HAS_PYTHON_BACKENDS

dist.init_process_group(sys.argv[1])
torch.manual_seed(3)
teacher = torch.nn.Linear(20, 5)
model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 5))
model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
torch.manual_seed(100 + dist.get_rank())
for step in range(30):
    x = torch.randn(32, 20)
    loss = torch.nn.functional.mse_loss(model(x), teacher(x).detach())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.9f}")
print("norm", sum(it.double().norm().item() for it in model.parameters()), flush=True)
dist.destroy_process_group()
if sys.argv[1] == "gloo":
    # The model keeps the group. A thread of torch's Gloo that still holds a tensor when the
    # interpreter ends aborts the process: 1 of 100 did.
    os._exit(0)
# Tally ends Gloo's threads with the group, from torch 2.14 on.
tasks = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
assert not HAS_PYTHON_BACKENDS or not any("gloo" in task for task in tasks), tasks
"""

MISMATCH = """
import torch, torch.distributed as dist, tally, tally.torch

dist.init_process_group("tally")
try:
    dist.all_reduce(torch.ones(1001 if dist.get_rank() == 1 else 1000))
except tally.MismatchError as error:
    print("error:", error, error.ranks)
"""


@pytest.fixture(scope="module")
def cluster():
    with Cluster(4) as cluster:
        yield cluster
        print(cluster.logs())


@pytest.fixture(scope="module")
def hosts():
    # Two ranks on each of two hosts, which are two workers.
    with Cluster(4, ranks_per_host=2) as cluster:
        yield cluster
        print(cluster.logs())


@pytest.fixture(scope="module")
def trained_with_gloo(cluster):
    """What the ranks print, which does not depend on how they reach a switch."""
    return texts(cluster.run_python(TRAINING, "gloo"))


def losses(text):
    return [float(line.split()[1]) for line in text.splitlines() if line.startswith("loss ")]


@pytest.mark.parametrize("arithmetic", ["native", "fixed"])
@pytest.mark.parametrize("kind", ["cluster", "hosts"])
def test_sums_are_those_of_gloo(request, kind, arithmetic):
    cluster = request.getfixturevalue(kind)
    for text in texts(cluster.run_python(SUMS, "tally", TALLY_ARITHMETIC=arithmetic)):
        assert "all good tally" in text


@pytest.mark.parametrize("kind", ["cluster", "hosts"])
def test_ddp_trains_as_with_gloo(request, kind, trained_with_gloo):
    ours = texts(request.getfixturevalue(kind).run_python(TRAINING, "tally"))
    for rank, (our, their) in enumerate(zip(ours, trained_with_gloo)):
        a, b = losses(our), losses(their)
        assert len(a) == len(b) == 30
        print(f"rank {rank}: greatest difference", max(abs(x - y) for x, y in zip(a, b)))
        assert a[-1] < a[0] / 2
        for x, y in zip(a, b):
            assert math.isclose(x, y, rel_tol=1e-4), (rank, x, y)
    norms = {line for text in ours for line in text.splitlines() if line.startswith("norm")}
    assert len(norms) == 1, norms


def test_one_that_differs_is_named(cluster):
    for text in texts(cluster.run_python(MISMATCH)):
        assert "error:" in text and "rank 1" in text and "1001" in text and "(1,)" in text, text


def test_one_that_ends_in_training_ends_it_everywhere(cluster):
    program = TRAINING.replace(
        "    loss.backward()",
        """    if step == 5 and dist.get_rank() == 2:
        import os
        os._exit(3)
    loss.backward()""",
    )
    outcomes = cluster.run_python(program, "tally")
    for rank, (code, text) in enumerate(outcomes):
        assert len(losses(text)) == 5, text
        if rank == 2:
            assert code == 3
        else:
            assert code == 1 and "MemberError" in text and "rank 2" in text, text
