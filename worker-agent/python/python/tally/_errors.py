"""The exceptions of this package."""

from __future__ import annotations

import builtins


class TallyError(Exception):
    """Whatever goes wrong with Tally.

    ``ranks`` are the ranks that it is about, in order; empty if it is about none, or not known. After an
    :class:`ArgumentError`, a :class:`LimitError` of a job that runs, and a :class:`TimeoutError` because this process did not
    want to wait any longer the job goes on. After all else it has failed for good: start it again, at all ranks.
    """

    def __init__(self, text: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.ranks = ranks

    def __reduce__(self) -> tuple[type, tuple[str, tuple[int, ...]]]:
        return type(self), (str(self), self.ranks)


class ArgumentError(TallyError, ValueError):
    """An array, a name or an option that cannot be; the job goes on."""


class ClosedError(TallyError):
    """The job was closed before."""


class ConnectError(TallyError, builtins.ConnectionError):
    """There is no agent at the socket, after a search of up to 10 s, or this user may not use it."""


class RefusedError(TallyError):
    """The agent does not take us in: it has no such job or rank, other workers, or the rank is taken."""


class VersionError(RefusedError):
    """The agent and this package are of different versions."""


class LimitError(RefusedError):
    """More than the agent allows, or memory that it cannot use."""


class LinkError(TallyError):
    """The agent cannot use its network."""


class JoinError(TallyError):
    """The job did not begin; ``ranks`` are those that are missing."""


class MismatchError(TallyError):
    """Ranks brought different collectives; ``ranks`` are those that differ from most. No sum was made."""


class MemberError(TallyError):
    """Another rank, one of ``ranks`` if known, has failed or gone silent."""


class OverflowError(TallyError, builtins.OverflowError):
    """A sum of integers left their range."""


class TimeoutError(TallyError, builtins.TimeoutError):
    """No result came in time, from the other ranks or from the agent.

    ``ranks`` are those that live and did not come to the collective that the text names, as far as known. Where only
    the time of a wait was over, the text has what the agent knows of the cause, or that the agent does not answer.
    """


class AgentGoneError(TallyError):
    """The agent has ended, or makes no sense."""
