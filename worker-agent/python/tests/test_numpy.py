"""`tally.Job` through real agents and a real switch.

The ranks are threads, because waiting releases the interpreter's lock.
"""

import sys
import time

import numpy
import pytest
import tally
from cluster import JOB, Cluster
from ranks import at_all, good


@pytest.fixture(scope="module")
def cluster():
    # Two ranks on each of two hosts, each a worker.
    with Cluster(4, hosts=2, join_ms=8000, stall_ms=5000) as cluster:
        yield cluster
        print(cluster.logs())


@pytest.fixture(scope="module")
def hosts():
    # The same, with the ranks of a host as one worker.
    with Cluster(4, ranks_per_host=2, join_ms=8000, stall_ms=5000) as cluster:
        yield cluster
        print(cluster.logs())


@pytest.fixture(params=["cluster", "hosts"])
def either(request):
    return request.getfixturevalue(request.param)


def of_rank(rank, size, dtype):
    """Small integers, which all types hold, and whose sums they hold too."""
    return numpy.random.default_rng(rank * 1000 + size).integers(-9, 10, size).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int16", "int8"])
def test_sums_and_means_are_exact(either, dtype):
    sizes = [0, 1, 3, 255, 1000, 70_001]

    def work(job):
        inputs = [of_rank(job.rank, size, dtype) for size in sizes]
        handles = [job.all_reduce_async(it) for it in inputs]
        sums = [handle.wait() for handle in handles]
        assert all(a is b for a, b in zip(inputs, sums))
        return sums, job.all_reduce(of_rank(job.rank, 500, dtype), op="mean")

    wants = [sum(of_rank(rank, size, "int64") for rank in range(4)) for size in sizes]
    mean = sum(of_rank(rank, 500, "int64") for rank in range(4)) / 4
    for sums, means in good(at_all(either, work)):
        for got, want in zip(sums, wants):
            assert got.dtype == dtype
            numpy.testing.assert_array_equal(got.astype("int64"), want)
        numpy.testing.assert_array_equal(means, mean.astype(dtype))


@pytest.mark.parametrize("arithmetic", ["native", "own", "fixed"])
def test_floats_of_any_size_and_shape(either, arithmetic):
    def of(rank):
        values = numpy.random.default_rng(rank).standard_normal((50, 21))
        return values.astype("float32")

    def work(job):
        return job.all_reduce(of(job.rank), arithmetic=arithmetic, name="weights")

    got = good(at_all(either, work))
    want = sum(of(rank).astype("float64") for rank in range(4))
    for it in got:
        assert it.shape == (50, 21)
        numpy.testing.assert_allclose(it, want, rtol=1e-4, atol=1e-4)
        # The same bits everywhere.
        assert it.tobytes() == got[0].tobytes()


def test_nan_and_infinity_arrive_everywhere(either):
    def work(job):
        array = numpy.zeros(3000, "float32")
        array[10] = numpy.nan if job.rank == 2 else 1
        array[2000] = numpy.inf if job.rank == 1 else 1
        return job.all_reduce(array)

    for got in good(at_all(either, work)):
        assert numpy.isnan(got[10]) and got[2000] == numpy.inf
        assert numpy.isfinite(numpy.delete(got, [10, 2000])).all()


def test_broadcast_and_barrier(either):
    def work(job):
        before = [time.monotonic()]
        time.sleep(0.1 * job.rank)
        before.append(time.monotonic())
        job.barrier()
        after = time.monotonic()
        got = [job.broadcast(of_rank(job.rank, 777, "int16"), root) for root in range(4)]
        return before[1], after, got

    outcomes = good(at_all(either, work))
    assert min(after for _, after, _ in outcomes) >= max(before for before, _, _ in outcomes)
    for _, _, got in outcomes:
        for root in range(4):
            numpy.testing.assert_array_equal(got[root], of_rank(root, 777, "int16"))


def test_broadcast_and_barrier_do_not_wait_but_their_handles_do(cluster):
    def work(job):
        began = time.monotonic()
        if job.rank == 3:
            time.sleep(2)
        barrier = job.barrier_async()
        arrays = [of_rank(job.rank, 777, "float32") for _ in range(4)]
        handles = [job.broadcast_async(array, root) for root, array in enumerate(arrays)]
        submitted = time.monotonic() - began
        assert barrier.wait() is None
        waited = time.monotonic() - began
        got = [handle.wait() for handle in handles]
        assert all(a is b for a, b in zip(arrays, got))
        with pytest.raises(tally.ArgumentError, match="root"):
            job.broadcast_async(arrays[0], 4)
        return submitted, waited, got

    outcomes = good(at_all(cluster, work))
    for rank, (submitted, waited, got) in enumerate(outcomes):
        assert rank == 3 or submitted < 1.9 <= waited, (rank, submitted, waited)
        for root in range(4):
            numpy.testing.assert_array_equal(got[root], of_rank(root, 777, "float32"))


