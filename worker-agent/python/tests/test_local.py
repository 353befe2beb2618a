"""``python -m tally.local`` as an ordinary user: sums, exit codes, no leftovers."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid

import cluster
import pytest
import tally
from tally import local

RANK = """
import os, numpy, tally
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert os.environ["LOCAL_RANK"] == str(rank) and os.environ["LOCAL_WORLD_SIZE"] == str(world)
assert os.environ["MASTER_ADDR"] == "127.0.0.1" and int(os.environ["MASTER_PORT"]) > 0
assert int(os.environ["OMP_NUM_THREADS"]) >= 1
for dtype in numpy.float32, numpy.float16, numpy.int32, numpy.int16, numpy.int8:
    array = numpy.arange(100_000).astype(numpy.int8).astype(dtype) // 16 + rank
    expected = (numpy.arange(100_000).astype(numpy.int8) // 16).astype(int) * world + sum(range(world))
    tally.all_reduce(array)
    assert (array == expected).all(), dtype
"""
NUMPY = RANK + "import sys; print('sums are right', *sys.argv[1:])"

DDP = """
import os, torch, torch.distributed as dist, tally.torch
dist.init_process_group("tally")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.full((100_003,), float(rank + 1))
dist.all_reduce(total)
assert (total == world * (world + 1) / 2).all()
model = torch.nn.Linear(8, 1, bias=False)
torch.nn.init.zeros_(model.weight)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
weight = torch.zeros(8)
for step in range(3):
    optimizer.zero_grad()
    # The gradient is the input, whose mean over the ranks is exact.
    model(torch.full((1, 8), float(rank + step))).sum().backward()
    optimizer.step()
    weight -= 0.5 * sum(it + step for it in range(world)) / world
    assert torch.equal(model.module.weight.detach()[0], weight), (step, model.module.weight, weight)
dist.destroy_process_group()
print("the training is right")
"""

# Ready when each rank has said so; then it waits, and so does a child of it.
WAITING = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
try:
    print("ready", flush=True)
    time.sleep(100)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def unprivileged() -> list[str]:
    """A prefix of commands that makes them an ordinary user's, if this is root."""
    if os.geteuid() != 0:
        return []
    as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]
    # setpriv itself still has root's capabilities when it starts a program; the shell has not.
    probe = [*as_user, "sh", "-c", 'exec "$0" -c "import tally"', sys.executable]
    if subprocess.run(probe, capture_output=True).returncode == 0:
        return as_user
    # Python is in a folder of root's. Without capabilities root may do what a user may.
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


class Place:
    """A folder of scripts and one of temporary files, and the launchers that run there."""

    def __init__(self) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tally-test-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        self.temporary.chmod(0o777)
        self.marker = f"TALLY_TEST={uuid.uuid4()}"
        self.prefix = unprivileged()

    def script(self, text: str, name: str = "train.py") -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def start(self, *arguments: str, **more: str) -> subprocess.Popen:
        name, _, value = self.marker.partition("=")
        environment = {"TALLY_PROGRAMS": str(cluster.programs()), "TMPDIR": str(self.temporary), name: value}
        return subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "tally.local", *arguments],
            cwd=self.folder,
            env=os.environ | environment | more,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell that starts the tests in the background ignores it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments: str, code: int = 0, **more: str) -> tuple[str, str]:
        with self.start(*arguments, **more) as launcher:
            return self.end(launcher, code)

    def end(self, launcher: subprocess.Popen, code: int) -> tuple[str, str]:
        """Waits for the end of a launcher; returns what it printed."""
        out, err = launcher.communicate(timeout=60)
        assert launcher.returncode == code, (launcher.returncode, out, err)
        return out, err

    def processes(self) -> list[str]:
        """Command lines of all that runs and was started here."""
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.marker.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
        return found

    def is_clean(self) -> bool:
        return not self.processes() and not list(self.temporary.glob("tally-*"))


@pytest.fixture
def place():
    place = Place()
    try:
        yield place
        assert place.is_clean(), (place.processes(), list(place.temporary.iterdir()))
    finally:
        shutil.rmtree(place.folder)


def test_sums_at_two_ranks_twice(place):
    script = place.script(NUMPY)
    for _ in range(2):
        out, _ = place.run("--ranks", "2", script, "--lr", "3", "-m", "x")
        assert sorted(out.splitlines()) == [f"[rank {rank}] sums are right --lr 3 -m x" for rank in range(2)]
        assert place.is_clean()


def test_one_rank_has_no_prefix(place):
    assert place.run("--ranks", "1", place.script(NUMPY)) == ("sums are right\n", "")


def test_two_launchers_at_the_same_time(place):
    script = place.script(NUMPY)
    with place.start(script) as first, place.start("--ranks", "3", script) as second:
        assert place.end(first, 0)[0].count("sums are right") == 2
        assert place.end(second, 0)[0].count("sums are right") == 3


def test_ddp_training(place):
    pytest.importorskip("torch")
    out, _ = place.run("--ranks", "2", place.script(DDP))
    assert out.count("the training is right") == 2


def test_module_and_long_lines_without_an_end(place):
    place.script("import sys; sys.stdout.write('x' * 200_000); sys.stderr.write('a\\rb\\r\\nc')", "trainer.py")
    out, err = place.run("--ranks", "2", "-m", "trainer")
    assert out.replace("[rank 0] ", "").replace("[rank 1] ", "").replace("\n", "") == "x" * 400_000
    for rank in range(2):
        for part in "a", "b", "c":
            assert f"[rank {rank}] {part}" in err


