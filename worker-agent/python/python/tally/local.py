"""Launcher of a training on one machine: ``python -m tally.local train.py``.

It starts a Tally switch, an agent for each rank and a parameter server, runs the script once for
each rank, and ends all of them. They exchange frames over ``net_memif``, which is shared memory: no
privileges, no hugepages, no network interface.

* Ranks have the environment that ``torchrun`` sets, ``TALLY_JOB`` and ``TALLY_SOCKET``, and an
  empty standard input.
* The exit code is that of the first rank that fails.
* The programs come from ``TALLY_PROGRAMS``, this package's wheel, ``PATH`` or the repository, in
  that order.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import platform
import re
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import IO, Any, Iterator, NoReturn, Optional, Sequence

RANKS_MAX = 16
"""Most ranks. Distributed builds of DPDK have at most 32 ports, one for each rank."""

_NAME = "tally.local"
_JOB = 1
_SWITCH = "10.84.0.254"
_MTU = 9000
_PAYLOAD_BYTES = 8192
# Each buffer holds a frame of that MTU. More than 2^5 buffers exceed the caches.
_MEMIF = "bsize=9216,rsize=5"
# Resident memory of switch and parameter server; and of the switch's port and the agent of a rank.
_MEMORY_MIB = 100
_RANK_MEMORY_MIB = 75
_START_S = 30.0
# From a signal to SIGKILL.
_GRACE_S = 5.0
# From SIGTERM to SIGKILL of the daemons whose logs are kept.
_LOG_GRACE_S = 2.0
_POLL_S = 0.005
_LOG_LINES = 12
_PROGRAMS = ("tally-switch", "tally-agent")
_BUNDLE = pathlib.Path(__file__).parent / "_bundle"
# A Unix socket's path has at most 107 bytes, and commas separate a device's arguments.
_FOLDER = re.compile(r"[\w./-]{1,70}", re.ASCII)


class _Error(Exception):
    """Error that ends the launcher with exit code 1."""


class _Interrupted(Exception):
    """The launcher received SIGINT, SIGTERM or SIGHUP."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the launcher, and returns its exit code.

    ``arguments`` are by default those of ``sys.argv``.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if not 1 <= options.ranks <= RANKS_MAX:
        parser.error(f"--ranks: found {options.ranks}, expected 1 to {RANKS_MAX}")
    if options.master_port is not None and not 1 <= options.master_port <= 65535:
        parser.error(f"--master-port: found {options.master_port}, expected 1 to 65535")
    if options.memory < 1:
        parser.error(f"--memory: found {options.memory}, expected 1 or more")
    try:
        command = _command(options)
        _check_memory(options.ranks, _available_mib())
        programs, environment = _find_programs()
        port = _master_port(options.master_port)
        with _Run(options, programs, environment) as run:
            return run.train(command, port)
    except _Interrupted as interrupted:
        return 128 + interrupted.number
    except BrokenPipeError:
        # The reader of our output has ended. Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (_Error, OSError) as error:
        print(f"{_NAME}: error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {_NAME}",
        usage="%(prog)s [options] (SCRIPT | -m MODULE) [ARGUMENT...]",
        description="Runs a Python script once for each rank of a Tally job, with a switch, agents and a parameter "
        "server on this machine.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--ranks", type=int, default=2, metavar="N", help=f"number of ranks, 1 to {RANKS_MAX} (default: 2)")
    add("-m", dest="module", action="store_true", help="module in place of the script, as of python -m")
    add("--master-port", type=int, metavar="PORT", help="MASTER_PORT of the ranks (default: a free port)")
    add(
        "--memory",
        type=int,
        default=16384,
        metavar="MIB",
        help="upper bound of the memory that a rank shares with its agent, in MiB (default: 16384)",
    )
    add("--log", type=pathlib.Path, metavar="DIR", help="folder for the logs of switch, agents and parameter server")
    add("--verbose", action="store_true", help="logs of switch, agents and parameter server on standard error")
    add("--keep", action="store_true", help="temporary folder with configurations and logs kept")
    add("script", metavar="SCRIPT", help="Python script of a rank")
    add("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="arguments of the script")
    return parser


def _command(options: argparse.Namespace) -> list[str]:
    """Command line of a rank."""
    if options.module:
        top = options.script.partition(".")[0]
        if not top.isidentifier() or importlib.util.find_spec(top) is None:
            raise _Error(f"module {options.script}: not found")
        return [sys.executable, "-m", options.script, *options.arguments]
    if not os.path.exists(options.script):
        raise _Error(f"script {options.script}: no such file")
    return [sys.executable, options.script, *options.arguments]


def _available_mib() -> int:
    """Memory available to new processes, in MiB."""
    with open("/proc/meminfo") as file:
        found = re.search(r"MemAvailable: +(\d+) kB", file.read())
    available = int(found[1]) >> 10 if found else sys.maxsize
    try:
        # The limit of a container.
        with open("/sys/fs/cgroup/memory.max") as file:
            return min(available, int(file.read()) >> 20)
    except (OSError, ValueError):
        return available


def _check_memory(ranks: int, available_mib: int) -> None:
    needed = _MEMORY_MIB + _RANK_MEMORY_MIB * ranks
    if available_mib < needed:
        raise _Error(
            f"not enough memory: {available_mib} MiB are available, switch and agents of {ranks} ranks need {needed} MiB; "
            "lower --ranks"
        )


def _find_programs() -> tuple[pathlib.Path, dict[str, str]]:
    """Folder of the programs, and additions to their environment."""
    given = os.environ.get("TALLY_PROGRAMS")
    if given:
        folder = pathlib.Path(given)
        for name in _PROGRAMS:
            if not (folder / name).is_file():
                raise _Error(f"TALLY_PROGRAMS: {folder / name}: no such file")
        return folder, {}
    if (_BUNDLE / "bundle.json").is_file():
        return _BUNDLE / "bin", _bundle_environment()
    on_path = shutil.which(_PROGRAMS[0])
    if on_path:
        folder = pathlib.Path(on_path).parent
        if all((folder / name).is_file() for name in _PROGRAMS):
            return folder, {}
    for above in pathlib.Path(__file__).resolve().parents:
        if (above / "worker-agent" / "python" / "pyproject.toml").is_file():
            folder = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", above / "target")) / "release"
            if all((folder / name).is_file() for name in _PROGRAMS):
                return folder, {}
    raise _Error(
        f"{' and '.join(_PROGRAMS)}: not found: this package was built without them; `pip install` the wheel of "
        "worker-agent/python/wheel, or set TALLY_PROGRAMS to their folder, or add it to PATH"
    )


def _bundle_environment() -> dict[str, str]:
    with open(_BUNDLE / "bundle.json") as file:
        bundle: dict[str, Any] = json.load(file)
    if platform.machine() != bundle["machine"]:
        raise _Error(
            f"this package is built for {bundle['machine']}, this machine is {platform.machine()}: "
            f"install the wheel for {platform.machine()}"
        )
    missing = sorted(set(bundle["cpu_flags"]) - _cpu_flags())
    if missing:
        raise _Error(
            f"CPU without {', '.join(missing)}: DPDK {bundle['dpdk']} of this package needs "
            f"{', '.join(bundle['cpu_flags'])}; build Tally and DPDK on this machine"
        )
    libraries = str(_BUNDLE / "lib")
    others = os.environ.get("LD_LIBRARY_PATH")
    return {
        "LD_LIBRARY_PATH": f"{libraries}:{others}" if others else libraries,
        # DPDK's drivers, which register themselves when loaded.
        "LD_PRELOAD": " ".join(bundle["drivers"]),
    }


def _cpu_flags() -> set[str]:
    with open("/proc/cpuinfo") as file:
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", file.read(), re.MULTILINE)
    return set(found[1].split()) if found else set()


def _master_port(given: Optional[int]) -> int:
    """MASTER_PORT: free now, bound later by a rank."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", given or 0))
        except OSError as error:
            raise _Error(
                f"--master-port {given}: {error.strerror}; without --master-port a free port is chosen"
            ) from None
        port: int = probe.getsockname()[1]
        return port


def _claim_cpu() -> tuple[int, Optional[socket.socket]]:
    """CPU of the switch's data core, and the claim that keeps other launchers from it.

    It is the last CPU that no other launcher has, because other programs pin from the first on. A
    claim is an abstract Unix socket, which ends with this process. If all CPUs are taken, launchers
    share the last one.
    """
    cpus = sorted(os.sched_getaffinity(0), reverse=True)
    for cpu in cpus:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0tally-local-cpu-{cpu}")
            return cpu, claim
        except OSError:
            claim.close()
    return cpus[0], None


class _Signals:
    """Signals to this process, as bytes of a pipe for a selector."""

    _ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __enter__(self) -> _Signals:
        self.reader, self._writer = os.pipe()
        for end in (self.reader, self._writer):
            os.set_blocking(end, False)
        self._fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        # An ignored signal stays ignored, as SIGHUP under nohup.
        taken = [it for it in self._ENDING if signal.getsignal(it) is not signal.SIG_IGN]
        self._handlers = {it: signal.signal(it, lambda *_: None) for it in (*taken, signal.SIGCHLD)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd)
        os.close(self.reader)
        os.close(self._writer)

    def take(self) -> Optional[int]:
        """Empties the pipe and returns the first signal in it that ends the launcher."""
        try:
            numbers = os.read(self.reader, 4096)
        except BlockingIOError:
            return None
        return next((it for it in numbers if it in self._ENDING), None)

    def check(self) -> None:
        number = self.take()
        if number is not None:
            raise _Interrupted(number)


class _Daemon:
    """The switch, an agent or the parameter server."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], log: pathlib.Path) -> None:
        self.name, self.log, self._printed = name, log, 0
        with log.open("wb") as into:
            self.child = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=into,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def check(self) -> None:
        """Raises an error if the daemon has ended."""
        code = self.child.poll()
        if code is not None:
            lines = self.text().splitlines()[-_LOG_LINES:]
            raise _Error("\n    ".join([f"{self.name} ended with {_describe(code)}:", *lines]))

    def print_log(self) -> None:
        """Prints the new complete lines of the log."""
        with self.log.open("rb") as file:
            file.seek(self._printed)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        self._printed += len(new)
        for line in new.decode(errors="replace").splitlines():
            print(f"[{self.name}] {line}", file=sys.stderr, flush=True)


class _Lines:
    """An output stream of a rank; each line gets a prefix."""

    _END = re.compile(rb"\r\n|\n|\r")
    _BYTES_MAX = 1 << 16

    def __init__(self, rank: int, pipe: IO[bytes], into: int) -> None:
        self.fd, self._pipe, self._into = pipe.fileno(), pipe, into
        self._prefix = f"[rank {rank}] ".encode()
        self._rest = b""
        os.set_blocking(self.fd, False)

    def read(self) -> bool:
        """Passes on complete lines without waiting.

        Returns False at the end of the stream.
        """
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return True
        self._rest += data
        if data and len(self._rest) < self._BYTES_MAX:
            end = max(self._rest.rfind(b"\n"), self._rest.rfind(b"\r")) + 1
        else:
            end = len(self._rest)
        lines, self._rest = self._rest[:end], self._rest[end:]
        self._write(lines)
        return bool(data)

    def drain(self) -> None:
        """Passes on all output without waiting, including an incomplete last line."""
        while _is_readable(self.fd) and self.read():
            pass
        rest, self._rest = self._rest, b""
        self._write(rest)
        self._pipe.close()

    def _write(self, lines: bytes) -> None:
        if not lines:
            return
        text, at = b"", 0
        for end in self._END.finditer(lines):
            text += self._prefix + lines[at : end.end()]
            at = end.end()
        if at < len(lines):
            text += self._prefix + lines[at:] + b"\n"
        while text:
            text = text[os.write(self._into, text) :]


def _is_readable(fd: int) -> bool:
    """Whether a read returns at once."""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        return bool(selector.select(0))


class _Run:
    """One launch: the folder, the daemons, the ranks, and the guard that ends them."""

    def __init__(self, options: argparse.Namespace, programs: pathlib.Path, environment: dict[str, str]) -> None:
        self.options = options
        self.ranks: int = options.ranks
        self.programs = programs
        self.program_environment = environment
        self.key = secrets.token_hex(16)
        self.daemons: list[_Daemon] = []
        self.children: list[subprocess.Popen[bytes]] = []
        self.outputs: dict[int, _Lines] = {}
        self.signals = _Signals()

    def __enter__(self) -> _Run:
        self.signals.__enter__()
        temporary = tempfile.gettempdir()
        self.folder = pathlib.Path(
            tempfile.mkdtemp(prefix="tally-local-", dir=temporary if _FOLDER.fullmatch(temporary) else "/tmp")
        )
        guard = pathlib.Path(__file__).with_name("_guard.py")
        keep = "keep" if self.options.keep else "remove"
        try:
            self.guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(guard), str(self.folder), keep],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            self.folder.rmdir()
            raise
        self.cpu, self.claim = _claim_cpu()
        return self

    def __exit__(self, *_: object) -> None:
        if self.options.log or self.options.verbose or self.options.keep:
            self._complete_logs()
        # The guard kills all remaining processes, and removes the folder.
        if self.claim is not None:
            self.claim.close()
        assert self.guard.stdin is not None
        self.guard.stdin.close()
        self.guard.wait()
        for child in [*self.children, *(it.child for it in self.daemons)]:
            child.wait()
        if self.options.keep:
            print(f"{_NAME}: configurations and logs: {self.folder}", file=sys.stderr)
        self.signals.__exit__()

    def _complete_logs(self) -> None:
        """Ends the daemons in order, so that they log their counters."""
        for daemon in self.daemons:
            daemon.child.terminate()
        deadline = time.monotonic() + _LOG_GRACE_S
        for daemon in self.daemons:
            try:
                daemon.child.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                break
        if self.options.verbose:
            self._print_logs()

    def train(self, command: list[str], port: int) -> int:
        """Runs the command at every rank; returns the exit code of the launcher."""
        begin = time.monotonic()
        self._start_daemons()
        if self.options.verbose:
            print(f"{_NAME}: ready after {time.monotonic() - begin:.2f} s", file=sys.stderr, flush=True)
        for rank in range(self.ranks):
            self._start_rank(rank, command, port)
        try:
            return self._wait()
        except BaseException:
            self._end_ranks(signal.SIGTERM)
            raise
        finally:
            for output in self.outputs.values():
                output.drain()

    def _start_daemons(self) -> None:
        jobs = [{"id": _JOB, "key": self.key, "workers": self.ranks}]
        names = [*(f"rank{rank}" for rank in range(self.ranks)), "ps"]
        switch = {
            "address": {"mac": "02:54:41:4c:4c:59", "ip": _SWITCH},
            "cores": [self.cpu],
            "ports": [
                {"name": name, "device": f"net_memif{host},{self._memif(host, 'server')}", "mtu": _MTU}
                for host, name in enumerate(names)
            ],
            "jobs": jobs,
            "stats_socket": str(self.folder / "switch.sock"),
        }
        self._start("switch", "tally-switch", [], switch)
        # A client without a server retries only after a second.
        self._await_line(self.daemons[0], "running on CPU")
        for rank in range(self.ranks):
            agent = {
                "socket": self._socket(rank),
                "switch": {"address": _SWITCH},
                "transport": self._transport(rank),
                "jobs": jobs,
                "payload_bytes": _PAYLOAD_BYTES,
                "memory_mib": self.options.memory,
                "access": {"mode": "0600"},
            }
            self._start(f"agent{rank}", "tally-agent", ["serve"], agent)
        server = {
            "switch": {"address": _SWITCH},
            "transport": self._transport(self.ranks),
            "jobs": [{"id": _JOB, "key": self.key}],
        }
        self._start("ps", "tally-agent", ["ps"], server)
        for daemon in self.daemons[1 : self.ranks + 1]:
            self._await_line(daemon, "listening at")

    def _memif(self, host: int, role: str) -> str:
        return f"role={role},id={host},socket={self.folder / 'memif.sock'},socket-abstract=no,{_MEMIF}"

    def _transport(self, host: int) -> dict[str, str]:
        return {
            "type": "dpdk",
            "device": f"net_memif0,{self._memif(host, 'client')},zero-copy=yes",
            "mac": f"02:84:00:00:00:{host:02x}",
            "address": f"10.84.0.{host + 1}",
        }

    def _socket(self, rank: int) -> str:
        return str(self.folder / f"agent{rank}.sock")

    def _start(self, name: str, program: str, arguments: list[str], config: dict[str, Any]) -> None:
        self.signals.check()
        path = self.folder / f"{name}.json"
        # The file has the job's key.
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            json.dump(config, file, indent=1)
        logs = self.options.log or self.folder
        logs.mkdir(parents=True, exist_ok=True)
        command = [str(self.programs / program), *arguments, "--config", str(path)]
        environment = os.environ | self.program_environment | {"TALLY_LOG": "info", "TALLY_LOCAL": str(self.folder)}
        self.daemons.append(_Daemon(name, command, environment, logs / f"{name}.log"))

    def _await_line(self, daemon: _Daemon, line: str) -> None:
        deadline = time.monotonic() + _START_S
        while line not in daemon.text():
            self.signals.check()
            daemon.check()
            if time.monotonic() > deadline:
                raise _Error(f"{daemon.name}: not ready after {_START_S:.0f} s:\n{daemon.text()}")
            time.sleep(_POLL_S)

    def _start_rank(self, rank: int, command: list[str], port: int) -> None:
        self.signals.check()
        # The switch and the agents use about two CPUs.
        threads = max(1, (len(os.sched_getaffinity(0)) - 2) // self.ranks)
        given = {"OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo"}
        if self.ranks > 1:
            # Python buffers output to a pipe.
            given["PYTHONUNBUFFERED"] = "1"
        environment = (
            given
            | os.environ
            | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "GROUP_RANK": "0",
                "WORLD_SIZE": str(self.ranks),
                "LOCAL_WORLD_SIZE": str(self.ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TALLY_JOB": str(_JOB),
                "TALLY_SOCKET": self._socket(rank),
                "TALLY_LOCAL": str(self.folder),
            }
        )
        pipe = subprocess.PIPE if self.ranks > 1 else None
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self.children.append(child)
        for stream, into in ((child.stdout, 1), (child.stderr, 2)):
            if stream is not None:
                output = _Lines(rank, stream, into)
                self.outputs[output.fd] = output

    def _wait(self) -> int:
        """Waits until all ranks have ended or one has failed. Returns the exit code."""
        running = dict(enumerate(self.children))
        for number in self._signals_and_output():
            if number is not None:
                self._end_ranks(number)
                raise _Interrupted(number)
            for rank, child in list(running.items()):
                code = child.poll()
                if code is None:
                    continue
                del running[rank]
                if code != 0:
                    self._end_ranks(signal.SIGTERM)
                    what = f"rank {rank} ended with {_describe(code)}"
                    others = "; the other ranks were terminated" if running else ""
                    print(f"{_NAME}: error: {what}{others}", file=sys.stderr)
                    return code if code > 0 else 128 - code
            if not running:
                return 0
            for daemon in self.daemons:
                daemon.check()
        raise AssertionError("unreachable")

    def _end_ranks(self, number: int) -> None:
        """Sends the signal to all ranks; SIGKILL after a grace period or a second signal."""
        for child in self.children:
            if child.poll() is None:
                try:
                    os.killpg(child.pid, number)
                except ProcessLookupError:
                    pass
        for again in self._signals_and_output(_GRACE_S):
            if all(child.poll() is not None for child in self.children):
                return
            if again is not None:
                break
        for child in self.children:
            child.kill()

    def _signals_and_output(self, seconds: Optional[float] = None) -> Iterator[Optional[int]]:
        """Passes on output, and yields the signal to end, if any.

        Yields at first and after each event.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.signals.reader, selectors.EVENT_READ)
            for output in self.outputs.values():
                selector.register(output.fd, selectors.EVENT_READ, output)
            yield self.signals.take()
            while deadline is None or time.monotonic() < deadline:
                # Children and signals wake the selector; the logs of --verbose do not.
                limit = 0.2 if self.options.verbose else None
                if deadline is not None:
                    limit = max(0.0, deadline - time.monotonic())
                for key, _ in selector.select(limit):
                    if key.data is not None and not key.data.read():
                        selector.unregister(key.fd)
                        del self.outputs[key.fd]
                        key.data.drain()
                if self.options.verbose:
                    self._print_logs()
                yield self.signals.take()

    def _print_logs(self) -> None:
        for daemon in self.daemons:
            daemon.print_log()


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


if __name__ == "__main__":
    sys.exit(main())
