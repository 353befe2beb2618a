"""Sums of numpy arrays over the hosts of a job, made by a Tally switch.

A process joins a job through the agent of its host (``tally-agent serve``)::

    import numpy, tally

    gradients = numpy.ones(1000, numpy.float32)
    tally.all_reduce(gradients)          # in place: 2.0 everywhere, with two workers

Job and rank come from the environment (:func:`init`). A :class:`Job` does the same for a part of a
program, or for several jobs::

    with tally.Job(job=7, rank=0, workers=2) as job:
        job.all_reduce(gradients)

All ranks must bring the same collectives in the same order. A difference is an error that names the
ranks, never a wrong sum. For PyTorch see :mod:`tally.torch`.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, Optional

import numpy

from . import _native
from ._default import _socket_from_environment, all_reduce, barrier, broadcast, init, shutdown
from ._errors import (
    AgentGoneError,
    ArgumentError,
    ClosedError,
    ConnectError,
    JoinError,
    LimitError,
    LinkError,
    MemberError,
    MismatchError,
    OverflowError,
    RefusedError,
    TallyError,
    TimeoutError,
    VersionError,
)
from ._version import __version__ as __version__

if TYPE_CHECKING:
    from .hook import ddp_hook as ddp_hook

__all__ = [
    "DEFAULT_SOCKET",
    "AgentGoneError",
    "ArgumentError",
    "ClosedError",
    "ConnectError",
    "Handle",
    "Job",
    "JoinError",
    "LimitError",
    "LinkError",
    "MemberError",
    "MismatchError",
    "OverflowError",
    "RefusedError",
    "TallyError",
    "TimeoutError",
    "VersionError",
    "all_reduce",
    "barrier",
    "broadcast",
    "init",
    "shutdown",
    "status",
]

DEFAULT_SOCKET = "/run/tally/agent/agent.sock"
"""The agent's socket by default."""

_DTYPES = {
    numpy.dtype(numpy.float32): "f32",
    numpy.dtype(numpy.float16): "f16",
    numpy.dtype(numpy.int32): "i32",
    numpy.dtype(numpy.int16): "i16",
    numpy.dtype(numpy.int8): "i8",
}
_OPS = ("sum", "mean")
_ARITHMETICS = ("native", "fixed", "own")
_NAME_BYTES_MAX = 255


def __getattr__(name: str) -> Any:
    # Import on demand: torch is optional.
    if name == "ddp_hook":
        from .hook import ddp_hook

        return ddp_hook
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def status(socket: Optional[str] = None, timeout: float = 5.0) -> dict[str, Any]:
    """Status of the jobs and ranks of the agent at ``socket``, by default ``TALLY_SOCKET``.

    The dictionary is that of ``tally-agent status --json``. Raises :class:`TallyError` if no agent
    answers within ``timeout`` seconds.
    """
    socket = _socket_from_environment() if socket is None else str(socket)
    return json.loads(_native.status(socket, float(timeout)))


