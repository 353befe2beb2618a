"""PyTorch on Tally: ``import tally.torch``, then ``init_process_group(backend="tally", ...)``.

The job's number comes from ``pg_options=tally.torch.Options(job=7)`` or the environment: ``TALLY_JOB``,
``TALLY_SOCKET`` (``/run/tally/agent.sock``), ``TALLY_ARITHMETIC`` (``native``, ``fixed`` or ``own``; see
:meth:`tally.Job.all_reduce`). Ranks, their number, the store and the timeout are torch's own.

What goes where:

* ``all_reduce`` with ``SUM`` or ``AVG`` of dense CPU tensors of float32, float16, bfloat16 and int32, in the default
  group: the switch. So does ``DistributedDataParallel``, which averages gradients that way; with
  :func:`ddp_hook` it says how urgent they are, and what they travel as.
* Everything else, such as ``all_gather``, ``MAX``, other types and further groups
  (``new_group``): Gloo, which is made with the same store, on the same network as always.

The choice depends only on what all ranks must have in common. Errors are those of :mod:`tally`, raised by ``wait()``. An
error at one rank fails the job at all.

``init_process_group`` waits for all ranks, as long as the agent does (``timeouts.join_ms`` in its configuration),
and raises :class:`tally.JoinError` for those that are missing.

The catches: call ``destroy_process_group()`` at the end, or the other ranks are told that this one failed. Calls on
Tally and on Gloo are not ordered against each other until waited for.
"""

from __future__ import annotations

import atexit
import os
import queue
import secrets
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy
import torch
import torch.distributed as dist

from . import _ARITHMETICS, Handle, Job
from ._default import _socket_from_environment
from ._errors import ArgumentError, TimeoutError

if TYPE_CHECKING:
    from .hook import HookState as HookState
    from .hook import ddp_hook as ddp_hook

__all__ = ["HookState", "Options", "TallyGroup", "TallyWork", "ddp_hook"]

_DTYPES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
}
# Gloo's int8 wraps around where the switch's is an error.
_DTYPES_OF_HOOK = _DTYPES | {torch.int8: "i8"}


def _job_from_environment() -> int:
    text = os.environ.get("TALLY_JOB")
    if text is None:
        raise ArgumentError(
            "which job of the agent's configuration? Set TALLY_JOB, or pass pg_options=tally.torch.Options(job=...)"
        )
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"TALLY_JOB: found {text!r}, expected a number") from None


@dataclass
class Options:
    """What ``init_process_group`` may be told in ``pg_options``; by default all comes from the environment."""

    job: int = field(default_factory=_job_from_environment)
    """The job's number in the agent's configuration."""
    socket: str = field(default_factory=_socket_from_environment)
    """The agent's socket. In ``TALLY_SOCKET``, ``{local_rank}`` stands for ``LOCAL_RANK``."""
    arithmetic: str = field(
        default_factory=lambda: os.environ.get("TALLY_ARITHMETIC", "native")
    )
    """How floats are summed: ``native``, ``fixed`` or ``own``; the same at all ranks."""

    def __post_init__(self) -> None:
        if self.arithmetic not in _ARITHMETICS:
            raise ArgumentError(
                f"arithmetic: found {self.arithmetic!r}, expected one of {', '.join(_ARITHMETICS)}"
            )


class TallyWork(dist._Work):
    """All-reduces under way. torch's own work around a future would not raise what went wrong.

    The future's value is ``tensors``.
    """

    def __init__(self, tensors: Any) -> None:
        super().__init__()
        self._tensors = tensors
        self._done = threading.Event()
        self._error: Optional[BaseException] = None
        self._ended: torch.futures.Future = torch.futures.Future()
        # A callback that raises is the way to an error that C++, such as DDP's, sees too.
        self._future = self._ended.then(self._outcome)

    def _outcome(self, _: Any) -> Any:
        if self._error is not None:
            raise self._error
        return self._tensors

    def _finish(self, error: Optional[BaseException]) -> None:
        self._error = error
        try:
            self._ended.set_result(None)
        finally:
            # Last: whoever waits may end the process.
            self._done.set()

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        """Waits for the results; raises what :meth:`tally.Job.all_reduce` does."""
        seconds = timeout.total_seconds() if timeout else 0
        if not self._done.wait(seconds if seconds > 0 else None):
            raise TimeoutError(f"the results take more than {seconds} s")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> Optional[BaseException]:
        return self._error

    def get_future(self) -> torch.futures.Future:
        return self._future

    def result(self) -> Any:
        return self._tensors