def test_collectives_of_other_libraries_are_in_the_status(cluster):
    def work(job):
        for bad in ("", "all gather", "x" * 33):
            with pytest.raises(tally.ArgumentError, match="kind of collective"):
                job.report_fallback(bad)
        for bad in (-1, 1 << 64):
            with pytest.raises(tally.ArgumentError, match="count"):
                job.report_fallback("send", bad)
        job.all_reduce(numpy.ones(10, "float32"))
        job.report_fallback("all_gather", 2)
        job.report_fallback("all_gather")
        job.barrier()
        deadline = time.monotonic() + 5
        while True:
            ranks = {it["rank"]: it for it in tally.status(cluster.socket(job.rank))["jobs"][0]["ranks"]}
            ours = ranks[job.rank]
            done = ours["done"]["all_reduce"] >= 1 and ours["done"]["barrier"] >= 1
            if done and ours["fallback"] == {"all_gather": 3} or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        job.barrier()
        return ours

    for ours in good(at_all(cluster, work)):
        assert ours["fallback"] == {"all_gather": 3}, ours
        assert ours["done"] == {"all_reduce": 1, "broadcast": 0, "barrier": 1}, ours


def test_one_that_differs_is_named(cluster):
    def work(job):
        size = 1001 if job.rank == 2 else 1000
        job.all_reduce(numpy.ones(size, "float32"), name="layer1.weight")

    for error in at_all(cluster, work):
        assert isinstance(error, tally.MismatchError), error
        assert error.ranks == (2,), error
        assert "layer1.weight" in str(error) and "1001" in str(error) and "rank 2" in str(error)


def test_one_of_a_host_that_differs_is_named(hosts):
    def work(job):
        # A host that fails before the job has begun leaves the others waiting for one to come.
        job.barrier()
        size = 1001 if job.rank == 2 else 1000
        job.all_reduce(numpy.ones(size, "float32"), name="layer1.weight")

    for rank, error in enumerate(at_all(hosts, work)):
        # Two differ from each other. The other host hears no more than which host it was.
        assert isinstance(error, tally.MismatchError if rank > 1 else tally.MemberError), error
        assert error.ranks == (2, 3), error
        assert rank < 2 or "rank 2 brings a sum of 1001 F32" in str(error), error


def test_one_of_a_host_that_never_comes_is_named(hosts):
    for rank, error in zip([0, 1, 2], at_all(hosts, lambda job: job.barrier(), but=[3])):
        assert isinstance(error, tally.JoinError), error
        assert error.ranks == ((3,) if rank == 2 else (2, 3)), error


def test_one_that_never_comes_is_named(cluster):
    began = time.monotonic()
    for error in at_all(cluster, lambda job: job.barrier(), but=[3]):
        assert isinstance(error, tally.JoinError), error
        assert error.ranks == (3,), error
    assert time.monotonic() - began < 20


def test_one_that_leaves_is_named(cluster):
    def work(job):
        job.barrier()
        if job.rank == 1:
            job.abort()
            return None
        job.all_reduce(numpy.ones(1000, "float32"))

    for rank, error in enumerate(at_all(cluster, work)):
        if rank != 1:
            assert isinstance(error, tally.MemberError), error
            assert error.ranks == (1,), error


def test_one_that_does_not_come_is_named_with_the_tensor(cluster):
    seconds = {}

    def work(job):
        job.all_reduce(numpy.ones(1000, "float32"), name="layer0.weight")
        began = time.monotonic()
        if job.rank == 2:
            # Longer than the others wait, and then it comes after all.
            time.sleep(10)
        try:
            job.all_reduce(numpy.ones(1000, "float32"), name="layer1.weight")
        finally:
            seconds[job.rank] = time.monotonic() - began

    for rank, error in enumerate(at_all(cluster, work)):
        assert isinstance(error, tally.TimeoutError), error
        assert error.ranks == (2,), error
        assert "rank 2 has not contributed" in str(error), error
        if rank == 2:
            assert "gave up waiting for us" in str(error), error
        else:
            assert "waiting for layer1.weight" in str(error), error
            # The stall timeout, and not until it comes.
            assert seconds[rank] < 9.5, seconds


def test_integers_that_do_not_fit(either):
    errors = at_all(either, lambda job: job.all_reduce(numpy.full(100, 2**30, "int32")))
    assert all(isinstance(it, OverflowError) and isinstance(it, tally.OverflowError) for it in errors), errors


