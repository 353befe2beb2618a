"""DDP's gradients with priorities and a choice of the wire: :func:`ddp_hook`.

::

    model = DistributedDataParallel(model)
    model.register_comm_hook(tally.torch.HookState(wire="bf16"), tally.ddp_hook)

Without the hook DDP averages gradients through ``all_reduce``, which the backend serves as well.
The hook adds:

* **Priorities.** DDP's first bucket has the model's last layers. Its last bucket has the first
  layers, which the next forward pass needs first. Each bucket tells the agent its place in the
  model, and whether more follow. So the agent can tell a training step's computation from its
  communication. Where jobs compete for the switch's memory, the more urgent one wins (ESA).
* **The wire.** The type of gradients in flight; they return in their own type.

  ============ ================================================================ =====
  ``"f32"``    float32, summed in the order of ranks                            100 %
  ``"fixed"``  float32 as integers with an exponent for each fragment           100 %
  ``"bf16"``   rounded to bfloat16, summed as such                              50 %
  ``"f16"``    rounded to float16, summed as such; beyond ±65504 it is infinity 50 %
  ============ ================================================================ =====

  NaN and infinity arrive at every rank: in place, or with ``"fixed"`` as NaN in their whole
  fragment.
* **Compression**, see :mod:`tally.compress`.

The catches:

* Gradients are of float32. Gradients of bfloat16 and float16 travel in their own type or as
  ``"f32"``.
* One state belongs to one model.
* With compression each bucket waits in the next bucket's hook for its first round. So all ranks
  submit in the same order.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist

from ._errors import ArgumentError
from .compress import Compression, Exchange, Int8, Residuals
from ._c10d.collectives import Collectives
from ._c10d.work import TallyWork

__all__ = ["HookState", "ddp_hook"]

_WIRES = {
    "f32": (torch.float32, "native"),
    "fixed": (torch.float32, "fixed"),
    "bf16": (torch.bfloat16, "own"),
    "f16": (torch.float16, "own"),
}
# Leaves room for additions to a name.
_NAME_BYTES_MAX = 200
_PLACES_MAX = 65535


class HookState:
    """State of :func:`ddp_hook` for one model. All ranks need the same.

    ``wire`` is ``"f32"``, ``"fixed"``, ``"bf16"`` or ``"f16"``. ``compression`` is one of
    :mod:`tally.compress`. ``model`` is the model given to or made by ``DistributedDataParallel``;
    with it errors name parameters.

    Raises :class:`tally.ArgumentError` for other values, and if the default process group is not of
    the backend ``tally``.
    """

    def __init__(
        self,
        wire: str = "f32",
        compression: Optional[Compression] = None,
        model: Optional[torch.nn.Module] = None,
    ) -> None:
        if wire not in _WIRES:
            raise ArgumentError(
                f"wire: found {wire!r}, expected one of {', '.join(_WIRES)}"
            )
        if compression is not None and not isinstance(compression, Compression):
            raise ArgumentError(
                f"compression: found {compression!r}, expected an instance of one of tally.compress"
            )
        if isinstance(compression, Int8) and wire != "f32":
            raise ArgumentError(
                f"wire: found {wire!r}; with tally.compress.Int8 elements travel as int8"
            )
        self.wire, self.compression = wire, compression
        self._group = _group(model)
        self._names: dict[int, str] = {}
        if model is not None:
            names = model.named_parameters()
            self._names = {id(it): name.removeprefix("module.") for name, it in names}
        # Number of buckets of the last backward pass.
        self._buckets = 0
        self._residuals = Residuals()
        # The bucket whose first round is in flight.
        self._asked: Optional[_Asked] = None

    def _reduce(self, bucket: dist.GradBucket) -> torch.futures.Future:
        name = self._name(bucket)
        flat = bucket.buffer()
        self._check(flat, name)
        place = self._place(bucket)
        self._proceed()
        if self.compression is None:
            work = TallyWork(flat)
            self._mean(work, flat, name, place, not bucket.is_last(), None)
            return work.get_future()
        parameters = bucket.parameters()
        exchange = self.compression.exchange(
            flat, parameters, self._residuals, self._group._size
        )
        self._asked = _Asked(self, exchange, flat, name, place, bucket.is_last())
        future = self._asked.work.get_future()
        if bucket.is_last():
            self._proceed()
        return future

    def _proceed(self) -> None:
        """Starts the second round of the previous bucket."""
        if self._asked is not None:
            asked, self._asked = self._asked, None
            asked.proceed()

    def _mean(
        self,
        work: TallyWork,
        flat: torch.Tensor,
        name: str,
        place: tuple[int, int],
        more_follow: bool,
        then: Any,
    ) -> None:
        """Averages ``flat`` over all ranks, then calls ``then``, and then ends ``work``."""
        dtype, arithmetic = _WIRES[self.wire]
        if dtype == torch.float32 or dtype == flat.dtype:
            travels, op = flat, "mean"
        else:
            travels, op = flat.to(dtype), "sum"

        def back() -> None:
            if travels is not flat:
                # Divides in the wider type.
                flat.copy_(travels).div_(self._group._size)
            if then is not None:
                then()

        self._group._reduce(work, travels, op, arithmetic, name, place, more_follow, back)

    def _place(self, bucket: dist.GradBucket) -> tuple[int, int]:
        """Index of the bucket from the model's first layers on, and the number of buckets."""
        index, is_last = bucket.index(), bucket.is_last()
        # Unknown in the first backward pass, and when there are more buckets than before.
        count = max(self._buckets, index + (1 if is_last else 2))
        if is_last:
            self._buckets = index + 1
        place = 0 if is_last else count - 1 - index
        return min(place, _PLACES_MAX - 1), min(count, _PLACES_MAX)

    def _name(self, bucket: dist.GradBucket) -> str:
        parameters = bucket.parameters()
        first, last = parameters[0], parameters[-1]
        if id(first) in self._names and id(last) in self._names:
            what = self._names[id(first)]
            if last is not first:
                what += f" to {self._names[id(last)]}"
        else:
            what = f"{len(parameters)} parameters from {list(first.shape)} on"
        name = f"gradients of bucket {bucket.index()} ({what})"
        return name.encode()[:_NAME_BYTES_MAX].decode(errors="ignore")

    def _check(self, flat: torch.Tensor, name: str) -> None:
        if flat.device.type != "cpu":
            raise ArgumentError(f"`{name}`: on {flat.device}, expected CPU")
        own = {torch.bfloat16: "bf16", torch.float16: "f16"}.get(flat.dtype)
        if flat.dtype == torch.float32:
            return
        if self.compression is not None or own is None:
            raise ArgumentError(f"`{name}`: of {flat.dtype}, expected torch.float32")
        if self.wire not in (own, "f32"):
            raise ArgumentError(
                f"`{name}`: of {flat.dtype}, which travels as {own!r} or 'f32', not as {self.wire!r}"
            )


