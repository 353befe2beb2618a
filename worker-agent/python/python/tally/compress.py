"""Gradients in fewer bytes: ``HookState(compression=...)`` of :mod:`tally.torch`.

A bucket of gradients is cut into blocks of neighbours. Ranks first sum one number for each block.
From these sums all ranks learn which blocks travel, or how finely. Then they sum the blocks.

* :class:`ZeroBlocks`: blocks that are zero at every rank do not travel. The result is the same.
* :class:`TopK`: only the blocks with the largest norms travel.
* :class:`Int8`: elements travel as one byte, with a step for each block.

Residuals: what :class:`TopK` and :class:`Int8` leave out is added to the rank's own next gradients
(error feedback). Residuals are as large as the gradients, belong to parameters, and live as long as
the state of the hook. They survive when DDP makes other buckets. They are not in checkpoints, which
loses less than a step's gradients.

NaN and infinity arrive at every rank: unchanged with :class:`ZeroBlocks` and :class:`TopK`, as NaN
in the whole block with :class:`Int8`. Such a block leaves no residual.

Gradients are of float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Sequence

import torch

from ._errors import ArgumentError

__all__ = ["Compression", "Int8", "TopK", "ZeroBlocks"]

_I8_MAX = 127
_TINY = torch.finfo(torch.float32).tiny


class Exchange(Protocol):
    """One bucket in flight. Each method is called once, in this order."""

    def ask(self) -> torch.Tensor:
        """First sum over all ranks: of int8, or of float32 in the order of ranks."""

    def tell(self, sums: torch.Tensor) -> torch.Tensor:
        """Second sum: of int8 as it is, or of float32 by the hook's wire, then averaged.

        May be empty.
        """

    def result(self, sums: torch.Tensor) -> torch.Tensor:
        """Average of the bucket, from the sum of int8 or the average of float32."""


class Compression:
    """Base class of the compressions of this module."""

    def exchange(
        self,
        flat: torch.Tensor,
        parameters: Sequence[torch.Tensor],
        residuals: Residuals,
        workers: int,
    ) -> Exchange:
        """Begins with a bucket.

        ``flat`` is of float32, with the gradients of ``parameters`` one behind the other.
        """
        raise NotImplementedError


def _check_block(block: int) -> None:
    if isinstance(block, bool) or not isinstance(block, int) or not 1 <= block <= 65536:
        raise ArgumentError(f"block: found {block!r}, expected 1 to 65536 elements")


def _blocks(flat: torch.Tensor, block: int) -> torch.Tensor:
    """Rows of ``block`` elements, the last one padded with zeros.

    Memory is shared with ``flat`` unless padded.
    """
    missing = -flat.numel() % block
    if missing:
        flat = torch.nn.functional.pad(flat, (0, missing))
    return flat.view(-1, block)


class Residuals:
    """Residuals of this rank, by parameter."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[int, ...], torch.Tensor] = {}
        # Keeps the parameters alive, so that their ids are not reused.
        self._owed: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def of(self, parameters: Sequence[torch.Tensor], block: int) -> torch.Tensor:
        """Residuals of a bucket, in blocks.

        Values written there are kept for the next step.
        """
        key = tuple(map(id, parameters))
        known = self._buckets.get(key)
        if known is not None:
            return known
        # DDP has made other buckets.
        ours = set(key)
        self._buckets = {
            old: it for old, it in self._buckets.items() if ours.isdisjoint(old)
        }
        blocks = _blocks(torch.zeros(sum(it.numel() for it in parameters)), block)
        at = 0
        for it in parameters:
            view = blocks.view(-1)[at : at + it.numel()]
            at += it.numel()
            if id(it) in self._owed:
                view.copy_(self._owed[id(it)][1])
            self._owed[id(it)] = it, view
        self._buckets[key] = blocks
        return blocks


@dataclass(frozen=True)
class ZeroBlocks(Compression):
    """Sparse gradients: blocks that are zero at every rank do not travel.

    Example: the unused rows of an embedding (OmniReduce, SIGCOMM'21). The average has the same
    values, except for the sign of zeros. With the wire ``fixed`` elements have other neighbours,
    and are rounded with them. A block costs a byte, so dense gradients cost 0.1 % more.
    """

    block: int = 256
    """Elements of a block, 1 to 65536."""

    def __post_init__(self) -> None:
        _check_block(self.block)

    def exchange(
        self,
        flat: torch.Tensor,
        parameters: Sequence[torch.Tensor],
        residuals: Residuals,
        workers: int,
    ) -> Exchange:
        return _ZeroBlocks(flat, self.block)


