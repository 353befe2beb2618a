"""A whole Tally on this machine, for tests and first steps:
`python cluster.py [--hosts N] [--once] WORKERS -- COMMAND...`.

The command runs at every rank, or `--once`, if it is torchrun, which starts the ranks itself.

A switch on packet sockets, agents and a parameter server are real processes, each in a network
namespace of its own: `tally-testkit cluster` starts and ends them. Training processes stay outside:
they only need an agent's socket. Needs root.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
JOB = 7


def programs() -> pathlib.Path:
    """Where tally-switch, tally-agent and tally-testkit are."""
    given = os.environ.get("TALLY_PROGRAMS")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    folder = pathlib.Path(given) if given else target / "release"
    names = ("tally-switch", "tally-agent", "tally-testkit")
    for name in names:
        if not (folder / name).exists():
            raise FileNotFoundError(f"{folder / name} is missing: cargo build --release -p {' -p '.join(names)}")
    return folder


class Cluster:
    """A switch, a parameter server and agents on `hosts` hosts, for one job of `workers`.

    Rank r's agent is that of host r modulo `hosts`; with `ranks_per_host` that of host r //
    `ranks_per_host`, and each host is one worker of the switch. Frames of an `mtu` of 9000 carry 8
    KiB, others 1 KiB.
    """

    def __init__(
        self,
        workers: int,
        hosts: int | None = None,
        join_ms: int = 20_000,
        stall_ms: int = 30_000,
        mtu: int = 1500,
        memory_mib: int = 1024,
        ranks_per_host: int = 1,
    ):
        self.workers = workers
        self.hosts = hosts or workers // ranks_per_host
        options = {
            "workers": workers,
            **({"agents": self.hosts} if ranks_per_host == 1 else {"ranks-per-host": ranks_per_host}),
            "mtu": mtu,
            "payload": 8192 if mtu >= 9000 else 1024,
            "join-ms": join_ms,
            "stall-ms": stall_ms,
            "memory-mib": memory_mib,
        }
        self.options = [f"--{name}={value}" for name, value in options.items()]

    def __enter__(self) -> Cluster:
        folder = programs()
        # In a session of its own: Ctrl-C reaches it as the end of its standard input.
        self.child = subprocess.Popen(
            [folder / "tally-testkit", "cluster", *self.options, f"--programs={folder}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            self._answer(120)
            self.folder = pathlib.Path(self.state["folder"])
            for rank in range(self.workers):
                (self.folder / f"rank{rank}.sock").symlink_to(self.socket(rank))
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def namespace(self, rank: int) -> str:
        """The network namespace of a rank's host."""
        return self.state["namespaces"][1 + rank % self.hosts]

    def socket(self, rank: int) -> str:
        return self.state["sockets"][rank]

    def launcher_environment(self) -> dict[str, str]:
        """For torchrun: how its ranks find the agent, each its own if there are several."""
        socket = self.socket(0) if self.hosts == 1 else self.folder / "rank{local_rank}.sock"
        return os.environ | {
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "TALLY_JOB": str(JOB),
            "TALLY_SOCKET": str(socket),
        }

    def environment(self, rank: int) -> dict[str, str]:
        """For one rank: what torchrun would set, too."""
        return self.launcher_environment() | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(20_000 + os.getpid() % 10_000),
            "TALLY_SOCKET": self.socket(rank),
        }

    def run(self, command: list[str], timeout: float = 120, **more: str) -> list[tuple[int, str]]:
        """Runs a command at every rank; returns each one's exit code and output."""
        children, outputs = [], []
        try:
            for rank in range(self.workers):
                output = self.folder / f"rank{rank}.log"
                outputs.append(output)
                with output.open("wb") as into:
                    children.append(
                        subprocess.Popen(
                            command,
                            env=self.environment(rank) | more,
                            stdout=into,
                            stderr=subprocess.STDOUT,
                        )
                    )
            deadline = time.monotonic() + timeout
            for child in children:
                try:
                    child.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    child.send_signal(signal.SIGABRT)
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                child.wait()
        return [(child.returncode, out.read_text()) for child, out in zip(children, outputs)]

    def run_python(self, source: str, *arguments: str, timeout: float = 120, **more: str) -> list[tuple[int, str]]:
        """As `run` of `python -c SOURCE ARGUMENTS`, with torch imported once for all ranks."""
        outputs = [self.folder / f"rank{rank}.log" for rank in range(self.workers)]
        given = {
            "source": source,
            "arguments": arguments,
            "timeout": timeout,
            "environments": [self.environment(rank) | more for rank in range(self.workers)],
            "outputs": [str(output) for output in outputs],
        }
        codes = Forks.ask(given, timeout + 60)
        return [(code, output.read_text()) for code, output in zip(codes, outputs)]

    def start_agent(self, host: int, key: str = "") -> None:
        """In place of a killed one; with another key of the job, if one is given."""
        self._ask(f"start agent{host} {key}")

    def start_switch(self) -> None:
        self._ask("start switch")

    def start_ps(self) -> None:
        self._ask("start ps")

    def kill(self, name: str) -> None:
        """Kills a process, as "agent0", "switch" or "ps", without a word to it."""
        self._ask(f"kill {name}")

    def logs(self) -> str:
        logs = [self.folder / "switch.log", self.folder / "ps.log", *sorted(self.folder.glob("agent-*.log"))]
        return "\n".join(f"--- {log.stem}\n{log.read_text()}" for log in logs)

    def stop(self) -> None:
        """Ends all processes and removes what they had."""
        self.child.stdin.close()
        try:
            self.child.wait(30)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.child.stdout.close()

    def _ask(self, command: str) -> None:
        self.child.stdin.write(f"{command}\n".encode())
        self.child.stdin.flush()
        self._answer(30)

    def _answer(self, seconds: float) -> None:
        ready, _, _ = select.select([self.child.stdout], [], [], seconds)
        line = self.child.stdout.readline() if ready else b""
        if not line:
            raise RuntimeError(f"tally-testkit: {'has ended' if ready else f'no answer in {seconds} s'}: see above")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"tally-testkit: {answer['error']}")
        self.state = answer