class _Asked:
    """A bucket between its two rounds."""

    def __init__(
        self,
        state: HookState,
        exchange: Exchange,
        flat: torch.Tensor,
        name: str,
        place: tuple[int, int],
        is_last: bool,
    ) -> None:
        self._state, self._exchange, self._name = state, exchange, name
        self._place, self._is_last = place, is_last
        self.work = TallyWork(flat)
        self._asked = exchange.ask()
        engine = state._group._engine
        self._handle = engine.submit(
            self._asked, "sum", "native", engine.job._name("", f"{name}, its blocks"), 0, place, True
        )

    def proceed(self) -> None:
        try:
            self._handle.wait()
            told = self._exchange.tell(self._asked)

            def back() -> None:
                self._exchange.result(told)

            more_follow = not self._is_last
            group = self._state._group
            if told.dtype == torch.int8:
                group._reduce(
                    self.work, told, "sum", "own", self._name, self._place, more_follow, back
                )
            else:
                self._state._mean(
                    self.work, told, self._name, self._place, more_follow, back
                )
        except BaseException as error:
            self.work._finish(error)
            raise


def _group(model: Optional[torch.nn.Module]) -> Collectives:
    """The default group; raises an error if its backend is not ``tally``."""
    if not dist.is_initialized():
        raise ArgumentError(
            'no process group: call init_process_group("tally") before'
        )
    from . import torch as backend

    if backend._world is None or "tally" not in dist.get_backend_config():
        raise ArgumentError(
            f"the default process group is of the backend {dist.get_backend()!r}, expected 'tally'"
        )
    its_own = getattr(model, "process_group", dist.group.WORLD)
    if its_own is not dist.group.WORLD:
        raise ArgumentError(
            "the model has a process group of its own, and only the default one is served"
        )
    return backend._world


def ddp_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future:
    """DDP communication hook: averages a bucket of gradients over all ranks.

    Use: ``model.register_comm_hook(HookState(...), ddp_hook)``. The future holds the bucket's
    buffer, a tensor of one dimension, with the averages. Errors are those of
    :meth:`tally.Job.all_reduce` and :class:`tally.ArgumentError`. ``backward()`` raises them as
    themselves, or as ``RuntimeError`` with their class and words in its text.
    """
    if not isinstance(state, HookState):
        raise ArgumentError(
            f"ddp_hook: its state is {state!r}, expected a tally.torch.HookState"
        )
    return state._reduce(bucket)


# DDP compares annotations with the types, not with their names.
ddp_hook.__annotations__ = {
    "state": HookState,
    "bucket": dist.GradBucket,
    "return": torch.futures.Future[torch.Tensor],
}
