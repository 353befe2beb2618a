"""The examples with torchrun: Tally against Gloo, and a worker that is killed in mid-training."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import tally
from cluster import JOB, Cluster

pytest.importorskip("torch")
pytest.importorskip("sklearn")

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


# Steps of the digits' training.
STEPS = "60"


@pytest.fixture(scope="module")
def cluster():
    # Two ranks on each of two hosts.
    with Cluster(4, hosts=2, join_ms=60_000) as cluster:
        yield cluster
        print(cluster.logs())


class Training:
    """An example under torchrun."""

    def __init__(self, cluster, folder, example, *arguments, restarts=0):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
        command += ["--max-restarts", str(restarts), "--monitor-interval", "0.5"]
        command += [str(EXAMPLES / example), *arguments, "--print-steps"]
        self.out, self.errors = folder / "out.log", folder / "errors.log"
        with self.out.open("wb") as out, self.errors.open("wb") as errors:
            self.child = subprocess.Popen(command, env=cluster.launcher_environment(), stdout=out, stderr=errors)

    def until(self, text):
        """Waits until it has printed `text`."""
        deadline = time.monotonic() + 300
        while text not in self.out.read_text():
            assert self.child.poll() is None and time.monotonic() < deadline, self.errors.read_text()
            time.sleep(0.005)

    @contextlib.contextmanager
    def unwatched(self):
        """Meanwhile torchrun does not see processes that end, and ends no others."""
        self.child.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.child.send_signal(signal.SIGCONT)

    def outcomes(self):
        """Waits for its end; returns the mean losses by step and the result, of each training."""
        assert self.child.wait(400) == 0, self.errors.read_text()
        outcomes, losses = [], {}
        for line in self.out.read_text().splitlines():
            if line.startswith("step "):
                _, step, _, loss = line.split()
                losses[int(step)] = float(loss)
            elif line.startswith("{"):
                outcomes.append((losses, json.loads(line)))
                losses = {}
        return outcomes

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.terminate()
        self.child.wait()


def greatest_difference(ours, theirs):
    assert ours.keys() == theirs.keys()
    return max(abs(loss - theirs[step]) for step, loss in ours.items())


@pytest.fixture(scope="module")
def uninterrupted():
    """The losses and the result of the digits' training that nothing interrupts, once there are."""
    return {}


@pytest.mark.parametrize(
    ("example", "steps", "tolerance", "wires"),
    [
        ("digits_ddp.py", STEPS, 1e-5, ["plain", "f32", "fixed", "bf16", "f16"]),
        # Its steps take longer.
        pytest.param("chars_ddp.py", "12", 1e-4, ["plain"], marks=pytest.mark.slow),
    ],
)
def test_trains_as_with_gloo(cluster, tmp_path, uninterrupted, example, steps, tolerance, wires):
    def trained(*arguments):
        with Training(cluster, tmp_path, example, "--steps", steps, *arguments) as training:
            return training.outcomes()

    ((theirs, expected),) = trained("--backend", "gloo")
    assert theirs[int(steps) - 1] < 0.8 * theirs[0]
    ours = trained("--backend", "tally", "--wire", *wires)
    assert [result["wire"] for _, result in ours] == wires
    if example == "digits_ddp.py":
        uninterrupted["plain"] = ours[0]
    for losses, result in ours:
        difference = greatest_difference(losses, theirs)
        print(example, difference, "from", expected["accuracy"], result)
        if result["wire"] in ("plain", "f32"):
            assert difference < tolerance
            assert abs(result["accuracy"] - expected["accuracy"]) < 0.005
        else:
            # Not the same, or it would not be what it says; but no worse.
            assert 0 < difference < 0.2
            assert abs(result["accuracy"] - expected["accuracy"]) < 0.05


def test_goes_on_after_a_killed_worker(cluster, tmp_path, uninterrupted):
    arguments = ("digits_ddp.py", "--backend", "tally", "--steps", STEPS)
    checkpoint = ("--checkpoint", str(tmp_path / "digits.pt"), "--every", "10")
    with Training(cluster, tmp_path, *arguments, *checkpoint, restarts=1) as training:
        training.until("step 35 ")
        with training.unwatched():
            os.kill(process(cluster, 2), signal.SIGKILL)
            # The others say who it was.
            deadline = time.monotonic() + 60
            while len(ends(training)) < 3:
                assert time.monotonic() < deadline, training.errors.read_text()
                time.sleep(0.05)
        ((losses, result),) = training.outcomes()
    # It resumed from a checkpoint, and not from the start.
    assert result["resumed_at"] in (30, 40), result
    assert training.out.read_text().count("step 0 ") == 1
    # It comes to the end that it would have come to. Of what was done twice, `losses` has the
    # second time.
    if "plain" not in uninterrupted:
        with Training(cluster, tmp_path, *arguments) as training:
            (uninterrupted["plain"],) = training.outcomes()
    whole, expected = uninterrupted["plain"]
    assert greatest_difference(losses, whole) < 1e-6
    assert abs(result["accuracy"] - expected["accuracy"]) < 0.005
    assert not list(tmp_path.glob("*.new"))


def ends(training):
    """What ranks printed that ended because of rank 2."""
    lines = training.errors.read_text().splitlines()
    return [line for line in lines if "MemberError" in line and "rank 2" in line]


def process(cluster, rank):
    """The process that trains as this rank, as its agent knows it."""
    jobs = tally.status(cluster.socket(rank))["jobs"]
    (job,) = [it for it in jobs if it["job"] == JOB]
    (pid,) = [it["pid"] for it in job["ranks"] if it["rank"] == rank]
    return pid
