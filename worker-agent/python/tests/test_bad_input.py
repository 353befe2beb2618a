"""Bad input raises in time: a documented class, which names rank and tensor. Never a wrong sum."""

import concurrent.futures
import contextlib
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import numpy
import pytest
import tally
from cluster import JOB, Cluster
from ranks import at_all, good

WORKERS = 4
# The agents' timeouts, and some more for a machine that is busy.
IN_TIME_S = 25


@pytest.fixture(scope="module")
def cluster():
    with Cluster(WORKERS, hosts=2, join_ms=8000, stall_ms=5000) as cluster:
        yield cluster
        print(cluster.logs())


@pytest.fixture
def own():
    """A cluster that the test may break."""
    with contextlib.ExitStack() as stack:

        def make(*arguments, **named):
            cluster = stack.enter_context(Cluster(*arguments, **named))
            stack.callback(lambda: print(cluster.logs()))
            return cluster

        yield make


def errors(outcomes, but=()):
    """Each rank's error, which all but some must have."""
    for rank, outcome in enumerate(outcomes):
        assert rank in but or isinstance(outcome, tally.TallyError), (rank, outcome)
    return [it for rank, it in enumerate(outcomes) if rank not in but]


# Arrays.


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("arithmetic", ["native", "own", "fixed"])
def test_nan_and_infinity_arrive_at_every_worker(cluster, dtype, arithmetic):
    inf, nan = numpy.inf, numpy.nan
    is_fixed = arithmetic == "fixed"
    # So large that the sum is infinite. In fixed point it would leave nothing of the small ones
    # beside it.
    huge = 1 if is_fixed else numpy.finfo(dtype).max
    brought = {5: (2, nan), 700: (1, inf), 1500: (0, -inf), 2900: (3, nan)}

    def work(job):
        array = numpy.ones(3000, dtype)
        for at, (rank, value) in brought.items():
            array[at] = value if job.rank == rank else 1
        array[2000] = inf if job.rank % 2 else -inf
        array[2400] = huge
        return job.all_reduce(array, arithmetic=arithmetic)

    got = good(at_all(cluster, work))
    for array in got:
        # Bit by bit but for NaNs, of which there are many.
        numpy.testing.assert_array_equal(array, got[0])
        for at in (5, 2000, 2900):
            assert numpy.isnan(array[at]), (at, array[at])
        # As documented: fixed point has no infinity, and its whole fragment is NaN.
        assert numpy.isnan(array[700]) if is_fixed else array[700] == inf
        assert numpy.isnan(array[1500]) if is_fixed else array[1500] == -inf
        assert is_fixed or array[2400] == inf
        finite = numpy.isfinite(array)
        assert (array[finite] == WORKERS).all(), array[finite][array[finite] != WORKERS]
        assert is_fixed or finite.sum() == 3000 - 6


def test_a_sum_that_fixed_point_cannot_hold_is_infinite(cluster):
    for got in good(at_all(cluster, lambda job: job.all_reduce(numpy.full(3, 3e38, "float32"), arithmetic="fixed"))):
        assert (got == numpy.inf).all(), got


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_empty_arrays_and_scalars(cluster, op):
    def work(job):
        for shape in ((0,), (3, 0, 2)):
            assert job.all_reduce(numpy.empty(shape, "int32"), op).shape == shape
        return job.all_reduce(numpy.array(2.0, "float32"), op)

    for got in good(at_all(cluster, work)):
        assert got.shape == () and got == (8 if op == "sum" else 2)


