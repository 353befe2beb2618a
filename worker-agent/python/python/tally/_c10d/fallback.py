"""Policy for collectives that Gloo does in place of the switch.

``TALLY_FALLBACK`` is ``warn`` (one warning for each kind), ``quiet`` or ``error``. All are counted.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from typing import Callable, Optional

from .._errors import ArgumentError

_POLICIES = ("warn", "quiet", "error")


class FallbackWarning(UserWarning):
    """Gloo does a collective, not the switch."""


class Fallback:
    """Counts Gloo's collectives, and warns once for each kind and reason.

    ``report(kind, count)`` tells the agent, which shows the counters in ``tally-agent status``.
    """

    def __init__(self, report: Optional[Callable[[str, int], None]]) -> None:
        self._report = report
        self._policy = os.environ.get("TALLY_FALLBACK", "warn")
        if self._policy not in _POLICIES:
            raise ArgumentError(
                f"TALLY_FALLBACK: found {self._policy!r}, expected one of {', '.join(_POLICIES)}"
            )
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}

    def take(self, kind: str, why: str) -> None:
        """Counts a collective that Gloo is about to do, because of ``why``.

        Raises an error if the policy refuses it.
        """
        if self._policy == "error":
            raise ArgumentError(
                f"{kind}: {why}, and TALLY_FALLBACK=error refuses Gloo; call it in a group of another backend"
            )
        with self._lock:
            count = self._counts.get((kind, why), 0)
            self._counts[kind, why] = count + 1
        if self._report is not None:
            self._report(kind, 1)
        if count == 0 and self._policy == "warn":
            warnings.warn(
                f"{kind} is done by Gloo: {why}. TALLY_FALLBACK=quiet silences this, TALLY_FALLBACK=error refuses it",
                FallbackWarning,
                stacklevel=_stacklevel(),
            )

    def counts(self) -> dict[str, int]:
        """Number of Gloo's collectives, by kind."""
        total: dict[str, int] = {}
        with self._lock:
            for (kind, _), count in self._counts.items():
                total[kind] = total.get(kind, 0) + count
        return total


def _stacklevel() -> int:
    """Stack level of the caller of torch.

    For :func:`warnings.warn` in the caller of this function.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("torch.", "tally.")):
            break
        frame, level = frame.f_back, level + 1
    return level
