"""Collectives of a process group: by the switch if served, else by Gloo.

:class:`Collectives` has the methods of ``c10d.Backend``. The choice depends on properties that all
ranks have in common: the group, the operation, the type, the number of elements. It never depends
on strides, which may differ.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import threading
from datetime import timedelta
from typing import Any, Callable, Iterable, Optional

import numpy
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d

from .._errors import ArgumentError
from .fallback import Fallback
from .work import Completer, Pending, TallyWork

# Types that the switch sums.
SUMMED = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
}
# An all_gather by the switch is a sum in which each rank's part is zero at all other ranks. So each
# rank sends as many bytes as it receives. Above this size in all, Gloo sends less.
_GATHERED_BYTES_MAX = 64 * 1024


class Engine:
    """A job and the threads that complete its works.

    All groups of all ranks share it.
    """

    def __init__(self, job: Any, arithmetic: str) -> None:
        self.job, self.arithmetic = job, arithmetic
        self.completer = Completer()
        # Number of works by kind.
        self.done: collections.Counter[str] = collections.Counter()

    def submit(
        self,
        dense: torch.Tensor,
        op: str,
        arithmetic: str,
        name: Optional[str],
        root: int = 0,
        place: tuple[int, int] = (0, 1),
        more_follow: bool = False,
    ) -> Any:
        """Starts a collective in place on a tensor without gaps, and returns its handle."""
        return self.job._start(
            _memory(dense), None, op, root, SUMMED[dense.dtype], arithmetic, name, place, more_follow
        )


class Collectives:
    """Mixin of the classes that torch uses as backend or process group."""

    _engine: Optional[Engine]
    _fallback: Fallback
    # Group through which Gloo is called, and Gloo's backend.
    _gloo: Any
    _rank: int
    _size: int
    _timeout_s: float
    _coalesced: Optional[list[Any]]

    def _begin(
        self, engine: Optional[Engine], fallback: Fallback, gloo: Any, timeout: timedelta
    ) -> None:
        self._engine, self._fallback, self._gloo = engine, fallback, gloo
        self._timeout_s = timeout.total_seconds()
        self._sequence = 0
        # Works between start_coalescing and end_coalescing.
        self._coalesced = None
        self._is_closed = False

    # Collectives that the switch serves.

    def allreduce(self, tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
        opts = _options(opts, named, _c10d.AllreduceOptions, "reduceOp")
        tensors = _list(tensors)
        op, why = self._sum(tensors, opts.reduceOp)
        if op is None:
            return self._by_gloo("all_reduce", why, "allreduce", tensors, opts)
        return self._all_reduce("all_reduce", tensors, op, opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None, **named: Any) -> Any:
        opts = _options(opts, named, _c10d.AllreduceCoalescedOptions, "reduceOp")
        tensors = _list(tensors)
        op, why = self._sum(tensors, opts.reduceOp)
        if op is None:
            return self._by_gloo("all_reduce", why, "allreduce_coalesced", tensors, opts)
        return self._all_reduce("all_reduce_coalesced", tensors, op, opts)

    def broadcast(self, tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
        opts = _options(opts, named, _c10d.BroadcastOptions, "rootRank")
        tensors = _list(tensors)
        why = self._unserved(tensors)
        if why is not None:
            return self._by_gloo("broadcast", why, "broadcast", tensors, opts)
        root = opts.rootRank
        _check_overlap("broadcast", tensors if self._rank != root else [])

        def start(tensor: torch.Tensor, name: str) -> tuple[Any, Optional[Callable[[], None]]]:
            dense = _dense(tensor)
            raw = _raw(dense)
            handle = self._engine.submit(raw, "broadcast", "own", name, root)
            back = (lambda: _unpack(tensor, raw)) if raw.data_ptr() != dense.data_ptr() else _back(tensor, dense)
            return handle, None if self._rank == root else back

        return self._start("broadcast", tensors, opts, start)

    def barrier(self, opts: Any = None, *more: Any, **named: Any) -> Any:
        opts = _options(opts, named, _c10d.BarrierOptions, "")
        if self._engine is None:
            return self._by_gloo("barrier", self._unserved([]), "barrier", opts)
        work = TallyWork([], "barrier", self._engine.job)
        handle = self._engine.job.barrier_async()
        return self._submitted("barrier", work, [handle], None, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, **named: Any) -> Any:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = _options(opts, named, _c10d.AllgatherOptions, "")
        why = self._not_gathered(inputs)
        if why is not None:
            return self._by_gloo("all_gather", why, "allgather", outputs, inputs, opts)
        return self._all_gather([(list(out), it) for out, it in zip(outputs, inputs)], outputs, opts)

    def _allgather_base(self, output: Any, input: Any, opts: Any = None, **named: Any) -> Any:
        return self._gather_single("_allgather_base", output, input, opts, named)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None, **named: Any) -> Any:
        return self._gather_single("all_gather_single", output, input, opts, named)

    def _gather_single(self, method: str, output: Any, input: Any, opts: Any, named: Any) -> Any:
        opts = _options(opts, named, _c10d.AllgatherOptions, "")
        why = self._not_gathered([input])
        if why is not None:
            return self._by_gloo("all_gather", why, method, output, input, opts)
        if not output.is_contiguous() or output.numel() != self._size * input.numel():
            raise ArgumentError(
                f"all_gather: the output has shape {list(output.shape)} and strides {list(output.stride())}, expected "
                f"{self._size * input.numel()} contiguous elements"
            )
        parts = output.detach().view(-1).chunk(self._size) if input.numel() else ()
        return self._all_gather([(parts, input.reshape(-1))], output, opts)

    # Choice between switch and Gloo, and submission.

    def _job_name(self, what: str) -> str:
        return self._engine.job._name(what, None)

    def _unserved(self, tensors: Iterable[torch.Tensor]) -> Optional[str]:
        """Reason why the switch does not serve these tensors in this group, or None."""
        if self._engine is None:
            return "the group has other ranks than the job"
        for tensor in tensors:
            if tensor.device.type != "cpu":
                raise ArgumentError(
                    f"the tensor is on {tensor.device}, and the backend tally serves CPU tensors; "
                    'init_process_group("cpu:tally,cuda:nccl") serves both with torch 2.14 or later'
                )
            if tensor.layout != torch.strided or tensor.is_quantized:
                return f"{tensor.layout} tensors"
        return None

    def _sum(self, tensors: list[torch.Tensor], reduce_op: Any) -> tuple[Optional[str], str]:
        """Operation of the agent, or None and the reason."""
        why = self._unserved(tensors)
        if why is not None:
            return None, why
        op = {dist.ReduceOp.SUM: "sum", dist.ReduceOp.AVG: "mean"}.get(_plain(reduce_op))
        if op is None:
            return None, f"operation {_name_of_op(reduce_op)}"
        for tensor in tensors:
            if tensor.dtype not in SUMMED:
                return None, f"type {tensor.dtype}"
        return op, ""

    def _not_gathered(self, inputs: list[torch.Tensor]) -> Optional[str]:
        why = self._unserved(inputs)
        if why is None:
            total = sum(it.numel() * it.element_size() for it in inputs) * self._size
            if total > _GATHERED_BYTES_MAX:
                why = f"more than {_GATHERED_BYTES_MAX // 1024} KiB in all"
        return why

    def _all_reduce(self, kind: str, tensors: list[torch.Tensor], op: str, opts: Any) -> Any:
        _check_overlap(kind, tensors)

        def start(tensor: torch.Tensor, name: str) -> tuple[Any, Optional[Callable[[], None]]]:
            dense = _dense(tensor)
            handle = self._engine.submit(dense, op, self._engine.arithmetic, name)
            return handle, _back(tensor, dense)

        return self._start(kind, tensors, opts, start)

    def _all_gather(self, gathers: list, result: Any, opts: Any) -> Any:
        def start(gather: Any, name: str) -> tuple[Any, Optional[Callable[[], None]]]:
            parts, mine = gather
            own = _raw(_dense(mine))
            all_parts = torch.zeros(self._size, own.numel(), dtype=own.dtype)
            all_parts[self._rank] = own

            def back() -> None:
                for part, got in zip(parts, all_parts):
                    _unpack(part, got)

            return self._engine.submit(all_parts, "sum", "own", name), back

        return self._start("all_gather", gathers, opts, start, result)

    def _start(
        self,
        kind: str,
        items: list[Any],
        opts: Any,
        start: Callable[[Any, str], tuple[Any, Optional[Callable[[], None]]]],
        result: Any = None,
    ) -> Any:
        """Submits a collective for each item, as one work."""
        work = TallyWork(items if result is None else result, "", self._engine.job)
        handles, backs = [], []
        for item in items:
            name = self._job_name(kind)
            work._name = work._name or name
            handle, back = start(item, name)
            handles.append(handle)
            if back is not None:
                backs.append(back)

        def then() -> None:
            for back in backs:
                back()

        return self._submitted(kind, work, handles, then if backs else None, opts)

    def _submitted(
        self, kind: str, work: TallyWork, handles: list[Any], then: Optional[Callable[[], None]], opts: Any
    ) -> Any:
        self._sequence += 1
        self._engine.done[kind] += 1
        if torch.autograd._profiler_enabled():
            # The work ends the span. Only a future carries the profiler's state of this thread to
            # another.
            work._span = torch.futures.Future()
            span = torch.autograd.profiler.record_function(f"tally:{kind}")
            span.__enter__()
            span._call_end_callbacks_on_future(work._span)
        self._engine.completer.put(Pending(work, handles, then, self._seconds(opts)))
        self._keep(work)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _keep(self, work: TallyWork) -> None:
        """Hook: called with each work before torch gets it."""

    def _seconds(self, opts: Any) -> float:
        timeout = getattr(opts, "timeout", None)
        seconds = timeout.total_seconds() if timeout is not None else 0
        return seconds if seconds > 0 else self._timeout_s

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
        """Sums a tensor without gaps in place.

        Then calls ``then`` on another thread, and ends ``work``.
        """
        handles = []
        work._name = name
        if dense.numel() > 0:
            name = self._engine.job._name("all_reduce", name)
            handles.append(
                self._engine.submit(dense, op, arithmetic, name, 0, place, more_follow)
            )
        self._submitted("all_reduce", work, handles, then, None)

    # Collectives that Gloo serves.

    def _gloo_of(self, kind: str) -> Any:
        """Gloo's group, for a collective of this kind."""
        if self._gloo is None:
            raise ArgumentError(f"{kind}: the process group is destroyed")
        return self._gloo

    def _by_gloo(self, kind: str, why: str, method: str, *arguments: Any, **named: Any) -> Any:
        gloo = self._gloo_of(kind)
        self._fallback.take(kind, why)
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        # Gloo sums tensors with gaps wrongly.
        first, *rest = arguments if arguments else (None,)
        dense = [_without_gaps(first, copies if method != "send" else [])] if arguments else []
        dense += [_without_gaps(it, []) for it in rest]
        work = getattr(gloo, method)(*dense, **named)
        if work is not None and copies:
            work = _copied_back(work, first, copies, kind)
            self._keep(work)
        if self._coalesced is not None and work is not None:
            self._coalesced.append(work)
        return work

    def monitored_barrier(
        self, timeout: Any = None, wait_all_ranks: bool = False, *_: Any, **named: Any
    ) -> Any:
        # Gloo asks each rank, so it can name the missing ones, which is the purpose.
        gloo = self._gloo_of("monitored_barrier")
        self._fallback.take("monitored_barrier", "it asks each rank over Gloo")
        if not isinstance(timeout, (timedelta, type(None))):
            timeout = timeout.timeout
        seconds = timeout.total_seconds() if timeout is not None else 0
        timeout = timedelta(seconds=seconds if seconds > 0 else self._timeout_s)
        return gloo.monitored_barrier(timeout, wait_all_ranks)

    # Coalescing.

    def start_coalescing(self, *_: Any) -> None:
        self._coalesced = []

    def end_coalescing(self, *_: Any) -> Any:
        works, self._coalesced = self._coalesced or [], None
        work = _AllOf(works)
        self._keep(work)
        return work

    # Properties of the group.

    def getBackendName(self) -> str:
        return "tally"

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()
        for name in ("set_timeout", "_set_default_timeout"):
            if hasattr(self._gloo_backend, name):
                return getattr(self._gloo_backend, name)(timeout)

    _set_default_timeout = set_timeout