def test_arrays_of_other_kinds(cluster, tmp_path):
    masked = numpy.ma.masked_array(numpy.ones(3, "float32"), [0, 1, 0])
    halves = numpy.ones(4, "complex64")

    def work(job):
        with pytest.raises(tally.ArgumentError, match="`m`: found MaskedArray"):
            job.all_reduce(masked, name="m")
        with pytest.raises(tally.ArgumentError, match="complex64"):
            job.all_reduce(halves)
        for name in (7, b"x", "\ud800"):
            with pytest.raises(tally.ArgumentError, match="a name is text"):
                job.all_reduce(numpy.ones(3, "float32"), name=name)
        with pytest.raises(tally.ArgumentError, match="at most 255 bytes"):
            job.all_reduce(numpy.ones(3, "float32"), name="ß" * 128)
        mapped = numpy.memmap(tmp_path / str(job.rank), "float32", "w+", shape=3)
        mapped[:] = 1
        unaligned = numpy.frombuffer(bytearray(b"\0" + 3 * struct.pack("=f", 1)), "float32", 3, 1)
        matrix = numpy.ones((1, 3), "float32").view(numpy.matrix)
        return [job.all_reduce(it) for it in (mapped, unaligned, matrix)]

    for got in good(at_all(cluster, work)):
        for array in got:
            assert (numpy.asarray(array) == WORKERS).all()


def test_more_elements_than_32_bits_count_need_memory_that_the_agent_allows(cluster):
    # Never touched, so it takes no memory.
    huge = numpy.zeros((1 << 31) + 64, "int8")

    def work(job):
        with pytest.raises(tally.LimitError, match="`embedding`.*memory_mib|memory_mib.*`embedding`"):
            job.all_reduce(huge, name="embedding")
        return job.all_reduce(numpy.ones(3, "int8"))

    good(at_all(cluster, work))


def _available_gib():
    with open("/proc/meminfo") as lines:
        kib = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return kib / (1 << 20)


@pytest.mark.slow
@pytest.mark.skipif(_available_gib() < 12, reason="needs 12 GiB of free memory")
def test_more_elements_than_32_bits_count_are_summed(own):
    cluster = own(2, hosts=2, mtu=9000, memory_mib=4096)
    size = (1 << 31) + 64

    def at(rank):
        with tally.Job(JOB, rank, 2, cluster.socket(rank), timeout=400) as job:
            array = numpy.zeros(size, "int8")
            array[:] = rank + 1
            array[-1] = 50
            array[1 << 31] = -20 * rank
            return job.all_reduce(array, arithmetic="own", name="embedding")

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for got in pool.map(at, range(2)):
            assert got[-1] == 100 and got[1 << 31] == -20
            got[-1] = got[1 << 31] = 3
            # By parts: a comparison makes an array as large.
            assert all((got[i : i + (1 << 26)] == 3).all() for i in range(0, size, 1 << 26))


def test_more_at_a_time_than_the_agent_takes(cluster):
    def work(job):
        handles = [job.all_reduce_async(numpy.full(5, n, "int32")) for n in range(1500)]
        return [handle.wait()[0] for handle in handles]

    for got in good(at_all(cluster, work)):
        assert got == [4 * n for n in range(1500)]


# Ranks that bring something else.


@pytest.mark.parametrize(
    "ours, theirs",
    [
        ("job.all_reduce(ones(10), name='w')", "job.all_reduce(ones(11), name='w')"),
        ("job.all_reduce(ones(10), name='w')", "job.all_reduce(ones(0), name='w')"),
        ("job.all_reduce(ones(10), name='w')", "job.all_reduce(ones(10, 'int32'), name='w')"),
        ("job.all_reduce(ones(10, 'float16'), name='w')", "job.all_reduce(ones(10, 'int16'), name='w')"),
        ("job.all_reduce(ones(10), name='w')", "job.all_reduce(ones(10), name='v')"),
        ("job.all_reduce(ones(10), name='w')", "job.all_reduce(ones(10), op='mean', name='w')"),
        ("job.all_reduce(ones(10), name='w')", "job.all_reduce(ones(10), arithmetic='fixed', name='w')"),
        ("job.all_reduce(ones(10), name='w')", "job.barrier(name='w')"),
        ("job.all_reduce(ones(10), name='w')", "job.broadcast(ones(10), 0, name='w')"),
        ("job.broadcast(ones(10), 0, name='w')", "job.broadcast(ones(10), 1, name='w')"),
    ],
)
def test_who_brings_something_else_is_named_and_the_tensor_too(cluster, ours, theirs):
    def work(job):
        def ones(size, dtype="float32"):
            return numpy.ones(size, dtype)

        job.barrier()
        return eval(theirs if job.rank == 2 else ours)

    began = time.monotonic()
    for rank, error in enumerate(errors(at_all(cluster, work))):
        assert isinstance(error, tally.MismatchError), error
        assert error.ranks == (2,), error
        text = str(error)
        assert f"job {JOB} rank {rank}" in text and "rank 2" in text, text
        # A rank knows the names of what it brought itself.
        assert 'called "v"' in text if rank == 2 and "'v'" in theirs else 'called "w"' in text, text
    assert time.monotonic() - began < IN_TIME_S


