"""PyTorch backend: ``import tally.torch``, ``init_process_group("tally")``.

Options come from ``pg_options=tally.torch.Options(job=7)`` or the environment:

* ``TALLY_JOB``: number of the job.
* ``TALLY_SOCKET``: socket of the agent (``/run/tally/agent/agent.sock``).
* ``TALLY_ARITHMETIC``: ``native``, ``fixed`` or ``own``; see :meth:`tally.Job.all_reduce`.

Ranks, their number, the store and the timeout are torch's own.

The switch serves, in the default group and other groups of all its ranks:

* ``all_reduce`` with ``SUM`` or ``AVG`` of dense CPU tensors of float32, float16, bfloat16, int32,
  int16 and int8, and so the gradients of ``DistributedDataParallel``. A sum of integers beyond
  their range is a :class:`tally.OverflowError`. With :func:`ddp_hook` gradients have priorities,
  and a choice of the wire.
* ``broadcast`` of any type, ``barrier``, and ``all_gather`` up to 64 KiB in all.

Gloo serves everything else, with a warning for each kind: ``reduce_scatter``, ``MAX``, other types,
groups of other ranks. ``TALLY_FALLBACK`` is ``warn``, ``quiet`` or ``error``.
``tally-agent status`` counts both. The choice depends only on properties that all ranks must have
in common.

Errors are those of :mod:`tally`, raised by ``wait()``. An error at one rank fails the job at all
ranks. The group's timeout ends every wait. ``init_process_group`` searches for the agent for 10 s
(:class:`tally.ConnectError`). Then it waits for all ranks, as long as the agent does
(``timeouts.join_ms`` in its configuration), and raises :class:`tally.JoinError` for missing ranks.

The catches:

* Call ``destroy_process_group()`` at the end. Otherwise the other ranks are told that this one
  failed.
* Collectives of the switch and of Gloo are not ordered against each other until waited for.
"""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

import numpy
import torch.distributed as dist

from . import _ARITHMETICS, Job
from ._c10d.adapter import HAS_PYTHON_BACKENDS, TallyBackend, refuse_other_devices
from ._c10d.collectives import Engine
from ._c10d.fallback import Fallback, FallbackWarning
from ._c10d.work import TallyWork
from ._default import _socket_from_environment
from ._errors import ArgumentError

if TYPE_CHECKING:
    from .hook import HookState as HookState
    from .hook import ddp_hook as ddp_hook

__all__ = ["FallbackWarning", "HookState", "Options", "TallyBackend", "TallyWork", "counters", "ddp_hook"]


def _job_from_environment() -> int:
    text = os.environ.get("TALLY_JOB")
    if text is None:
        raise ArgumentError(
            "TALLY_JOB: not set; set it to a job's number in the agent's configuration, or pass "
            "pg_options=tally.torch.Options(job=...)"
        )
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"TALLY_JOB: found {text!r}, expected a number") from None


@dataclass
class Options:
    """``pg_options`` of ``init_process_group``; by default from the environment."""

    job: int = field(default_factory=_job_from_environment)
    """Number of the job in the agent's configuration."""
    socket: str = field(default_factory=_socket_from_environment)
    """Socket of the agent.

    In ``TALLY_SOCKET``, ``{local_rank}`` stands for ``LOCAL_RANK``.
    """
    arithmetic: str = field(
        default_factory=lambda: os.environ.get("TALLY_ARITHMETIC", "native")
    )
    """Arithmetic of floats: ``native``, ``fixed`` or ``own``; the same at all ranks."""

    def __post_init__(self) -> None:
        if self.arithmetic not in _ARITHMETICS:
            raise ArgumentError(
                f"arithmetic: found {self.arithmetic!r}, expected one of {', '.join(_ARITHMETICS)}"
            )


# The backend of the default group, and the number of this start of the job, a prefix in the store.
_world: Optional[TallyBackend] = None
_run = 0


def __getattr__(name: str) -> Any:
    # Import on demand: the hook imports this module.
    if name in ("HookState", "ddp_hook"):
        from . import hook

        return getattr(hook, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def counters() -> dict[str, dict[str, int]]:
    """Numbers of collectives since ``init_process_group``, by kind.

    The keys are ``{"switch": ..., "gloo": ...}``.
    """
    if _world is None:
        return {"switch": {}, "gloo": {}}
    return {"switch": dict(_world._engine.done), "gloo": _world._fallback.counts()}


def _create(given: Any, options: Any) -> TallyBackend:
    """Makes the backend of a group; torch calls it at each rank."""
    global _world
    refuse_other_devices(_other_devices())
    rank, size = given.group_rank, given.group_size
    is_default = dist.GroupMember.WORLD is None
    if is_default:
        engine = _join(options, rank, size, given.timeout)
    elif _world is None:
        raise ArgumentError('the default process group is of another backend: call init_process_group("tally")')
    else:
        engine = _world._engine if _has_all_ranks(given) else None
    try:
        fallback = Fallback(engine.job.report_fallback) if is_default else _world._fallback
        # torchrun keeps its store over restarts, and Gloo would find the addresses of the last
        # start.
        store = dist.PrefixStore(f"tally/{_run}", given.store)
        gloo = dist.ProcessGroupGloo(store, rank, size, given.timeout)
        backend = TallyBackend(engine, fallback, gloo, rank, size, given.timeout)
    except BaseException:
        if is_default:
            engine.job.abort()
        raise
    if is_default:
        backend._owns_job = True
        _world = backend
    return backend


def _join(options: Any, rank: int, size: int, timeout: Any) -> Engine:
    """Joins the job, and agrees with all ranks on the number of this start."""
    global _run
    if options is not None and not isinstance(options, Options):
        raise ArgumentError(f"pg_options: found {options!r}, expected tally.torch.Options")
    options = options or Options()
    job = Job(options.job, rank, size, options.socket, timeout.total_seconds())
    try:
        number = numpy.array([secrets.randbits(31)], numpy.int32)
        _run = int(job.broadcast(number, 0, "start")[0])
        return Engine(job, options.arithmetic)
    except BaseException:
        job.abort()
        raise


def _has_all_ranks(given: Any) -> bool:
    # In another order the ranks of the group are not those of the job.
    return list(given.global_ranks_in_group) == list(range(_world._size))


def _other_devices() -> list[str]:
    """Devices for which the caller of torch asks for other backends."""
    if HAS_PYTHON_BACKENDS:
        return []
    frame = sys._getframe(2)
    config = frame.f_locals.get("backend_config")
    devices = config.get_device_backend_map() if isinstance(config, dist.distributed_c10d.BackendConfig) else {}
    return sorted(device for device, backend in devices.items() if backend != "tally")


if not hasattr(dist.Backend, "TALLY"):
    dist.Backend.register_backend("tally", _create, extended_api=True, devices=["cpu"])
