"""``c10d.Work`` for collectives of an agent, and the threads that complete it.

A :class:`Completer` waits for collectives in the order of their submission. Callbacks of a future
may start collectives and wait for them. So a thread hands the queue to another thread before it
runs callbacks. A work without a future has no callbacks, so the same thread continues.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

from .._errors import TimeoutError

_FOLLOWERS_MAX = 2
# Time limit for callbacks at the end of the process.
_EXIT_S = 1.0


class TallyWork(dist._Work):
    """Collectives in flight. The value of the future is ``result``.

    torch's own work around a future is not used: it does not raise the error that its future holds.
    """

    def __init__(self, result: Any, name: str = "", job: Any = None) -> None:
        super().__init__()
        self._result = result
        # Name of the collective, and the job that knows it.
        self._name, self._job = name, job
        self._error: Optional[BaseException] = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._promise: Optional[torch.futures.Future] = None
        self._future: Optional[torch.futures.Future] = None
        # Future that ends the profiler's span.
        self._span: Any = None
        # Called once, when each waiter holds this work itself.
        self._release: Optional[Callable[[], None]] = None

    def _complete(self, error: Optional[BaseException]) -> Optional[torch.futures.Future]:
        """Ends the work. Returns the future to complete, if any.

        Completing it runs its callbacks.
        """
        span, self._span = self._span, None
        if span is not None:
            span.set_result(None)
        with self._lock:
            self._error = error
            self._done.set()
            return self._promise

    def _finish(self, error: Optional[BaseException]) -> None:
        promise = self._complete(error)
        if promise is not None:
            promise.set_result(None)

    def _outcome(self, _: Any) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        """Waits for the results. Raises the errors of :meth:`tally.Job.all_reduce`."""
        seconds = timeout.total_seconds() if timeout else 0
        if not self._done.wait(seconds if seconds > 0 else None):
            raise self._late(seconds)
        self._released()
        if self._error is not None:
            raise self._error
        return True

    def _late(self, seconds: float) -> Exception:
        if self._job is None:
            return TimeoutError(f"{self._name}: no result within {seconds:g} s")
        # Asks the agent which ranks are missing.
        return self._job._native.late(self._name, seconds)

    def _released(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> Optional[BaseException]:
        return self._error

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._future is not None:
                return self._future
            promise = torch.futures.Future()
            # C++, such as DDP's reducer, sees an error only if a callback raises it.
            self._future = promise.then(self._outcome)
            is_done = self._done.is_set()
            if not is_done:
                self._promise = promise
        if is_done:
            promise.set_result(None)
        self._released()
        return self._future

    def result(self) -> Any:
        return self._result


class Pending:
    """Handles of a work, and the function that runs after them."""

    __slots__ = ("work", "handles", "then", "deadline")

    def __init__(
        self,
        work: TallyWork,
        handles: list,
        then: Optional[Callable[[], None]],
        timeout_s: float,
    ) -> None:
        self.work, self.handles, self.then = work, handles, then
        self.deadline = time.monotonic() + timeout_s

    def wait(self) -> Optional[BaseException]:
        try:
            for handle in self.handles:
                handle.wait(max(0.0, self.deadline - time.monotonic()))
            if self.then is not None:
                self.then()
        except BaseException as error:
            return error
        return None


class Completer:
    """Threads that complete works in the order of their submission."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Optional[Pending]] = queue.SimpleQueue()
        # The leader holds it and takes from the queue.
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        # Number of threads that wait to lead.
        self._followers = 0
        self._threads: set[threading.Thread] = set()
        self._is_stopped = False
        self._start()
        atexit.register(self._exit)

    def put(self, pending: Pending) -> None:
        self._queue.put(pending)

    def stop(self) -> None:
        """Completes all submitted works, and ends the threads.

        May be called from a callback.
        """
        self._stop()
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join()
        atexit.unregister(self._exit)

    def _stop(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            self._queue.put(None)

    def _exit(self) -> None:
        # The interpreter would end a thread inside torch's code, which aborts the process.
        self._stop()
        deadline = time.monotonic() + _EXIT_S
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="tally", daemon=True)
        with self._lock:
            self._threads.add(thread)
            self._followers += 1
        thread.start()

    def _run(self) -> None:
        while True:
            self._turn.acquire()
            with self._lock:
                self._followers -= 1
            promise = self._lead()
            if promise is None:
                break
            # Runs the callbacks, which may wait for later works.
            promise.set_result(None)
            del promise
            with self._lock:
                # The woken thread may still be on its way to lead.
                if self._followers >= _FOLLOWERS_MAX:
                    break
                self._followers += 1
        with self._lock:
            self._threads.discard(threading.current_thread())

    def _lead(self) -> Optional[torch.futures.Future]:
        """Completes works until one has callbacks, then stops leading.

        Returns the future that runs them, or None when the queue has ended.
        """
        while (pending := self._queue.get()) is not None:
            promise = pending.work._complete(pending.wait())
            # So that an idle thread keeps no work alive.
            del pending
            if promise is not None:
                with self._lock:
                    has_follower = self._followers > 0
                if not has_follower:
                    self._start()
                self._turn.release()
                return promise
        self._queue.put(None)
        self._turn.release()
        return None
