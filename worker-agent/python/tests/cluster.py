"""A whole Tally on this machine, for tests and first steps: `python cluster.py WORKERS -- COMMAND...`.

A switch on packet sockets, agents and a parameter server are real processes, each in a network namespace of its own, as
`tally-perf demo` has them. Training processes stay outside: they only need an agent's socket. Needs root, and
ends all that it started.
"""

from __future__ import annotations

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
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def socket(self, rank: int) -> str:
        return str(self.folder / f"agent{rank % self.hosts}.sock")

    def environment(self, rank: int) -> dict[str, str]:
        """What torchrun would set, and how to find the agent."""
        return os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(20_000 + os.getpid() % 10_000),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "TALLY_JOB": str(JOB),
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
            # datagram passes the kernel alone, and a sum takes three times as long.
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
    arguments = sys.argv[1:]
    if len(arguments) < 3 or arguments[1] != "--" or not arguments[0].isdigit():
        print("usage: cluster.py WORKERS -- COMMAND...", file=sys.stderr)
        return 2
    with Cluster(int(arguments[0])) as cluster:
        outcomes = cluster.run(arguments[2:], timeout=600)
        for _, text in outcomes:
            print(text, end="")
        if any(code for code, _ in outcomes):
            print(cluster.logs(), file=sys.stderr)
    return max(abs(code) for code, _ in outcomes)


if __name__ == "__main__":
    sys.exit(main())
