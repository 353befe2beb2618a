"""How torch knows :class:`Collectives`: as a ``c10d.Backend``, or in torch before 2.14 as a ``ProcessGroup``.

Python classes may inherit from ``Backend`` since torch 2.14. Before, a process group of Python is returned in place of
torch's own. C++ then calls its methods, and those that have no Python form in that version go to the Gloo backend that
is registered in it.
"""

from __future__ import annotations

import collections
import types
from datetime import timedelta
from typing import Any, Optional

import torch
import torch.distributed as dist

from .._errors import ArgumentError
from .collectives import Collectives, Engine
from .fallback import Fallback
from .work import Completer, Pending, TallyWork

_C10dBackend = torch._C._distributed_c10d.Backend
# pybind11 gives a class without a constructor that of `object`.
HAS_PYTHON_BACKENDS = not (_C10dBackend.__init__.__doc__ or "").startswith("Initialize self")
# Works that C++ may still wait for, at most.
_KEPT_MAX = 10_000


class _Group(Collectives):
    """What both forms have in common: their end."""

    def shutdown(self) -> None:
        """Leaves the job in order. All works must be done."""
        self._end_gloo()
        if self._is_closed or not self._owns_job:
            return
        self._is_closed = True
        self._engine.completer.stop()
        self._engine.job.close()

    def abort(self) -> None:
        """Leaves at once; the job fails at all ranks."""
        self._end_gloo()
        if self._is_closed or not self._owns_job:
            return
        self._is_closed = True
        self._engine.job.abort()
        self._engine.completer.stop()

    def _end_gloo(self) -> None:
        """Joins Gloo's threads: one that still holds a tensor when the interpreter ends aborts the process.

        Models and optimizers may keep this group; the threads end with Gloo's, which nothing else keeps. In torch
        before 2.14 C++ keeps it.
        """
        self._gloo = self._gloo_backend = None

    _owns_job = False


if HAS_PYTHON_BACKENDS:

    def _see_completion() -> None:
        """Lets ``Work.is_completed`` of a Python backend's work become true.

        torch 2.14 and 2.15 return such a work in a holder of C++ that forwards ``wait`` and ``get_future`` alone.
        """
        of_torch = dist.Work.is_completed

        def is_completed(self: Any) -> bool:
            if of_torch(self):
                return True
            try:
                return self.get_future().done()
            except RuntimeError:
                # A work of another backend without a future.
                return False

        dist.Work.is_completed = is_completed

    def _refuse_views() -> torch.library.Library:
        """Refuses negated and conjugated views where their results would be lost.

        torch's dispatcher hands every backend a copy of such a tensor, into which the result goes.
        """

        def refuse(*_: Any, **__: Any) -> None:
            raise ArgumentError(
                "the tensor is a negated or conjugated view, and torch would lose the result; pass "
                "tensor.resolve_conj().resolve_neg()"
            )

        library = torch.library.Library("c10d", "IMPL")
        for op in ("allreduce_", "allreduce_coalesced_", "broadcast_"):
            for key in ("Negative", "Conjugate"):
                library.impl(op, refuse, key)
        return library

    _see_completion()
    _VIEWS = _refuse_views()

    class TallyBackend(_Group, _C10dBackend):
        """A backend that sums on the switch, and does the rest with Gloo. Made by ``init_process_group``."""

        def __init__(
            self,
            engine: Optional[Engine],
            fallback: Fallback,
            gloo: Any,
            rank: int,
            size: int,
            timeout: timedelta,
        ) -> None:
            _C10dBackend.__init__(self, rank, size)
            self._rank, self._size = rank, size
            self._gloo_backend = gloo
            self._begin(engine, fallback, gloo, timeout)

        @property
        def supports_coalescing(self) -> bool:
            return True

else:

    class TallyBackend(_Group, dist.ProcessGroup):  # type: ignore[no-redef]
        """A process group that sums on the switch, and does the rest with Gloo. Made by ``init_process_group``."""

        def __init__(
            self,
            engine: Optional[Engine],
            fallback: Fallback,
            gloo: Any,
            rank: int,
            size: int,
            timeout: timedelta,
        ) -> None:
            dist.ProcessGroup.__init__(self, rank, size)
            self._rank, self._size = rank, size
            # C++ holds a work and not its Python half, without which the work never ends.
            self._kept: collections.OrderedDict[int, TallyWork] = collections.OrderedDict()
            self._gloo_backend = gloo
            cpu, kind = torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO
            # This group's name, and what C++ calls without asking Python.
            dist.ProcessGroup._register_backend(self, cpu, kind, gloo)
            inner = _plain_group(rank, size)
            inner._register_backend(cpu, kind, gloo)
            for group in (self, inner):
                if hasattr(dist.ProcessGroup, "_set_default_backend"):
                    dist.ProcessGroup._set_default_backend(group, kind)
            self._begin(engine, fallback, inner, timeout)

        def _keep(self, work: TallyWork) -> None:
            key = id(work)
            self._kept[key] = work

            def release() -> None:
                self._kept.pop(key, None)

            work._release = release
            while len(self._kept) > _KEPT_MAX:
                oldest = next(iter(self._kept.values()))
                if not oldest.is_completed():
                    break
                self._kept.pop(id(oldest), None)

        def _start_coalescing(self, device: Any) -> None:
            self.start_coalescing()

        def _end_coalescing(self, device: Any) -> Any:
            return self.end_coalescing()


def _keep_from_dynamo(code: types.CodeType) -> None:
    """Keeps a function, and those in it, from being traced."""
    torch._C._dynamo.eval_frame.skip_code(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _keep_from_dynamo(constant)


# torch.compile of torch 2.4 traces Python that C++ calls, and cannot.
if hasattr(torch._C._dynamo.eval_frame, "skip_code"):
    for _class in (Collectives, Engine, Fallback, TallyWork, Completer, Pending):
        for _method in vars(_class).values():
            if isinstance(_method, types.FunctionType):
                _keep_from_dynamo(_method.__code__)


def _plain_group(rank: int, size: int) -> Any:
    """A process group of torch, which calls the backends that are registered in it."""
    store = dist.HashStore()
    try:
        return dist.ProcessGroup(store, rank, size)
    except TypeError:
        return dist.ProcessGroup(store, rank, size, dist.ProcessGroup.Options("gloo"))


def refuse_other_devices(devices: list[str]) -> None:
    """In torch before 2.14 torch makes no backend beside a process group of Python."""
    if not HAS_PYTHON_BACKENDS and devices:
        raise ArgumentError(
            f"torch {torch.__version__} makes no backend for {', '.join(devices)} beside that of tally; use torch 2.14 "
            'or later, or init_process_group("tally") and new_group(backend="nccl")'
        )