class _AllOf(TallyWork):
    """Work of all works between start_coalescing and end_coalescing."""

    def __init__(self, works: list[Any]) -> None:
        super().__init__([], "coalesced collectives")
        self._works = works

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        for work in self._works:
            work.wait() if timeout is None else work.wait(timeout)
        self._complete(None)
        return True

    def is_completed(self) -> bool:
        return all(it.is_completed() for it in self._works)

    def get_future(self) -> torch.futures.Future:
        futures = [it.get_future() for it in self._works]
        return torch.futures.collect_all(futures)


def _copied_back(gloo_work: Any, result: Any, copies: list, kind: str) -> TallyWork:
    """Work of Gloo whose results are then copied to the caller's tensors."""
    work = TallyWork(result, kind)

    def run() -> None:
        try:
            gloo_work.wait()
            for tensor, dense in copies:
                tensor.copy_(dense)
        except BaseException as error:
            work._finish(error)
        else:
            work._finish(None)

    threading.Thread(target=run, name="tally-gloo", daemon=True).start()
    return work


def _without_gaps(argument: Any, copies: list) -> Any:
    """Replaces tensors with gaps by dense ones; ``copies`` gets pairs of both."""
    if isinstance(argument, (list, tuple)):
        return [_without_gaps(it, copies) for it in argument]
    if (
        not isinstance(argument, torch.Tensor)
        or argument.layout != torch.strided
        or argument.device.type != "cpu"
    ):
        return argument
    dense = _dense(argument)
    if dense.data_ptr() == argument.data_ptr() and dense.stride() == argument.stride():
        return argument
    copies.append((argument.detach(), dense))
    return dense


