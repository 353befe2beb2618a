"""Adapter of :class:`Collectives` to torch's ``Backend`` or ``ProcessGroup``.

Since torch 2.14 Python classes may inherit from ``Backend``. Before, a process group written in
Python replaces torch's own. C++ then calls its methods. Methods without a Python form in that
version go to the Gloo backend that is registered in the group.
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
# Upper bound of works that C++ may still wait for.
_KEPT_MAX = 10_000


class _Group(Collectives):
    """Shutdown and abort, common to both forms."""

    def shutdown(self) -> None:
        """Leaves the job in order, and ends Gloo's threads. All works must be complete."""
        if self._owns_job and not self._is_closed:
            self._is_closed = True
            self._engine.completer.stop()
            self._engine.job.close()
        self._end_gloo()

    def abort(self) -> None:
        """Leaves the job at once; it fails at all ranks.

        Gloo's threads stay: to join them may take as long as their timeout.
        """
        if self._is_closed or not self._owns_job:
            return
        self._is_closed = True
        self._engine.job.abort()
        self._engine.completer.stop()

    def _end_gloo(self) -> None:
        """Drops Gloo's group, which joins its threads.

        A thread that still holds a tensor when the interpreter ends aborts the process. Models and
        optimizers may keep this group, but nothing else keeps Gloo's. In torch before 2.14 C++
        keeps it.
        """
        self._gloo = self._gloo_backend = None

    _owns_job = False


if HAS_PYTHON_BACKENDS:

    def _see_completion() -> None:
        """Makes ``Work.is_completed`` work for Python backends.

        torch 2.14 and 2.15 wrap their works in a C++ holder that forwards only ``wait`` and
        ``get_future``.
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
        """Refuses negated and conjugated views, whose results would be lost.

        torch's dispatcher passes a copy of such a tensor to every backend, and the result goes to
        the copy.
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
        """Backend that sums on the switch, and does the rest with Gloo.

        ``init_process_group`` makes it.
        """

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
        """Process group that sums on the switch, and does the rest with Gloo.

        ``init_process_group`` makes it.
        """

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
            # Keeps the Python half of works: C++ holds only its own half, and a work cannot
            # complete without both.
            self._kept: collections.OrderedDict[int, TallyWork] = collections.OrderedDict()
            self._gloo_backend = gloo
            cpu, kind = torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO
            # For this group's name, and for methods that C++ calls without Python.
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
    """Excludes a function, and those in it, from tracing."""
    torch._C._dynamo.eval_frame.skip_code(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _keep_from_dynamo(constant)


# torch.compile of torch 2.4 traces Python code that C++ calls, and fails.
if hasattr(torch._C._dynamo.eval_frame, "skip_code"):
    for _class in (Collectives, Engine, Fallback, TallyWork, Completer, Pending):
        for _method in vars(_class).values():
            if isinstance(_method, types.FunctionType):
                _keep_from_dynamo(_method.__code__)


def _plain_group(rank: int, size: int) -> Any:
    """Process group of torch, which calls the backends registered in it."""
    store = dist.HashStore()
    try:
        return dist.ProcessGroup(store, rank, size)
    except TypeError:
        return dist.ProcessGroup(store, rank, size, dist.ProcessGroup.Options("gloo"))


def refuse_other_devices(devices: list[str]) -> None:
    """Refuses backends of other devices beside a process group written in Python.

    torch before 2.14 makes none.
    """
    if not HAS_PYTHON_BACKENDS and devices:
        raise ArgumentError(
            f"torch {torch.__version__} makes no backend for {', '.join(devices)} beside that of tally; use torch 2.14 "
            'or later, or init_process_group("tally") and new_group(backend="nccl")'
        )