def test_a_failed_handle_fails_again_and_leaves_the_array_alone(cluster):
    def work(job):
        array = numpy.full(10 + (job.rank == 1), 3, "float32")
        handle = job.all_reduce_async(array, name="w")
        with pytest.raises(tally.MismatchError):
            handle.wait()
        with pytest.raises(tally.MismatchError):
            handle.wait()
        with pytest.raises(tally.MismatchError, match="`next`"):
            job.all_reduce(numpy.ones(3, "float32"), name="next")
        assert (array == 3).all()
        job.abort()

    good(at_all(cluster, work))


def test_who_did_not_want_to_wait_may_wait_again(cluster):
    def work(job):
        if job.rank == 3:
            time.sleep(1)
        array = numpy.ones(10, "float32")
        handle = job.all_reduce_async(array, name="w")
        if job.rank != 3:
            with pytest.raises(tally.TimeoutError, match="`w` takes more than"):
                handle.wait(0.05)
            assert (array == 1).all()
        return handle.wait()

    for got in good(at_all(cluster, work)):
        assert (got == WORKERS).all()


# Agents that are not what they should be.


class Fake:
    """A process that listens in an agent's place, and answers each first message with `answer`."""

    def __init__(self, path, answer, kind=socket.SOCK_SEQPACKET):
        self.path, self.answer = str(path), answer
        self.listener = socket.socket(socket.AF_UNIX, kind)
        self.listener.bind(self.path)
        self.listener.listen()
        threading.Thread(target=self.serve, daemon=True).start()
        self.kept = []

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                connection.recv(1024)
                if self.answer is not None:
                    connection.send(self.answer)
                self.kept.append(connection)

    def close(self):
        self.listener.close()


REFUSED = struct.pack("<BBHQ", 65, 1, 0, 0) + b"the process speaks version 2 of the local interface, and this agent version 1"
WELCOME = struct.pack("<BBH4sIIQ", 64, 0, 1, b"tlly", 8, 8, 1 << 20)


@pytest.mark.parametrize(
    "answer, error, words",
    [
        (REFUSED, tally.VersionError, "this agent version 1"),
        (WELCOME, tally.VersionError, "speaks version 1 .* install both from one release"),
        (b"HTTP/1.0 400 Bad Request", tally.AgentGoneError, "does not keep to the interface"),
        (None, tally.TimeoutError, "the agent's welcome takes more than"),
    ],
)
def test_an_agent_of_another_version_or_none_at_all(tmp_path, answer, error, words):
    path = tmp_path / "agent.sock"
    fake = Fake(path, answer)
    began = time.monotonic()
    with pytest.raises(error, match=words) as raised:
        tally.Job(JOB, 0, 2, str(path), timeout=1)
    assert f"job {JOB} rank 0" in str(raised.value)
    assert time.monotonic() - began < 20
    fake.close()


ABSENT = """
import logging, sys, time, tally
if len(sys.argv) > 1:
    logging.basicConfig(format="%(levelname)s of %(name)s: %(message)s")
began = time.monotonic()
try:
    # As PyTorch's collectives may take.
    tally.Job(7, 0, 2, "/none/agent.sock", timeout=1800)
except tally.ConnectError as error:
    print(error)
print("after", round(time.monotonic() - began))
"""