class _ZeroBlocks:
    def __init__(self, flat: torch.Tensor, block: int) -> None:
        self._flat, self._blocks = flat, _blocks(flat, block)

    def ask(self) -> torch.Tensor:
        # The sum of 64 ones fits an int8.
        return (self._blocks != 0).any(1).to(torch.int8)

    def tell(self, sums: torch.Tensor) -> torch.Tensor:
        self._chosen = sums.nonzero().squeeze(1)
        return self._blocks[self._chosen]

    def result(self, sums: torch.Tensor) -> torch.Tensor:
        # All others are zero.
        self._blocks[self._chosen] = sums.view(-1, self._blocks.shape[1])
        return self._flat.copy_(self._blocks.view(-1)[: self._flat.numel()])


@dataclass(frozen=True)
class TopK(Compression):
    """Only the blocks of a bucket with the largest norms travel.

    The norm is the sum of squares over all ranks, so all ranks send the same blocks, and the share
    holds for any gradients. The other blocks stay as residual. A block costs four bytes beside its
    elements. Of equal norms the first travel. Blocks that are not finite always travel.
    """

    share: float = 0.1
    """Share of a bucket's blocks, more than 0 and at most 1; at least one block."""
    block: int = 256
    """Elements of a block, 1 to 65536."""

    def __post_init__(self) -> None:
        _check_block(self.block)
        if not 0 < self.share <= 1:
            raise ArgumentError(
                f"share: found {self.share!r}, expected more than 0 and at most 1"
            )

    def exchange(
        self,
        flat: torch.Tensor,
        parameters: Sequence[torch.Tensor],
        residuals: Residuals,
        workers: int,
    ) -> Exchange:
        return _TopK(flat, residuals.of(parameters, self.block), self.share)


class _TopK:
    def __init__(self, flat: torch.Tensor, owed: torch.Tensor, share: float) -> None:
        self._flat, self._owed, self._share = flat, owed, share
        owed.view(-1)[: flat.numel()].add_(flat)

    def ask(self) -> torch.Tensor:
        return self._owed.square().sum(1)

    def tell(self, sums: torch.Tensor) -> torch.Tensor:
        sums = sums.nan_to_num(nan=torch.inf, posinf=torch.inf)
        count = max(1, round(self._share * sums.numel()), int(sums.isinf().sum()))
        # Stable: the same order at all ranks, on any CPU.
        order = sums.sort(descending=True, stable=True).indices
        self._chosen = order[:count].sort().values
        chosen = self._owed[self._chosen]
        self._owed[self._chosen] = 0
        return chosen

    def result(self, sums: torch.Tensor) -> torch.Tensor:
        blocks = torch.zeros_like(self._owed)
        blocks[self._chosen] = sums.view(-1, blocks.shape[1])
        return self._flat.copy_(blocks.view(-1)[: self._flat.numel()])


@dataclass(frozen=True)
class Int8(Compression):
    """Elements travel and are summed as whole numbers of a step, in one byte.

    A block's step is the sum of all ranks' largest magnitudes in it, divided by 127 - n/2 for n
    workers. So no sum of rounded elements exceeds ±127. Similar ranks have ±31 steps for each of 4
    workers, ±15 of 8, and ±1 of 64; a rank with larger gradients than others has more. Rounding
    errors stay as residual. A block costs four bytes beside its elements.

    The type on the wire is fixed: the hook's ``wire`` stays ``f32``.
    """

    block: int = 256
    """Elements of a block, 1 to 65536."""

    def __post_init__(self) -> None:
        _check_block(self.block)

    def exchange(
        self,
        flat: torch.Tensor,
        parameters: Sequence[torch.Tensor],
        residuals: Residuals,
        workers: int,
    ) -> Exchange:
        return _Int8(flat, residuals.of(parameters, self.block), workers)


class _Int8:
    def __init__(self, flat: torch.Tensor, owed: torch.Tensor, workers: int) -> None:
        self._flat, self._owed, self._workers = flat, owed, workers
        owed.view(-1)[: flat.numel()].add_(flat)

    def ask(self) -> torch.Tensor:
        return self._owed.abs().amax(1)

    def tell(self, sums: torch.Tensor) -> torch.Tensor:
        # |x| / step adds up to 127 - n/2 at most, and rounding adds up to 1/2 for each rank.
        step = sums / (_I8_MAX - self._workers / 2)
        is_finite = step.isfinite()
        # Elements of a step too small to divide by stay as residual until they have grown.
        is_used = is_finite & (step >= _TINY)
        self._step = torch.where(is_finite, step, torch.nan)[:, None]
        steps = torch.where(is_used, 1 / step, 0)[:, None]
        # Infinity times 0 is NaN.
        whole = (self._owed * steps).round_().nan_to_num_(nan=0.0)
        self._owed.sub_(whole * self._step)
        self._owed[~is_finite] = 0
        return whole.to(torch.int8)

    def result(self, sums: torch.Tensor) -> torch.Tensor:
        blocks = sums.view(self._owed.shape) * (self._step / self._workers)
        return self._flat.copy_(blocks.view(-1)[: self._flat.numel()])
