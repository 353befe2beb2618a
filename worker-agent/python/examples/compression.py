"""What the hook's wires and compressions cost in accuracy, and save in bytes, on 4 workers and a
real switch.

    python examples/compression.py [--seeds 5] [--steps 200] [--only digits|words]

Two models learn scikit-learn's handwritten digits: a convolutional net, whose gradients are dense,
and an embedding of each pair of neighbouring pixels as a word, of which a step sees few. Bytes are
those that a worker's interface has sent for each step, with all headers. Needs root, torch and
scikit-learn; the last words are the table.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys

import tally.torch
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from tally.compress import Int8, TopK, ZeroBlocks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests"))
from cluster import Cluster

WORKERS = 4
TEST = 360
BATCH = 16
LAST = 20

# The hook's options, by the names in the table.
DIGITS = {
    "f32": {"wire": "f32"},
    "fixed": {"wire": "fixed"},
    "bf16": {"wire": "bf16"},
    "f16": {"wire": "f16"},
    "int8": {"compression": Int8()},
    "top-k 10 %": {"compression": TopK(0.1)},
    "top-k 10 %, bf16": {"wire": "bf16", "compression": TopK(0.1)},
    "zero blocks": {"compression": ZeroBlocks()},
}
# A word's row has 64 elements.
WORDS = {
    "f32": {"wire": "f32"},
    "int8": {"compression": Int8()},
    "top-k 10 %": {"compression": TopK(0.1, block=64)},
    "zero blocks of 256": {"compression": ZeroBlocks()},
    "zero blocks of 64": {"compression": ZeroBlocks(64)},
    "zero blocks of 64, bf16": {"wire": "bf16", "compression": ZeroBlocks(64)},
}


def examples():
    images, labels = load_digits(return_X_y=True)
    # The same order for every seed: the last ones are the test set.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return torch.tensor(images, dtype=torch.float32)[order], torch.tensor(labels)[order]


def convolutional():
    images, labels = examples()
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    return model, images.reshape(-1, 1, 8, 8) / 16, labels, 0.05


def words():
    images, labels = examples()
    rows = images.long().reshape(-1, 8, 8)
    # What a pixel and its right neighbour are, and where: 56 words of 16,184.
    pairs = (rows[:, :, :-1] * 17 + rows[:, :, 1:]).flatten(1)
    pairs += torch.arange(56) * 17 * 17
    model = nn.Sequential(nn.EmbeddingBag(56 * 17 * 17, 64, mode="mean"), nn.Linear(64, 10))
    # So small that what is learned is more than what was there.
    nn.init.normal_(model[0].weight, std=0.1)
    return model, pairs, labels, 5.0


TASKS = {"digits": (convolutional, DIGITS), "words": (words, WORDS)}


def sent() -> int:
    """Bytes that this rank's host has sent."""
    path = "/sys/class/net/eth0/statistics/tx_bytes"
    command = ["ip", "netns", "exec", os.environ["HOSTS"].split()[int(os.environ["RANK"])], "cat", path]
    return int(subprocess.run(command, capture_output=True, check=True).stdout)


def train(task: str, name: str, seed: int, steps: int) -> dict:
    torch.manual_seed(seed)
    make, variants = TASKS[task]
    model, x, y, rate = make()
    model = DistributedDataParallel(model, bucket_cap_mb=0.25)
    model.register_comm_hook(tally.torch.HookState(**variants[name]), tally.ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    rank, size = dist.get_rank(), dist.get_world_size()
    choice = torch.Generator().manual_seed(seed)
    losses, before = [], sent()
    for _ in range(steps):
        all_ranks = torch.randint(len(x) - TEST, (size * BATCH,), generator=choice)
        mine = all_ranks[rank * BATCH : (rank + 1) * BATCH]
        loss = nn.functional.cross_entropy(model(x[mine]), y[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    count = (sent() - before) / steps
    with torch.no_grad():
        accuracy = (model.module(x[-TEST:]).argmax(1) == y[-TEST:]).double().mean().item()
    return {"accuracy": accuracy, "loss": sum(losses[-LAST:]) / LAST, "bytes": count}


def work(task: str, seeds: int, steps: int) -> None:
    """One rank."""
    dist.init_process_group("tally")
    for name in TASKS[task][1]:
        runs = [train(task, name, seed, steps) for seed in range(seeds)]
        print(json.dumps({"name": name, "runs": runs}), flush=True)
    dist.destroy_process_group()


def measure(cluster: Cluster, task: str, seeds: int, steps: int) -> list[dict]:
    command = [sys.executable, __file__, "--work", task, "--seeds", str(seeds), "--steps", str(steps)]
    hosts = " ".join(map(cluster.namespace, range(WORKERS)))
    outcomes = cluster.run(command, timeout=3600, HOSTS=hosts)
    for rank, (code, text) in enumerate(outcomes):
        if code != 0:
            sys.exit(f"rank {rank} ends with {code}:\n{text}\n{cluster.logs()}")
    return [json.loads(line) for line in outcomes[0][1].splitlines() if line.startswith("{")]


def table(task: str, measured: list[dict]) -> None:
    def spread(runs: list[dict], what: str, form: str) -> str:
        values = [it[what] for it in runs]
        return f"{mean(runs, what):{form}} ({min(values):{form}} to {max(values):{form}})"

    print(f"\n| {task} | accuracy | loss | kB a step | of f32 |\n|---|---|---|---|---|")
    whole = mean(measured[0]["runs"], "bytes")
    for it in measured:
        runs = it["runs"]
        accuracy, loss = spread(runs, "accuracy", ".1%"), spread(runs, "loss", ".3f")
        count = mean(runs, "bytes")
        print(f"| {it['name']} | {accuracy} | {loss} | {count / 1000:.1f} | {count / whole:.1%} |", flush=True)


def mean(runs: list[dict], what: str) -> float:
    return sum(it[what] for it in runs) / len(runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only", choices=list(TASKS))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        return work(arguments.work, arguments.seeds, arguments.steps)
    with Cluster(WORKERS) as cluster:
        for task in TASKS:
            if arguments.only in (None, task):
                table(task, measure(cluster, task, arguments.seeds, arguments.steps))


if __name__ == "__main__":
    main()