@pytest.mark.parametrize("logs", [[], ["configured"]])
def test_an_agent_that_does_not_run_is_looked_for_ten_seconds_aloud(logs):
    command = [sys.executable, "-c", ABSENT, *logs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    prefix = "WARNING of tally: " if logs else ""
    lines = done.stderr.splitlines()
    assert 3 <= len(lines) <= 5, done
    assert lines[0] == (
        f"{prefix}tally: no agent at /none/agent.sock (No such file or directory); retrying, 8 s left"
    ), done
    error, after = done.stdout.splitlines()
    assert 10 <= int(after.removeprefix("after ")) <= 14, done
    for words in ("/none/agent.sock", "systemctl start tally-agent", "tally-agent doctor"):
        assert words in error, done


def test_sockets_that_are_none(tmp_path):
    stream = tmp_path / "stream.sock"
    fake = Fake(stream, b"", socket.SOCK_STREAM)
    for path in (stream, tmp_path / "none", tmp_path, tmp_path / ("x" * 200)):
        with pytest.raises(tally.ConnectError, match="cannot reach the agent at"):
            tally.Job(JOB, 0, 2, str(path), timeout=0.1)
    fake.close()


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "soon"])
def test_a_timeout_that_is_none(timeout):
    with pytest.raises((tally.ArgumentError, TypeError)):
        tally.Job(JOB, 0, 2, "/none", timeout=timeout)


# A cluster in which something breaks.


def step_until(job, over, size=50_000):
    """Sums until something fails, or `over` is set at all ranks."""
    count = numpy.zeros(1, "int32")
    while True:
        got = job.all_reduce(numpy.full(size, job.rank + 1, "float32"), name="gradients")
        assert (got == sum(range(1, job.workers + 1))).all()
        count[0] = over.is_set()
        if job.all_reduce(count, name="over")[0]:
            return None


def while_training(cluster, event):
    """What each rank raises after `event()` in mid-training, and after how many seconds."""
    over = threading.Event()
    ended = {}
    began = []

    def work(job):
        try:
            step_until(job, over)
        finally:
            ended[job.rank] = time.monotonic()

    def later():
        time.sleep(1)
        began.append(time.monotonic())
        event()
        # For as long as a rank may notice it, or until the last has.
        until = time.monotonic() + 6
        while time.monotonic() < until and len(ended) < cluster.workers:
            time.sleep(0.02)
        over.set()

    thread = threading.Thread(target=later)
    thread.start()
    outcomes = at_all(cluster, work)
    thread.join()
    return outcomes, {rank: at - began[0] for rank, at in ended.items()}


def goes_on(cluster):
    """The same cluster, with a job of its own."""
    for got in good(at_all(cluster, lambda job: job.all_reduce(numpy.ones(3, "int8")))):
        assert (got == cluster.workers).all()


def test_an_agent_that_is_killed_in_training(own):
    cluster = own(3, hosts=3, join_ms=10_000, stall_ms=3000)
    outcomes, seconds = while_training(cluster, lambda: cluster.kill("agent1"))
    assert isinstance(outcomes[1], tally.AgentGoneError), outcomes[1]
    text = str(outcomes[1])
    assert f"job {JOB} rank 1" in text and ("`gradients`" in text or "`over`" in text), text
    assert seconds[1] < 10
    for rank in (0, 2):
        assert isinstance(outcomes[rank], (tally.MemberError, tally.TimeoutError)), outcomes[rank]
        assert outcomes[rank].ranks == (1,), outcomes[rank]
        assert seconds[rank] < IN_TIME_S
    cluster.start_agent(1)
    goes_on(cluster)