class Handle:
    """A collective in flight.

    The array belongs to the agent until :meth:`wait` has returned: neither read nor write it.
    """

    def __init__(self, job: _native.Job, ticket: int, bytes_: Any, result: Any) -> None:
        self._job = job
        self._ticket: Optional[int] = ticket
        self._bytes = bytes_
        self._result = result

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Waits for the results and returns the array.

        ``timeout`` is in seconds, by default the job's. Raises the errors of
        :meth:`Job.all_reduce`, at each call. After an error the array holds its old values.

        After a timeout or Ctrl-C it can be waited for again. The :class:`TimeoutError` names the
        missing ranks, as far as the agent knows: it needs about 1.5 s without a result. With a
        ``timeout`` of 0 the call only polls, and the error names no ranks.
        """
        if self._ticket is not None:
            self._job.wait(self._ticket, self._bytes, timeout)
            self._ticket = None
        return self._result

    def __del__(self) -> None:
        if getattr(self, "_ticket", None) is not None:
            self._job.abandon(self._ticket)


class Job:
    """Membership of one rank in a job, through the agent on this host.

    * ``job``: number of the job in the agent's and the switch's configuration.
    * ``rank``: 0 to ``workers - 1``.
    * ``workers``: 1 to 64 at one switch, to 4096 in a tree of switches.
    * ``socket``: path of the agent's socket; by default ``TALLY_SOCKET``, or
      :data:`DEFAULT_SOCKET`.
    * ``timeout``: seconds for connecting and for each collective. The agent's own ``timeouts``
      usually end a collective sooner.

    The search for an agent ends after 10 s at most. The wait for the rank of a process that has
    just ended lasts 30 s at most. After 2 s, and then every 2 s, the logger ``tally`` warns.
    Without :mod:`logging` configured that is a line on standard error.

    Raises :class:`ConnectError` without an agent, :class:`RefusedError` if the agent refuses, and
    :class:`VersionError` if it has another version. Other ranks may come later: the first
    collective raises :class:`JoinError` for missing ranks.

    Use it in a ``with`` statement, or :meth:`close` it. A job that ends in another way has failed
    for all ranks. Threads may share it if all ranks submit in the same order. A forked child may
    not use it.
    """

    def __init__(
        self,
        job: int,
        rank: int,
        workers: int,
        socket: Optional[str] = None,
        timeout: float = 60.0,
    ) -> None:
        for name, value, low, high in (
            ("job", job, 0, 65535),
            ("workers", workers, 1, 4096),
            ("rank", rank, 0, 4095),
        ):
            if not low <= value <= high:
                raise ArgumentError(f"{name}: found {value}, expected {low} to {high}")
        if not timeout > 0:
            raise ArgumentError(f"timeout: found {timeout}, expected more than 0 seconds")
        self.job, self.rank, self.workers = job, rank, workers
        self._count = itertools.count()
        socket = _socket_from_environment() if socket is None else str(socket)
        self._native = _native.Job(socket, job, rank, workers, float(timeout))

    def all_reduce(
        self,
        array: numpy.ndarray,
        op: str = "sum",
        arithmetic: str = "native",
        name: Optional[str] = None,
    ) -> numpy.ndarray:
        """Replaces ``array`` by its sum or mean over all ranks, and returns it.

        ``op`` is ``"sum"`` or ``"mean"``. ``array`` has any shape, is C-contiguous, and of float32,
        float16, int32, int16 or int8. All ranks bring the same number of elements of the same type.
        Integers sum exactly; their mean is truncated toward zero.

        ``arithmetic`` is how floats are summed:

        * ``"native"``: in float32, in the order of ranks.
        * ``"own"``: in their own type on the wire.
        * ``"fixed"``: as integers with an exponent per fragment, independent of order.

        ``name`` is for errors and must be the same at all ranks.

        Raises :class:`ArgumentError` for an unsupported array, :class:`MismatchError` if ranks
        bring different ones, :class:`JoinError` if ranks are missing at the start,
        :class:`TimeoutError` or :class:`MemberError` if they stop later, :class:`OverflowError`,
        and :class:`AgentGoneError`.
        """
        return self.all_reduce_async(array, op, arithmetic, name).wait()

    def all_reduce_async(
        self,
        array: numpy.ndarray,
        op: str = "sum",
        arithmetic: str = "native",
        name: Optional[str] = None,
    ) -> Handle:
        """Starts a :meth:`all_reduce`. :meth:`Handle.wait` returns its result."""
        name = self._name("all_reduce", name)
        if op not in _OPS:
            raise ArgumentError(f"`{name}`: op: found {op!r}, expected 'sum' or 'mean'")
        if arithmetic not in _ARITHMETICS:
            raise ArgumentError(
                f"`{name}`: arithmetic: found {arithmetic!r}, expected 'native', 'fixed' or 'own'"
            )
        dtype = _check(array, name)
        return self._start(_bytes(array), array, op, 0, dtype, arithmetic, name)

    def broadcast(
        self, array: numpy.ndarray, root: int, name: Optional[str] = None
    ) -> numpy.ndarray:
        """Replaces ``array`` by the array of rank ``root``, bit by bit, and returns it.

        Arrays and errors are those of :meth:`all_reduce`.
        """
        return self.broadcast_async(array, root, name).wait()

    def broadcast_async(
        self, array: numpy.ndarray, root: int, name: Optional[str] = None
    ) -> Handle:
        """Starts a :meth:`broadcast`. :meth:`Handle.wait` returns its result."""
        name = self._name("broadcast", name)
        if not 0 <= root < self.workers:
            raise ArgumentError(
                f"`{name}`: root: found {root}, expected 0 to {self.workers - 1}"
            )
        dtype = _check(array, name)
        return self._start(_bytes(array), array, "broadcast", root, dtype, "own", name)

    def barrier(self, name: Optional[str] = None) -> None:
        """Waits until all ranks have called it. Raises the errors of :meth:`all_reduce`."""
        self.barrier_async(name).wait()

    def barrier_async(self, name: Optional[str] = None) -> Handle:
        """Starts a :meth:`barrier`. :meth:`Handle.wait` returns ``None``."""
        name = self._name("barrier", name)
        return Handle(self._native, self._native.barrier(name), None, None)

    def report_fallback(self, kind: str, count: int = 1) -> None:
        """Reports ``count`` collectives of another library, such as Gloo.

        ``tally-agent status`` shows their number by ``kind``, such as ``"all_gather"``. A kind has
        1 to 32 ASCII letters, digits, ``_``, ``-`` and ``.``. Kinds beyond 32 count as ``other``.
        Never waits, and raises only :class:`ArgumentError`.
        """
        if not 0 <= count < 1 << 64:
            raise ArgumentError(f"count: found {count}, expected 0 to 2^64 - 1")
        self._native.report_fallback(kind, count)

    def close(self) -> None:
        """Leaves the job in order, as every rank does at its end.

        Wait for all collectives before.
        """
        if not self._native.is_closed():
            self._native.finish()

    def abort(self) -> None:
        """Leaves the job at once, which fails it at all ranks.

        The other ranks' errors name this one.
        """
        self._native.abort()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _name(self, what: str, name: Optional[str]) -> str:
        # All ranks submit in the same order, so they get the same number.
        number = next(self._count)
        name = f"{what} {number}" if name is None else name
        try:
            size = len(name.encode())
        except (AttributeError, UnicodeError):
            raise ArgumentError(f"{name!r}: a name is text") from None
        if size > _NAME_BYTES_MAX:
            raise ArgumentError(f"`{name}`: a name has at most {_NAME_BYTES_MAX} bytes")
        return name

    def _start(
        self,
        elements: numpy.ndarray,
        result: Any,
        operation: str,
        root: int,
        dtype: str,
        arithmetic: str,
        name: str,
        place: tuple[int, int] = (0, 1),
        more_follow: bool = False,
    ) -> Handle:
        ticket = self._native.submit(
            elements, operation, root, dtype, arithmetic, place, more_follow, name
        )
        return Handle(self._native, ticket, elements, result)


def _check(array: numpy.ndarray, name: str) -> str:
    """Name of the array's type; raises an error for an array that cannot be summed."""
    # A mask is outside of the array's memory and would be ignored.
    if not isinstance(array, numpy.ndarray) or isinstance(array, numpy.ma.MaskedArray):
        raise ArgumentError(
            f"`{name}`: found {type(array).__name__}, expected a numpy.ndarray"
        )
    dtype = _DTYPES.get(array.dtype)
    if dtype is None:
        known = ", ".join(str(it) for it in _DTYPES)
        raise ArgumentError(
            f"`{name}`: found elements of {array.dtype.str} ({array.dtype}), expected {known}, in this machine's byte order"
        )
    if not array.flags.c_contiguous:
        raise ArgumentError(
            f"`{name}`: the array is not C-contiguous; sum numpy.ascontiguousarray(array)"
        )
    if not array.flags.writeable:
        raise ArgumentError(f"`{name}`: the array is read-only, and results go there")
    return dtype


def _bytes(array: numpy.ndarray) -> numpy.ndarray:
    """Memory of the array, as bytes."""
    return array.view(numpy.ndarray).reshape(-1).view(numpy.uint8)