def _options(opts: Any, named: dict[str, Any], kind: type, field: str) -> Any:
    """Options of a collective.

    Overloads take one of their fields, and a timeout, instead.
    """
    opts = named.get("opts", opts)
    if isinstance(opts, kind):
        return opts
    options = kind()
    for alias in ("op", "root"):
        if field and alias in named:
            opts = named[alias]
    if opts is not None and field:
        setattr(options, field, opts)
    if named.get("timeout") is not None:
        options.timeout = named["timeout"]
    return options


def _list(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _plain(reduce_op: Any) -> Any:
    """SUM or AVG; None for other operations and for a ReduceOp with a factor."""
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        if reduce_op == op:
            return op
    return None


def _name_of_op(reduce_op: Any) -> str:
    for name in ("PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"):
        if reduce_op == getattr(dist.ReduceOp, name):
            return name
    return str(reduce_op)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().resolve_conj().resolve_neg()


def _memory(dense: torch.Tensor) -> numpy.ndarray:
    """Bytes of the tensor. ``Tensor.numpy`` would keep FSDP from resizing the storage."""
    size = dense.numel() * dense.element_size()
    if size == 0:
        return numpy.empty(0, numpy.uint8)
    memory = (ctypes.c_ubyte * size).from_address(dense.data_ptr())
    memory.tensor = dense
    return numpy.frombuffer(memory, numpy.uint8)


def _back(tensor: torch.Tensor, dense: torch.Tensor) -> Optional[Callable[[], None]]:
    tensor = tensor.detach()
    if dense.data_ptr() == tensor.data_ptr():
        return None
    return functools.partial(_copy, tensor, dense)


def _copy(to: torch.Tensor, dense: torch.Tensor) -> None:
    to.copy_(dense)


def _raw(dense: torch.Tensor) -> torch.Tensor:
    """Bytes of the tensor as int32: in place if a multiple of 4, else a padded copy."""
    flat = dense.reshape(-1).view(torch.uint8)
    if flat.numel() % 4 == 0 and flat.data_ptr() % 4 == 0:
        return flat.view(torch.int32)
    padded = torch.zeros(-(-flat.numel() // 4), dtype=torch.int32)
    padded.view(torch.uint8)[: flat.numel()] = flat
    return padded


def _unpack(tensor: torch.Tensor, raw: torch.Tensor) -> None:
    """Writes bytes from :func:`_raw` of another rank to the tensor."""
    tensor = tensor.detach()
    size = tensor.numel() * tensor.element_size()
    flat = raw.view(torch.uint8)[:size].clone()
    tensor.copy_(flat.view(tensor.dtype).view(tensor.shape))


def _check_overlap(kind: str, tensors: Iterable[torch.Tensor]) -> None:
    for tensor in tensors:
        if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride())):
            raise ArgumentError(
                f"{kind}: elements of the tensor share memory, as after expand(), and each has a result of its own; "
                "pass tensor.contiguous()"
            )


# Methods that only Gloo serves, with their kind.
_KINDS = {
    "all_gather_single_coalesced": "all_gather",
    "all_to_all_single": "all_to_all",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "allreduce_sparse": "all_reduce",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "gather": "gather",
    "gather_into_tensor": "gather",
    "gather_single": "gather",
    "recv": "recv",
    "recv_anysource": "recv",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "scatter": "scatter",
    "send": "send",
}


def _gloo_method(method: str, kind: str) -> Any:
    why = "the switch does not serve it"

    def call(self: Collectives, *arguments: Any, **named: Any) -> Any:
        return self._by_gloo(kind, why, method, *arguments, **named)

    call.__name__ = method
    return call


for _method, _kind in _KINDS.items():
    setattr(Collectives, _method, _gloo_method(_method, _kind))