def test_rank_that_fails(place):
    script = place.script("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(100)")
    begin = time.monotonic()
    _, err = place.run("--ranks", "2", script, code=3)
    assert time.monotonic() - begin < 20
    assert "tally.local: error: rank 1 ended with exit code 3; the other ranks were terminated" in err
    script = place.script("import os; os.kill(os.getpid(), 9)")
    _, err = place.run("--ranks", "1", script, code=128 + 9)
    assert "rank 0 ended with SIGKILL" in err


@pytest.mark.parametrize("ranks, number", [(2, signal.SIGINT), (1, signal.SIGTERM)])
def test_signal_to_the_launcher(place, ranks, number):
    with place.start("--ranks", str(ranks), place.script(WAITING)) as launcher:
        for _ in range(ranks):
            assert "ready" in launcher.stdout.readline()
        launcher.send_signal(number)
        out, _ = place.end(launcher, 128 + number)
        assert out.count("interrupted") == (ranks if number == signal.SIGINT else 0)


def test_signal_before_the_ranks_start(place):
    with place.start(place.script(WAITING)) as launcher:
        while not list(place.temporary.glob("*/switch.log")):
            time.sleep(0.002)
        launcher.send_signal(signal.SIGTERM)
        assert place.end(launcher, 128 + signal.SIGTERM) == ("", "")


def test_launcher_that_is_killed(place):
    with place.start("--ranks", "2", place.script(WAITING)) as launcher:
        for _ in range(2):
            assert "ready" in launcher.stdout.readline()
        # Switch, two agents, parameter server, guard, two ranks and their children.
        assert len(place.processes()) >= 9
        launcher.kill()
        deadline = time.monotonic() + 10
        while not place.is_clean() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert place.is_clean(), place.processes()


def test_reader_that_ends(place):
    with place.start(place.script("while True: print('x')")) as launcher:
        launcher.stdout.readline()
        launcher.stdout.close()
        assert launcher.wait(30) == 128 + signal.SIGPIPE
        assert "Traceback" not in launcher.stderr.read()


def test_switch_that_is_killed(place):
    with place.start("--keep", place.script(WAITING)) as launcher:
        for _ in range(2):
            assert "ready" in launcher.stdout.readline()
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_text()
                if "tally-switch" in line and str(place.temporary) in line:
                    os.kill(int(folder.name), signal.SIGKILL)
        _, err = place.end(launcher, 1)
        assert "tally.local: error: switch ended with SIGKILL" in err
    kept = pathlib.Path(re.search("configurations and logs: (.*)", err)[1])
    assert json.loads((kept / "switch.json").read_text())["jobs"][0]["workers"] == 2
    shutil.rmtree(kept)


def test_logs(place):
    logs = place.temporary / "logs"
    _, err = place.run("--verbose", "--log", str(logs), "--ranks", "1", place.script(RANK))
    assert "[switch] tally-switch: running on CPU" in err and "[agent0] tally-agent: job 1 rank 0: left" in err
    assert sorted(it.name for it in logs.iterdir()) == ["agent0.log", "ps.log", "switch.log"]
    assert "job 1 rank 0: left" in (logs / "agent0.log").read_text()


def test_bad_usage(place, capsys):
    script = place.script(NUMPY)
    for arguments, text in (
        ([], "SCRIPT"),
        (["--ranks", "0", script], "--ranks: found 0, expected 1 to 16"),
        (["--ranks", "17", script], "--ranks: found 17, expected 1 to 16"),
        (["--rank", "2", script], "--rank"),
        (["--master-port", "0", script], "--master-port: found 0, expected 1 to 65535"),
        (["--memory", "0", script], "--memory: found 0, expected 1 or more"),
    ):
        with pytest.raises(SystemExit, match="2"):
            local.main(arguments)
        assert text in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, text in (
            (["missing.py"], "script missing.py: no such file\n"),
            (["-m", "missing.module"], "module missing.module: not found\n"),
            (["--master-port", port, script], f"--master-port {port}: Address already in use; "),
        ):
            assert local.main(arguments) == 1
            assert capsys.readouterr().err.startswith(f"tally.local: error: {text}")


def test_programs_that_cannot_run(place):
    script = place.script(NUMPY)
    programs = place.folder / "bin"
    programs.mkdir()
    _, err = place.run(script, code=1, TALLY_PROGRAMS=str(programs))
    assert err == f"tally.local: error: TALLY_PROGRAMS: {programs / 'tally-switch'}: no such file\n"
    for name in "tally-switch", "tally-agent":
        (programs / name).write_text("#!/bin/sh\necho no memory; exit 4\n")
        (programs / name).chmod(0o755)
    _, err = place.run(script, code=1, TALLY_PROGRAMS=str(programs))
    assert err == "tally.local: error: switch ended with exit code 4:\n    no memory\n"


def test_machines_that_do_not_fit(monkeypatch, tmp_path):
    with pytest.raises(local._Error, match="100 MiB are available, switch and agents of 2 ranks need"):
        local._check_memory(2, 100)
    local._check_memory(2, 1000)
    monkeypatch.setattr(local, "_BUNDLE", tmp_path)
    monkeypatch.delenv("TALLY_PROGRAMS", raising=False)
    bundle = {"machine": "m68k", "cpu_flags": [], "dpdk": "22.11.11", "drivers": []}
    (tmp_path / "bundle.json").write_text(json.dumps(bundle))
    with pytest.raises(local._Error, match="built for m68k, this machine is"):
        local._find_programs()
    bundle |= {"machine": os.uname().machine, "cpu_flags": ["avx4096"]}
    (tmp_path / "bundle.json").write_text(json.dumps(bundle))
    with pytest.raises(local._Error, match="CPU without avx4096: DPDK 22.11.11"):
        local._find_programs()


def test_version():
    assert tally.__version__[0].isdigit()
