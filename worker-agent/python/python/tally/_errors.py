"""The exceptions of this package."""

from __future__ import annotations

import builtins


class TallyError(Exception):
    """Base class of all errors of Tally.

    ``ranks`` are the ranks that the error is about, in order; empty if there are none, or if they
    are not known.

    The job continues after an :class:`ArgumentError`, a :class:`LimitError` of a running job, and a
    :class:`TimeoutError` of this process's own wait. After all other errors the job has failed:
    start it again, at all ranks.
    """

    def __init__(self, text: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.ranks = ranks

    def __reduce__(self) -> tuple[type, tuple[str, tuple[int, ...]]]:
        return type(self), (str(self), self.ranks)


class ArgumentError(TallyError, ValueError):
    """An impossible array, name or option. The job continues."""


class ClosedError(TallyError):
    """The job was closed before."""


class ConnectError(TallyError, builtins.ConnectionError):
    """No agent at the socket after a search of up to 10 s, or no right to use it."""


class RefusedError(TallyError):
    """The agent refuses this rank.

    It has no such job or rank, other workers, or another process has the rank.
    """


class VersionError(RefusedError):
    """The agent and this package are of different versions."""


class LimitError(RefusedError):
    """More than the agent allows, or memory that it cannot use."""


class LinkError(TallyError):
    """The agent cannot use its network."""


class JoinError(TallyError):
    """The job did not begin. ``ranks`` are the missing ones."""


class MismatchError(TallyError):
    """Ranks brought different collectives, and no sum was made.

    ``ranks`` are those that differ from most.
    """


class MemberError(TallyError):
    """Another rank has failed or gone silent: one of ``ranks``, if known."""


class OverflowError(TallyError, builtins.OverflowError):
    """A sum of integers exceeded their range."""


class TimeoutError(TallyError, builtins.TimeoutError):
    """No result in time, from the other ranks or from the agent.

    ``ranks`` are live ranks that did not submit the collective named in the text, as far as known.
    If only the time of a wait was over, the text has what the agent knows of the cause, or says
    that the agent does not answer.
    """


class AgentGoneError(TallyError):
    """The agent has ended, or sent invalid data."""