class Forks:
    """The process of `fork.py`, for all clusters of this one."""

    process: subprocess.Popen | None = None

    @classmethod
    def ask(cls, given: dict, seconds: float) -> list[int]:
        if cls.process is None:
            # In a session of its own: Ctrl-C is for this process, which ends it.
            cls.process = subprocess.Popen(
                [sys.executable, str(pathlib.Path(__file__).with_name("fork.py"))],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            atexit.register(cls.stop)
        answer = b""
        try:
            cls.process.stdin.write(json.dumps(given).encode() + b"\n")
            cls.process.stdin.flush()
            ready, _, _ = select.select([cls.process.stdout], [], [], seconds)
            answer = cls.process.stdout.readline() if ready else b""
        finally:
            if not answer:
                cls.stop()
        if not answer:
            raise RuntimeError(f"fork.py has ended, or gave no answer in {seconds} s: see above")
        return json.loads(answer)

    @classmethod
    def stop(cls) -> None:
        """Ends it and the ranks that it has started."""
        process, cls.process = cls.process, None
        if process is not None:
            process.terminate()
            process.wait()
            process.stdin.close()
            process.stdout.close()


def main() -> int:
    usage = "%(prog)s [--hosts N] [--once] WORKERS -- COMMAND..."
    parser = argparse.ArgumentParser(usage=usage, description=__doc__.splitlines()[0].partition(":")[0])
    parser.add_argument("--hosts", type=int, help="agents, each on a host of its own (one for each worker)")
    parser.add_argument("--once", action="store_true", help="run the command once: it is torchrun")
    parser.add_argument("workers", type=int, metavar="WORKERS")
    if "--" not in sys.argv:
        parser.error("a command is missing: -- COMMAND...")
    at = sys.argv.index("--")
    given, command = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :]
    hosts = given.workers if given.hosts is None else given.hosts
    if not command or not 1 <= hosts <= given.workers <= 64:
        parser.error("1 to 64 workers, on 1 to as many hosts, and a command")
    # Its end is an exception, so that all that was started ends too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Cluster(given.workers, hosts) as cluster:
        if given.once:
            with subprocess.Popen(command, env=cluster.launcher_environment()) as child:
                try:
                    code = child.wait()
                finally:
                    child.terminate()
        else:
            outcomes = cluster.run(command, timeout=600)
            for _, text in outcomes:
                print(text, end="")
            code = max(abs(code) for code, _ in outcomes)
        if code:
            print(cluster.logs(), file=sys.stderr)
    return abs(code)


if __name__ == "__main__":
    sys.exit(main())
