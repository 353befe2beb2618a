"""The job of the whole process: ``tally.all_reduce(array)``."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import TYPE_CHECKING, Optional

from ._errors import ArgumentError

if TYPE_CHECKING:
    import numpy

    from . import Job

_lock = threading.Lock()
_job: Optional[Job] = None


def _from_environment(variable: str, what: str) -> int:
    text = os.environ.get(variable)
    if text is None:
        raise ArgumentError(
            f"{variable}: not set; set it as torchrun or a job script does, or call tally.init({what}=...)"
        )
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"{variable}: found {text!r}, expected a number") from None


def _socket_from_environment() -> str:
    """``TALLY_SOCKET``, with ``LOCAL_RANK`` in place of ``{local_rank}``."""
    from . import DEFAULT_SOCKET

    text = os.environ.get("TALLY_SOCKET", DEFAULT_SOCKET)
    if "{local_rank}" not in text:
        return text
    # As a number, so that the variable cannot name another folder.
    return text.replace("{local_rank}", str(_from_environment("LOCAL_RANK", "socket")))


def init(
    job: Optional[int] = None,
    rank: Optional[int] = None,
    workers: Optional[int] = None,
    socket: Optional[str] = None,
    timeout: float = 60.0,
) -> Job:
    """Joins a job for the whole process, and returns its :class:`tally.Job`.

    Missing arguments come from the environment: ``TALLY_JOB``, ``RANK``, ``WORLD_SIZE`` and
    ``TALLY_SOCKET`` (``/run/tally/agent/agent.sock``). In ``TALLY_SOCKET``, ``{local_rank}`` stands
    for ``LOCAL_RANK``, for a host with an agent for each NIC. ``timeout`` is in seconds. The errors
    are those of :class:`tally.Job`.

    The process leaves the job in :func:`shutdown`, or at its end. After an uncaught exception the
    job fails at all ranks instead, so that no rank waits for this one.
    """
    global _job
    with _lock:
        return _init(job, rank, workers, socket, timeout)


def _init(
    job: Optional[int], rank: Optional[int], workers: Optional[int], socket: Optional[str], timeout: float
) -> Job:
    global _job
    from . import Job

    if _job is not None:
        raise ArgumentError("this process is in a job already: call tally.shutdown() first")
    _job = Job(
        _from_environment("TALLY_JOB", "job") if job is None else job,
        _from_environment("RANK", "rank") if rank is None else rank,
        _from_environment("WORLD_SIZE", "workers") if workers is None else workers,
        socket,
        timeout,
    )
    return _job


def _default() -> Job:
    with _lock:
        return _job if _job is not None else _init(None, None, None, None, 60.0)


def all_reduce(
    array: numpy.ndarray, op: str = "sum", arithmetic: str = "native", name: Optional[str] = None
) -> numpy.ndarray:
    """:meth:`tally.Job.all_reduce` of the process's job.

    The first call joins the job as :func:`init` does.
    """
    return _default().all_reduce(array, op, arithmetic, name)


def broadcast(array: numpy.ndarray, root: int, name: Optional[str] = None) -> numpy.ndarray:
    """:meth:`tally.Job.broadcast` of the process's job.

    The first call joins the job as :func:`init` does.
    """
    return _default().broadcast(array, root, name)


def barrier(name: Optional[str] = None) -> None:
    """:meth:`tally.Job.barrier` of the process's job.

    The first call joins the job as :func:`init` does.
    """
    _default().barrier(name)


def shutdown() -> None:
    """Leaves the process's job in order, if there is one."""
    global _job
    with _lock:
        job, _job = _job, None
    if job is not None:
        job.close()


def _forget() -> None:
    # A child may not use its parent's job. A new lock: the thread that held the old one may not
    # exist here.
    global _job, _lock
    _job, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


@atexit.register
def _at_exit() -> None:
    # The interpreter sets it for an uncaught exception.
    if getattr(sys, "last_value", None) is None:
        shutdown()
    elif _job is not None:
        _job.abort()
