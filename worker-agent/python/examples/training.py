"""What the examples have in common: options, data-parallel training, checkpoints.

A job that ended in mid-training, for any reason, resumes from its `--checkpoint` when it is started
again with the same options, and comes to the same end: torchrun does so with `--max-restarts`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


@dataclass
class Task:
    """A model and its data."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    examples: int
    """Examples in the training set."""
    batch: int
    """Examples for each worker and step."""
    loss: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]
    """The mean loss of a model over the training examples with these numbers."""
    accuracy: Callable[[torch.nn.Module], float]
    """The share of right answers over the test set."""


def main(description: str, make: Callable[[], Task], epochs: int) -> None:
    """Trains what `make` makes, as the command line says."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--backend", choices=("tally", "gloo"), default="tally")
    parser.add_argument(
        "--wire",
        choices=("plain", "f32", "fixed", "bf16", "f16"),
        nargs="+",
        default=["plain"],
        help="what gradients are on the network, by tally.ddp_hook; without, DDP sums them as with any backend; with "
        "several it trains several times",
    )
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--steps", type=int, help="number of steps to end after, before all epochs are over")
    parser.add_argument(
        "--seed",
        type=int,
        nargs="+",
        default=[1],
        help="of the first weights and the order of examples; with several it trains several times",
    )
    parser.add_argument(
        "--turn",
        type=int,
        default=0,
        metavar="N",
        help="rank r takes the examples of rank r + N: the same sums, with their terms in another order",
    )
    parser.add_argument("--checkpoint", metavar="FILE", help="checkpoint to resume from if it exists, and to keep up to date")
    parser.add_argument("--every", type=int, metavar="STEPS", help="between checkpoints (an epoch)")
    parser.add_argument("--print-steps", action="store_true", help="a line for each step, with the mean loss")
    given = parser.parse_args()
    if given.backend == "gloo" and given.wire != ["plain"]:
        parser.error("--wire is for tally")
    if given.checkpoint and len(given.seed) * len(given.wire) > 1:
        parser.error("--checkpoint is for one training: expected one seed and one wire")

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if given.backend == "tally":
        # Which makes the backend known.
        import tally.torch
    dist.init_process_group(given.backend)
    for wire, seed in itertools.product(given.wire, given.seed):
        # The same weights everywhere.
        torch.manual_seed(seed)
        train(make(), wire, seed, given)
    dist.destroy_process_group()
    if given.backend == "gloo":
        # A thread of torch's Gloo that still holds a tensor when the interpreter ends aborts the
        # process.
        sys.stdout.flush()
        os._exit(0)


def train(task: Task, wire: str, seed: int, given: Any) -> None:
    rank, workers = dist.get_rank(), dist.get_world_size()
    per_epoch = task.examples // (task.batch * workers)
    steps = per_epoch * given.epochs
    if given.steps is not None:
        steps = min(steps, given.steps)
    place = (rank + given.turn) % workers
    start = resume(task, given.checkpoint)
    model = DistributedDataParallel(task.model)
    if wire != "plain":
        import tally

        model.register_comm_hook(tally.torch.HookState(wire, model=model), tally.ddp_hook)

    began = time.monotonic()
    for step in range(start, steps):
        epoch, at = divmod(step, per_epoch)
        loss = task.loss(model, share(task, seed, epoch, at, place, workers))
        task.optimizer.zero_grad()
        loss.backward()
        task.optimizer.step()
        if given.print_steps:
            mean = loss.detach() / workers
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {mean.item():.9f}", flush=True)
        if given.checkpoint and rank == 0 and (step + 1) % (given.every or per_epoch) == 0:
            save(task, given.checkpoint, step + 1)
    seconds = time.monotonic() - began

    if rank == 0:
        task.model.eval()
        with torch.no_grad():
            accuracy = task.accuracy(task.model)
        result = {
            "backend": given.backend,
            "wire": wire,
            "workers": workers,
            "seed": seed,
            "resumed_at": start,
            "steps": steps,
            "seconds": round(seconds, 3),
            "accuracy": accuracy,
        }
        print(json.dumps(result), flush=True)


def share(task: Task, seed: int, epoch: int, at: int, place: int, workers: int) -> torch.Tensor:
    """The numbers of a worker's examples in step `at` of an epoch; they depend on nothing else."""
    order = torch.randperm(task.examples, generator=torch.Generator().manual_seed((seed << 32) + epoch))
    first = (at * workers + place) * task.batch
    return order[first : first + task.batch]


def save(task: Task, path: str, step: int) -> None:
    """Atomic: writes a file under another name, and renames it over the last one."""
    state = {"step": step, "model": task.model.state_dict(), "optimizer": task.optimizer.state_dict()}
    new = path + ".new"
    with open(new, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def resume(task: Task, path: str | None) -> int:
    """Returns the step to resume at. Rank 0's file counts: the other hosts need not see it."""
    state = [None]
    if path and dist.get_rank() == 0 and os.path.exists(path):
        state = [torch.load(path, weights_only=True)]
    dist.broadcast_object_list(state)
    if state[0] is None:
        return 0
    task.model.load_state_dict(state[0]["model"])
    task.optimizer.load_state_dict(state[0]["optimizer"])
    return state[0]["step"]
