"""The backend "tally" where it waits, warns or refuses: a process a rank, through a real switch."""

import os
import subprocess
import sys
import time
import warnings

import pytest
from cluster import Cluster
from ranks import texts

torch = pytest.importorskip("torch")
import tally.torch  # noqa: E402

START = """
import os, sys, time, warnings, torch, torch.distributed as dist, tally, tally.torch
from datetime import timedelta
from torch.nn.parallel import DistributedDataParallel

def leave():
    sys.stdout.flush()
    os._exit(0)

def start(seconds=60, backend="tally"):
    dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
    return dist.get_rank(), dist.get_world_size()
"""

# Callbacks that start collectives and wait for them, more deeply than there are idle threads.
CALLBACKS = START + """
rank, size = start()

def deeper(depth):
    def callback(future):
        future.value()
        tensor = torch.full((100,), float(depth))
        work = dist.all_reduce(tensor, async_op=True)
        if depth < 5:
            work.get_future().then(deeper(depth + 1)).wait()
        else:
            work.wait()
        assert (tensor == depth * size).all()
        return tensor
    return callback

for _ in range(20):
    first = torch.ones(1000)
    future = dist.all_reduce(first, async_op=True).get_future().then(deeper(1))
    assert (torch.futures.wait_all([future])[0] == size).all()
work = dist.all_reduce(torch.ones(10), async_op=True)
assert work.get_future().then(lambda _: work.wait()).wait() is not None
dist.destroy_process_group()
print("all good")
"""

# Rank 2 stays away: each way to wait ends, and names it.
TIMEOUTS = START + """
import torch.distributed._functional_collectives as functional

rank, size = start(seconds=3)
tensor = torch.ones(1000)
everyone = dist.group.WORLD

def started():
    return dist.all_reduce(tensor.clone(), async_op=True)

WAYS = {
    "work": lambda: started().wait(),
    "work(timeout)": lambda: started().wait(timedelta(seconds=2)),
    "future": lambda: started().get_future().wait(),
    "callback": lambda: started().get_future().then(lambda it: it.value()).wait(),
    "all_reduce": lambda: dist.all_reduce(tensor),
    "broadcast": lambda: dist.broadcast(tensor, 2),
    "barrier": lambda: dist.barrier(),
    "functional": lambda: functional.all_reduce(tensor, "sum", everyone) + 0,
}
if rank == 2:
    time.sleep(30)
    leave()
for name, wait in WAYS.items():
    began = time.monotonic()
    try:
        wait()
        print(name, "no error")
    except Exception as error:
        text = str(error).replace(chr(10), " ")
        print(f"{name}|{time.monotonic() - began}|{type(error).__name__}: {text}", flush=True)
leave()
"""

POLICY = START + """
rank, size = start()
tensor = torch.ones(4, dtype=torch.float64)
try:
    for _ in range(3):
        dist.all_reduce(tensor)
    print("sum", tensor[0].item(), tally.torch.counters()["gloo"])
except tally.ArgumentError as error:
    print("refused:", error)
    leave()
time.sleep(0.3)
ranks = tally.status(os.environ["TALLY_SOCKET"])["jobs"][0]["ranks"]
mine = [it for it in ranks if it["rank"] == rank][0]
print("status", mine["fallback"], mine["done"]["all_reduce"])
dist.destroy_process_group()
"""

ODD = START + """
rank, size = start()
dtype = getattr(torch, sys.argv[1])
try:
    dist.all_reduce(torch.full((3,), torch.iinfo(dtype).max, dtype=dtype))
    print("no error")
except tally.OverflowError as error:
    print("overflow", error)
leave()
"""

TWO_DEVICES = START + """
start(backend="cpu:tally,cuda:nccl")
"""

DETAIL = START + """
rank, size = start()
model = DistributedDataParallel(torch.nn.Linear(50, 50), bucket_cap_mb=0.001)
for _ in range(3):
    model(torch.ones(2, 50) * rank).sum().backward()
tensor = torch.full((100,), rank + 1.0)
dist.all_reduce(tensor)
assert (tensor == sum(range(1, size + 1))).all()
dist.barrier()
dist.destroy_process_group()
print("all good", tally.torch.counters()["switch"]["all_reduce"])
"""