class TallyGroup(dist.ProcessGroup):
    """A process group that sums on the switch, and does the rest with Gloo. Made by ``init_process_group``."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        options: Optional[Options],
    ) -> None:
        super().__init__(rank, size)
        # Further groups have ranks of their own, and the agent knows only those of the job.
        self._job: Optional[Job] = None
        if options is not None:
            self._options = options
            self._job = Job(
                options.job, rank, size, options.socket, timeout.total_seconds()
            )
        self._run = self._agree()
        try:
            store = dist.PrefixStore(f"tally/{self._run}", store)
            self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        except BaseException:
            self.abort()
            raise
        if self._job is not None:
            self._waiting: queue.SimpleQueue = queue.SimpleQueue()
            self._waiter = threading.Thread(
                target=_complete, args=(self._waiting,), name="tally", daemon=True
            )
            self._waiter.start()
            atexit.register(_stop, self._waiting, self._waiter)

    def _agree(self) -> int:
        """A number of this start of the job, by all its ranks.

        torchrun keeps its store when it starts workers again, and Gloo would find there whom it met before.
        """
        if self._job is None:
            return getattr(dist.GroupMember.WORLD, "_run", 0)
        number = numpy.array([secrets.randbits(31)], numpy.int32)
        return int(self._job.broadcast(number, 0, "start")[0])

    def getBackendName(self) -> str:
        return "tally"

    def allreduce(self, tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
        if opts is None:
            opts = dist.AllreduceOptions()
        if not isinstance(opts, dist.AllreduceOptions):
            # The overloads that take an operation, and a timeout.
            options = dist.AllreduceOptions()
            options.reduceOp = opts
            opts = options
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        op = _operation(opts.reduceOp)
        if self._job is None or op is None or not all(map(_is_served, tensors)):
            return self._gloo.allreduce(tensors, opts)
        if any(map(_is_folded, tensors)):
            raise ArgumentError(
                "all_reduce: elements of the tensor are in the same memory, as after expand(), and each has a result of "
                "its own; sum tensor.contiguous()"
            )
        work = TallyWork(list(tensors))
        handles, copies = [], []
        for tensor in tensors:
            tensor = tensor.detach()
            dense = tensor.contiguous().resolve_neg()
            if dense.data_ptr() != tensor.data_ptr():
                copies.append((tensor, dense))
            handles.append(self._submit(dense, op, self._options.arithmetic, None))

        def back() -> None:
            for tensor, dense in copies:
                tensor.copy_(dense)

        self._waiting.put((work, handles, back))
        return work

    def _reduce(
        self,
        work: TallyWork,
        dense: torch.Tensor,
        op: str,
        arithmetic: str,
        name: str,
        place: tuple[int, int],
        more_follow: bool,
        then: Callable[[], None],
    ) -> None:
        """Sums a tensor without gaps in place, then calls ``then`` on another thread, and then ends ``work``."""
        handles = []
        if dense.numel() > 0:
            handles.append(
                self._submit(dense, op, arithmetic, name, place, more_follow)
            )
        self._waiting.put((work, handles, then))

    def _submit(
        self,
        dense: torch.Tensor,
        op: str,
        arithmetic: str,
        name: Optional[str],
        place: tuple[int, int] = (0, 1),
        more_follow: bool = False,
    ) -> Handle:
        name = self._job._name("all_reduce", name)
        elements = dense.reshape(-1).view(torch.uint8).numpy()
        dtype = _DTYPES_OF_HOOK[dense.dtype]
        return self._job._start(
            elements, None, op, 0, dtype, arithmetic, name, place, more_follow
        )

    def shutdown(self) -> None:
        """Leaves the job in order. All works must be done."""
        if self._job is not None:
            self._waiting.put(None)
            self._waiter.join()
            self._job.close()

    def abort(self) -> None:
        """Leaves at once; the job fails at all ranks."""
        if self._job is not None:
            self._job.abort()
            if hasattr(self, "_waiting"):
                self._waiting.put(None)


def _operation(op: Any) -> Optional[str]:
    if op == dist.ReduceOp.SUM:
        return "sum"
    if op == dist.ReduceOp.AVG:
        return "mean"
    return None


def _is_served(tensor: torch.Tensor) -> bool:
    # Not by its strides: they may differ between ranks.
    return (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.dtype in _DTYPES
    )


def _is_folded(tensor: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride()))


def _stop(waiting: queue.SimpleQueue, waiter: threading.Thread) -> None:
    """At the process's end: the interpreter would end the thread in the middle of torch's code, which aborts."""
    waiting.put(None)
    waiter.join(1)


def _complete(waiting: queue.SimpleQueue) -> None:
    """Waits for collectives in the order in which they were submitted, which is that in which they end, about."""
    while (item := waiting.get()) is not None:
        work, handles, then = item
        try:
            for handle in handles:
                handle.wait()
            then()
        except BaseException as error:
            work._finish(error)
        else:
            work._finish(None)
        # Nothing is kept alive while there is nothing to do.
        del item, work, handles, then


# What the switch does not do. Those that this version of torch has.
_BY_GLOO = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "gather_single",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)


def _by_gloo(name: str) -> Any:
    def call(self: TallyGroup, *arguments: Any, **named: Any) -> Any:
        return getattr(self._gloo, name)(*arguments, **named)

    call.__name__ = name
    return call


for _name in _BY_GLOO:
    if hasattr(dist.ProcessGroupGloo, _name):
        setattr(TallyGroup, _name, _by_gloo(_name))


def __getattr__(name: str) -> Any:
    # It needs what is here.
    if name in ("HookState", "ddp_hook"):
        from . import hook

        return getattr(hook, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _create(given: Any, options: Optional[Options]) -> TallyGroup:
    is_first = dist.GroupMember.WORLD is None
    if is_first and options is None:
        options = Options()
    return TallyGroup(
        given.store,
        given.group_rank,
        given.group_size,
        given.timeout,
        options if is_first else None,
    )


if not hasattr(dist.Backend, "TALLY"):
    dist.Backend.register_backend("tally", _create, extended_api=True, devices=["cpu"])