def test_a_switch_that_is_killed_and_comes_back_in_training(own):
    cluster = own(2, hosts=2, join_ms=10_000, stall_ms=3000)

    def again():
        cluster.kill("switch")
        cluster.start_switch()

    outcomes, seconds = while_training(cluster, again)
    # They join it again, and resume where they were.
    assert outcomes == [None, None]
    goes_on(cluster)


def test_a_switch_that_stays_away(own):
    cluster = own(2, hosts=2, join_ms=3000, stall_ms=3000)
    outcomes, seconds = while_training(cluster, lambda: cluster.kill("switch"))
    for rank, error in enumerate(errors(outcomes)):
        assert isinstance(error, tally.TimeoutError), error
        assert "switch has been silent" in str(error), error
        assert seconds[rank] < IN_TIME_S
    for error in errors(at_all(cluster, lambda job: job.barrier())):
        assert isinstance(error, tally.JoinError), error
        assert "the switch did not answer" in str(error)


def test_a_parameter_server_that_is_killed_in_training(own):
    cluster = own(2, hosts=2, join_ms=5000, stall_ms=3000)
    outcomes, seconds = while_training(cluster, lambda: cluster.kill("ps"))
    for rank, outcome in enumerate(outcomes):
        # Steps that need none continue.
        if outcome is not None:
            assert isinstance(outcome, (tally.MemberError, tally.TimeoutError)), outcome
            assert f"job {JOB} rank {rank}" in str(outcome), outcome
        assert seconds[rank] < IN_TIME_S
    cluster.start_ps()
    goes_on(cluster)


def test_a_wait_that_ends_before_the_agent_gives_up_names_the_missing_rank(own):
    cluster = own(3, hosts=2, join_ms=10_000, stall_ms=10_000)

    def work(job):
        job.barrier()
        if job.rank == 2:
            time.sleep(4)
        handle = job.all_reduce_async(numpy.ones(10, "float32"), name="layer1")
        if job.rank != 2:
            with pytest.raises(tally.TimeoutError, match="`layer1` takes more than 2.5s: waiting for layer1") as raised:
                handle.wait(2.5)
            assert raised.value.ranks == (2,), raised.value
            assert str(raised.value).endswith("rank 2 has not contributed"), raised.value
        return handle.wait()

    for got in good(at_all(cluster, work)):
        assert (got == 3).all()


def test_a_wrong_key(own):
    cluster = own(2, hosts=2, join_ms=3000)
    cluster.kill("agent1")
    cluster.start_agent(1, key="00112233445566778899aabbccdd0bad")
    outcomes = errors(at_all(cluster, lambda job: job.barrier()))
    assert all(isinstance(it, tally.JoinError) for it in outcomes), outcomes
    assert "the job's key is another one" in str(outcomes[1]), outcomes[1]
    assert outcomes[0].ranks == (1,) and "rank 1 is missing" in str(outcomes[0]), outcomes[0]


def test_two_processes_that_are_one_rank_on_two_hosts(own):
    cluster = own(2, hosts=2, join_ms=3000)
    with tally.Job(JOB, 0, 2, cluster.socket(0)) as first, tally.Job(JOB, 1, 2, cluster.socket(1)) as other:
        handles = [first.all_reduce_async(numpy.ones(3, "int8")), other.all_reduce_async(numpy.ones(3, "int8"))]
        for handle in handles:
            handle.wait()
        second = tally.Job(JOB, 0, 2, cluster.socket(1))
        with pytest.raises(tally.JoinError, match="rank is taken by another process"):
            second.barrier()
        second.abort()
        # Those who were there first do not notice.
        handles = [first.all_reduce_async(numpy.ones(3, "int8")), other.all_reduce_async(numpy.ones(3, "int8"))]
        for handle in handles:
            assert (handle.wait() == 2).all()


# This process's own doing.


def run(code, cluster, rank=0, **more):
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=cluster.environment(rank) | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Who runs the tests in the background may have given us a SIGINT that does nothing.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


WAITS = """
import sys, numpy, tally
job = tally.init()
handle = job.all_reduce_async(numpy.ones(3, numpy.float32), name="w")
print("waiting", flush=True)
try:
    handle.wait()
except KeyboardInterrupt:
    print("interrupted")
    raise
"""