def test_arrays_that_cannot_be_and_then_one_that_can(either):
    read_only = numpy.ones(3, "float32")
    read_only.flags.writeable = False

    def work(job):
        for bad, words in [
            (numpy.ones((4, 4), "float32").T[1:], "C-contiguous"),
            (numpy.ones(4, "float64"), "float64"),
            (numpy.ones(4, ">f4"), ">f4"),
            (read_only, "read-only"),
            ([1.0], "numpy.ndarray"),
        ]:
            with pytest.raises(tally.ArgumentError, match=words):
                job.all_reduce(bad)
        with pytest.raises(ValueError, match="op"):
            job.all_reduce(numpy.ones(4, "float32"), op="max")
        with pytest.raises(tally.ArgumentError, match="root"):
            job.broadcast(numpy.ones(4, "float32"), 4)
        return job.all_reduce(numpy.ones(4, "float32"))

    for got in good(at_all(either, work)):
        numpy.testing.assert_array_equal(got, [4, 4, 4, 4])


def test_the_agent_refuses_in_words(cluster, tmp_path):
    at = cluster.socket(0)
    with pytest.raises(tally.RefusedError, match="no job 8"):
        tally.Job(8, 0, 4, at)
    with pytest.raises(tally.RefusedError, match="expects 3 workers"):
        tally.Job(JOB, 0, 3, at)
    with pytest.raises(tally.ArgumentError, match="workers"):
        tally.Job(JOB, 0, 4097, at)
    with pytest.raises(tally.RefusedError, match="expects 4096 workers"):
        tally.Job(JOB, 4095, 4096, at)
    with pytest.raises(tally.ConnectError, match="systemctl start tally-agent.*tally-agent doctor"):
        tally.Job(JOB, 0, 4, str(tmp_path / "none"), timeout=0.1)
    holder = tally.Job(JOB, 0, 4, at)
    with pytest.raises(tally.RefusedError, match="is that rank already"):
        tally.Job(JOB, 0, 4, at, timeout=1)
    holder.abort()
    with pytest.raises(tally.ClosedError):
        holder.barrier()
    assert tally.status(at)["jobs"][0]["job"] == JOB


def test_memory_is_used_again_and_bounded(either):
    def work(job):
        for _ in range(30):
            job.all_reduce(numpy.ones(300_000, "float32"))
        with pytest.raises(tally.LimitError, match="memory_mib"):
            job.all_reduce(numpy.ones((1 << 30) + 8, "int8"))
        return job.all_reduce(numpy.ones(3, "int8"))

    for got in good(at_all(either, work)):
        numpy.testing.assert_array_equal(got, [4, 4, 4])


PROCESS_WIDE = """
import sys, numpy, tally

if sys.argv[1] == "explicit":
    job = tally.init(timeout=30)
array = numpy.full(1000, 2.0, numpy.float32)
assert tally.all_reduce(array) is array
if sys.argv[1] == "fails" and array[0] == 8 and int(__import__("os").environ["RANK"]) == 1:
    raise RuntimeError("as planned")
tally.broadcast(array, 3)
tally.barrier()
print("sum", array[0])
if sys.argv[1] == "explicit":
    tally.shutdown()
    tally.shutdown()
"""


@pytest.mark.parametrize("how", ["implicit", "explicit"])
def test_a_process_has_a_job_of_its_own(cluster, how):
    for code, text in cluster.run([sys.executable, "-c", PROCESS_WIDE, how]):
        assert code == 0 and text == "sum 8.0\n", text


def test_an_exception_that_nobody_catches_fails_the_job_of_the_process(cluster):
    for rank, (code, text) in enumerate(cluster.run([sys.executable, "-c", PROCESS_WIDE, "fails"])):
        assert code == 1
        if rank == 1:
            assert "as planned" in text
        else:
            assert "MemberError" in text and "rank 1" in text, text


def test_the_environment_names_the_socket_for_all_calls(cluster, monkeypatch, tmp_path):
    monkeypatch.setenv("TALLY_SOCKET", cluster.socket(0))
    assert tally.status()["jobs"][0]["job"] == JOB
    with pytest.raises(tally.RefusedError, match="no job 8"):
        tally.Job(8, 0, 4)
    with pytest.raises(tally.TallyError, match="none"):
        tally.status(str(tmp_path / "none"), timeout=0.1)


def test_what_the_environment_does_not_say_is_named(monkeypatch):
    monkeypatch.delenv("TALLY_JOB", raising=False)
    with pytest.raises(tally.ArgumentError, match="TALLY_JOB"):
        tally.all_reduce(numpy.ones(3, numpy.float32))
    monkeypatch.setenv("TALLY_JOB", "seven")
    with pytest.raises(tally.ArgumentError, match="seven"):
        tally.barrier()