AGAIN = START + """
for turn in range(3):
    rank, size = start()
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    assert (tensor == size).all()
    dist.destroy_process_group()
print("all good")
"""


@pytest.fixture(scope="module")
def cluster():
    with Cluster(4) as cluster:
        yield cluster
        print(cluster.logs())


def run(cluster, program, *arguments, **more):
    return cluster.run_python(program, *arguments, **more)


def test_callbacks_may_start_collectives_and_wait_for_them(cluster):
    for text in texts(run(cluster, CALLBACKS)):
        assert "all good" in text


def test_each_wait_ends_with_the_group_s_timeout_and_names_the_rank():
    # The agents would end the job sooner.
    with Cluster(4, stall_ms=60_000) as cluster:
        outcomes = run(cluster, TIMEOUTS)
    for rank, (_, text) in enumerate(outcomes):
        ends = [line.split("|", 2) for line in text.splitlines() if "|" in line]
        assert len(ends) == (0 if rank == 2 else 8), text
        for way, seconds, error in ends:
            # Not by the agent, which would take a minute. On a loaded machine it answers late.
            assert 1.9 <= float(seconds) < 20, (way, seconds)
            assert "TimeoutError" in error and "rank 2" in error, (way, error)


@pytest.mark.parametrize("policy", ["warn", "error"])
def test_the_policy_for_what_gloo_does(cluster, policy):
    outcomes = run(cluster, POLICY, TALLY_FALLBACK=policy)
    for rank, (_, text) in enumerate(outcomes):
        warned = text.count("FallbackWarning: all_reduce is done by Gloo: type torch.float64")
        if policy == "error":
            assert "refused: all_reduce: type torch.float64" in text, text
        else:
            # Once, though it is called three times.
            assert warned == 1, text
            assert "sum 64.0 {'all_reduce': 3}" in text and "status {'all_reduce': 3} 0" in text, text


def test_a_quiet_policy_and_one_that_is_none(monkeypatch):
    from tally._c10d.fallback import Fallback

    monkeypatch.setenv("TALLY_FALLBACK", "quiet")
    fallback = Fallback(None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fallback.take("gather", "of a test")
    assert fallback.counts() == {"gather": 1}
    monkeypatch.setenv("TALLY_FALLBACK", "loud")
    with pytest.raises(tally.ArgumentError, match="TALLY_FALLBACK: found 'loud', expected one of warn, quiet, error"):
        Fallback(None)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_a_sum_of_integers_never_wraps(cluster, dtype):
    for text in texts(run(cluster, ODD, dtype)):
        assert "overflow" in text, text


def test_other_devices_get_their_backends_or_an_error(cluster):
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    for code, text in run(cluster, TWO_DEVICES):
        assert code != 0
        if tally.torch.HAS_PYTHON_BACKENDS:
            # torch asked for NCCL, which finds no GPU.
            assert "nccl" in text.lower(), text
        else:
            assert "makes no backend for cuda beside that of tally" in text, text


def test_a_group_is_made_again_after_its_end(cluster):
    for text in texts(run(cluster, AGAIN)):
        assert "all good" in text


def test_detailed_debugging(cluster):
    for text in texts(run(cluster, DETAIL, TORCH_DISTRIBUTED_DEBUG="DETAIL")):
        assert "all good" in text


def test_without_an_agent_it_says_so_and_ends():
    program = START + "start()\n"
    environment = os.environ | {
        "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "20999",
        "TALLY_JOB": "7", "TALLY_SOCKET": "/nonexistent/agent.sock",
    }  # fmt: skip
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert time.monotonic() - began < 30
    assert done.returncode == 1
    assert "retrying" in done.stderr and "ConnectError" in done.stderr, done.stderr
    assert "tally-agent doctor" in done.stderr and "/nonexistent/agent.sock" in done.stderr
