"""A whole Tally on this machine, for tests and first steps: `python cluster.py [--hosts N] [--once] WORKERS -- COMMAND...`.

The command runs at every rank, or `--once`, if it is torchrun, which starts the ranks itself.

A switch on packet sockets, agents and a parameter server are real processes, each in a network namespace of its own, as
`tally-perf demo` has them. Training processes stay outside: they only need an agent's socket. Needs root, and
ends all that it started.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
JOB = 7
KEY = "00112233445566778899aabbccddeeff"
SWITCH = "10.84.0.254"


def programs() -> pathlib.Path:
    """Where tally-switch and tally-agent are."""
    given = os.environ.get("TALLY_PROGRAMS")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    folder = pathlib.Path(given) if given else target / "release"
    for name in ("tally-switch", "tally-agent"):
        if not (folder / name).exists():
            raise FileNotFoundError(
                f"{folder / name} is missing: cargo build --release -p tally-switch -p tally-agent"
            )
    return folder


# Of this process's clusters.
_NUMBERS = itertools.count()


class Cluster:
    """A switch, a parameter server and an agent on each of `hosts` hosts, for one job of `workers`.

    Rank r's agent is that of host r modulo `hosts`. Frames of an `mtu` of 9000 carry 8 KiB, others 1 KiB.
    """

    def __init__(
        self,
        workers: int,
        hosts: int | None = None,
        join_ms: int = 20_000,
        stall_ms: int = 10_000,
        mtu: int = 1500,
        memory_mib: int = 1024,
    ):
        self.workers = workers
        self.mtu = mtu
        self.memory_mib = memory_mib
        self.payload_bytes = 8192 if mtu >= 9000 else 1024
        self.hosts = hosts or workers
        self.timeouts = {"join_ms": join_ms, "stall_ms": stall_ms}
        # Named so that other tools of this repository remove what a killed run leaves behind.
        self.prefix = f"tally-{os.getpid()}-{next(_NUMBERS)}-"
        self.namespaces: list[str] = []
        self.running: list[tuple[str, subprocess.Popen, pathlib.Path]] = []

    def __enter__(self) -> Cluster:
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            self.folder = pathlib.Path(tempfile.mkdtemp(prefix=self.prefix))
            self.programs = programs()
            self._wire()
            self.start_switch()
            for host in range(self.hosts):
                self.start_agent(host)
            self.start_ps()
            for rank in range(self.workers):
                (self.folder / f"rank{rank}.sock").symlink_to(self.socket(rank))
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def socket(self, rank: int) -> str:
        return str(self.folder / f"agent{rank % self.hosts}.sock")

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

    def start_agent(self, host: int, key: str = KEY) -> None:
        config = {
            "socket": str(self.folder / f"agent{host}.sock"),
            "switch": {"address": SWITCH},
            "transport": {"type": "udp", "bind": f"10.84.0.{host + 1}"},
            "jobs": [{"id": JOB, "key": key, "workers": self.workers}],
            "timeouts": self.timeouts,
            "payload_bytes": self.payload_bytes,
            "memory_mib": self.memory_mib,
        }
        self._start(f"agent{host}", f"host{host}", "tally-agent", ["serve"], config, "listening at")

    def kill(self, name: str) -> None:
        """Kills a process, as "agent0", "switch" or "ps", without a word to it."""
        for entry in [it for it in self.running if it[0] == name]:
            entry[1].kill()
            entry[1].wait()
            self.running.remove(entry)

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{log.read_text()}" for name, _, log in self.running)

    def stop(self) -> None:
        for _, child, _ in reversed(self.running):
            child.terminate()
        for _, child, _ in reversed(self.running):
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self.running.clear()
        for name in self.namespaces:
            subprocess.run(["ip", "netns", "delete", name], check=False)
        self.namespaces.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wire(self) -> None:
        switch = self._add("switch")
        for host in range(self.hosts + 1):
            name = self._add(f"host{host}")
            port = f"port{host}"
            mtu = ["mtu", str(self.mtu)]
            pair = ["type", "veth", "peer", "name", "eth0", *mtu, "netns", name]
            _ip("link", "add", port, *mtu, "netns", switch, *pair)
            _ip("-n", name, "address", "add", f"10.84.0.{host + 1}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", switch, "link", "set", port, "up")
            # What the kernel leaves whole for a NIC to cut up, the switch can only cut where it is UDP. Without, each
            # datagram passes the kernel alone, and a sum takes about twice as long.
            off = ["tso", "off"] + ([] if _has_superframes() else ["tx-udp-segmentation", "off"])
            _call(["ip", "netns", "exec", name, "ethtool", "-K", "eth0", *off])

    def _add(self, role: str) -> str:
        name = self.prefix + role
        _ip("netns", "add", name)
        self.namespaces.append(name)
        return name

    def start_switch(self) -> None:
        config = {
            "address": {"mac": "02:54:41:4c:4c:59", "ip": SWITCH},
            "cores": [min(os.sched_getaffinity(0))],
            "ports": [
                {"name": f"host{host}", "device": f"packet{host},iface=port{host}", "mtu": self.mtu}
                for host in range(self.hosts + 1)
            ],
            "jobs": [{"id": JOB, "key": KEY, "workers": self.workers}],
            "stats_socket": str(self.folder / "switch.sock"),
        }
        self._start("switch", "switch", "tally-switch", [], config, "running on CPU")

    def start_ps(self) -> None:
        config = {
            "switch": {"address": SWITCH},
            "jobs": [{"id": JOB, "key": KEY}],
            "transport": {"type": "udp", "bind": f"10.84.0.{self.hosts + 1}:0"},
        }
        self._start("ps", f"host{self.hosts}", "tally-agent", ["ps"], config, None)

    def _start(self, name: str, role: str, program: str, arguments: list[str], config: dict, ready: str | None) -> None:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(config))
        log = self.folder / f"{name}.log"
        command = ["ip", "netns", "exec", self.prefix + role, str(self.programs / program)]
        with log.open("wb") as into:
            child = subprocess.Popen(
                [*command, *arguments, "--config", str(path)],
                env=os.environ | {"TALLY_LOG": "info"},
                stdout=into,
                stderr=subprocess.STDOUT,
            )
        self.running.append((name, child, log))
        deadline = time.monotonic() + 20
        while ready is not None and ready not in log.read_text():
            if child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} does not start:\n{log.read_text()}")
            time.sleep(0.02)


def _has_superframes() -> bool:
    """Whether packet sockets of this kernel take several datagrams as one, which came with Linux 6.2."""
    major, minor = re.match(r"(\d+)\.(\d+)", os.uname().release).groups()
    return (int(major), int(minor)) >= (6, 2)


def _ip(*arguments: str) -> None:
    _call(["ip", *arguments])


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}{done.stdout}")


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