def test_ctrl_c_ends_a_wait_and_the_others_are_told(cluster):
    children = [run(WAITS, cluster, rank) for rank in range(WORKERS - 1)]
    for child in children:
        assert child.stdout.readline() == "waiting\n"
    with tally.Job(JOB, 3, WORKERS, cluster.socket(3), timeout=30) as job:
        # The job has begun, and the others wait for us.
        time.sleep(1)
        began = time.monotonic()
        children[0].send_signal(signal.SIGINT)
        text, _ = children[0].communicate(timeout=IN_TIME_S)
        assert "interrupted" in text and children[0].returncode == -signal.SIGINT, text
        assert time.monotonic() - began < 10
        with pytest.raises(tally.MemberError, match="rank 0") as raised:
            job.all_reduce(numpy.ones(3, "float32"), name="w")
            job.barrier()
        assert raised.value.ranks == (0,)
        for child in children[1:]:
            text, _ = child.communicate(timeout=IN_TIME_S)
            assert "MemberError" in text and "rank 0" in text, text
        job.abort()


def test_ctrl_c_ends_the_wait_for_an_agent(cluster):
    code = "import tally; print('waiting', flush=True); tally.Job(7, 0, 2, '/none/agent.sock', timeout=60)"
    child = run(code, cluster)
    assert child.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    text, _ = child.communicate(timeout=IN_TIME_S)
    assert "KeyboardInterrupt" in text, text


def test_after_the_end_nothing_goes(cluster):
    def work(job):
        handle = job.all_reduce_async(numpy.ones(3, "float32"))
        handle.wait()
        job.close()
        assert (handle.wait() == WORKERS).all()
        for call in (
            lambda: job.all_reduce(numpy.ones(3, "float32")),
            lambda: job.broadcast(numpy.ones(3, "float32"), 0),
            lambda: job.barrier(),
        ):
            with pytest.raises(tally.ClosedError):
                call()
        job.close()
        job.abort()

    good(at_all(cluster, work))


FORKS = """
import os, sys, numpy, tally
job = tally.init()
handle = job.all_reduce_async(numpy.ones(3, numpy.float32))
child = os.fork()
if child == 0:
    for call in (job.barrier, handle.wait, job.close, lambda: job.all_reduce(numpy.ones(3, numpy.int8))):
        try:
            call()
        except tally.ArgumentError as error:
            assert "fork" in str(error), error
        else:
            print("no error in the child")
    job.abort()
    del handle, job
    sys.exit(0)
_, status = os.waitpid(child, 0)
print("child", status)
assert (handle.wait() == 4).all()
assert (tally.all_reduce(numpy.ones(3, numpy.int8)) == 4).all()
print("all good")
"""


def test_a_fork_may_not_use_the_job_and_does_it_no_harm(cluster):
    children = [run(FORKS, cluster, rank) for rank in range(WORKERS)]
    for child in children:
        text, _ = child.communicate(timeout=60)
        assert child.returncode == 0 and text == "child 0\nall good\n", text


# torch.

TENSORS = """
import torch, torch.distributed as dist, tally, tally.torch

dist.init_process_group("tally")
rank, size = dist.get_rank(), dist.get_world_size()
inf, nan = float("inf"), float("nan")
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    tensor = torch.ones(2000, dtype=dtype)
    tensor[3] = nan if rank == 1 else 1
    tensor[1500] = -inf if rank == 2 else 1
    dist.all_reduce(tensor)
    assert tensor[3].isnan() and tensor[1500] == -inf, (dtype, tensor[3], tensor[1500])
    tensor[3] = tensor[1500] = size
    assert (tensor == size).all()

# By Gloo, as README says.
sparse = torch.sparse_coo_tensor([[rank, 7]], [1.0, 2.0], (10,))
dist.all_reduce(sparse)
want = torch.zeros(10)
want[:size] = 1
want[7] = 2 * size
assert sparse.is_sparse and torch.equal(sparse.to_dense(), want), sparse

# Strides of all kinds, but for those that fold elements onto each other.
for tensor in (torch.full((4, 6), rank + 1.0).t(), torch.full((8,), rank + 1.0)[::3], torch.full((1,), rank + 1.0).expand(1)):
    dist.all_reduce(tensor)
    assert (tensor == sum(range(1, size + 1))).all(), tensor
negative = torch.full((5,), complex(0, rank + 1)).conj().imag
try:
    dist.all_reduce(negative)
    assert (negative == -sum(range(1, size + 1))).all(), negative
except tally.ArgumentError as error:
    # torch's dispatcher takes the result away.
    assert tally.torch.HAS_PYTHON_BACKENDS and "negated" in str(error), error
    negative = negative.resolve_neg()
    dist.all_reduce(negative)
    assert (negative == -sum(range(1, size + 1))).all(), negative
try:
    dist.all_reduce(torch.ones(1).expand(4))
except tally.ArgumentError as error:
    assert "share memory" in str(error), error
else:
    raise AssertionError("no error")
grad = torch.ones(3, requires_grad=True)
dist.all_reduce(grad)
assert (grad == size).all()
print("all good")
dist.destroy_process_group()
try:
    dist.all_reduce(torch.ones(3))
except ValueError as error:
    print("and no more")
"""

DIFFERS = """
import datetime, sys, time, torch, torch.distributed as dist, tally, tally.torch

dist.init_process_group("tally", timeout=datetime.timedelta(seconds=60))
began = time.monotonic()
tensor = torch.ones(10, dtype=getattr(torch, sys.argv[1] if dist.get_rank() == 2 else "float32"))
try:
    dist.all_reduce(tensor)
except (tally.TallyError, RuntimeError) as error:
    print(type(error).__name__, getattr(error, "ranks", None), error, f"after {time.monotonic() - began:.1f}")
"""


def test_tensors_of_every_kind(cluster):
    for code, text in cluster.run_python(TENSORS):
        assert code == 0 and text.endswith("all good\nand no more\n"), text


def test_another_type_of_torchs(cluster):
    for code, text in cluster.run_python(DIFFERS, "bfloat16"):
        assert code == 0 and text.startswith("MismatchError (2,)"), text
    # One that goes by Gloo, where that rank is alone: the others stop waiting for it, and it hears
    # of their ends.
    for rank, (code, text) in enumerate(cluster.run_python(DIFFERS, "int64")):
        if rank == 2:
            assert "RuntimeError" in text, text
        else:
            assert text.startswith("TimeoutError (2,)"), text
            assert float(text.rsplit("after ", 1)[1]) < IN_TIME_S


TORCH_WAITS = """
import torch, torch.distributed as dist, tally.torch
dist.init_process_group("tally")
dist.all_reduce(torch.ones(3))
if dist.get_rank() != 3:
    work = dist.all_reduce(torch.ones(3), async_op=True)
    print("waiting", flush=True)
    work.wait()
else:
    import time
    time.sleep(60)
"""


def test_ctrl_c_ends_a_wait_in_torch(own):
    cluster = own(4, hosts=1, stall_ms=60_000)
    children = [run(TORCH_WAITS, cluster, rank) for rank in range(4)]
    for child in children[:3]:
        # Torch may have something to say before.
        while (line := child.stdout.readline()) != "waiting\n":
            assert line, child.wait()
    time.sleep(0.5)
    began = time.monotonic()
    children[0].send_signal(signal.SIGINT)
    text, _ = children[0].communicate(timeout=IN_TIME_S)
    assert "KeyboardInterrupt" in text, text
    assert time.monotonic() - began < 10
    for child in children[1:3]:
        text, _ = child.communicate(timeout=IN_TIME_S)
        assert "MemberError" in text and "rank 0" in text, text
    children[3].kill()
    children[3].communicate()
