"""One rank of a training with DistributedDataParallel, timed step by step.

    train.py BACKEND RANK WORKERS ADDRESS FOLDER PLAN

PLAN is JSON: {"steps": N, "cases": [{"model": "vgg" or "resnet", "wire": null, "fixed" or "bf16"},
...]}. Without a wire DDP has the backend's all-reduce of f32. All cases run one after the other in
one process group. Prints a JSON object for each:

* step_s: seconds of each step, from forward pass to the end of the optimizer's;
* compute_s: the same without synchronisation (no_sync), at all ranks at once;
* communication_s: of each step, from the first bucket of gradients handed over to the last
  one back, with the computation in between;
* gradient_bytes, batch, losses, and a digest of all parameters after the last step.

Rank 0 writes how far the parameters have moved after two steps to FOLDER/BACKEND-MODEL-WIRE.f32.
Images are made up: random numbers of a fixed seed, in random classes. They are as much work as real
ones.
"""

import hashlib
import json
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 3
# Steps after which what the parameters are is compared with another backend's. The first has
# buckets of its own. Many more, and how sums are rounded shows: what differs by 1e-7 in the
# gradients of resnet has grown to 1e-2 in ten steps.
COMPARED = 2
CLASSES = 100
BATCHES = 4
SEED = 5


def vgg():
    """Three convolutions and three large layers, as in VGG: 9.7 million parameters."""
    layers = []
    for inward, outward in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inward, outward, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(1024, 3072), nn.ReLU()]
    layers += [nn.Linear(3072, 2048), nn.ReLU(), nn.Linear(2048, CLASSES)]
    return nn.Sequential(*layers)


class Block(nn.Module):
    def __init__(self, inward, outward):
        super().__init__()
        stride = 1 if inward == outward else 2
        self.path = nn.Sequential(
            nn.Conv2d(inward, outward, 3, stride, 1, bias=False),
            nn.GroupNorm(8, outward),
            nn.ReLU(),
            nn.Conv2d(outward, outward, 3, 1, 1, bias=False),
            nn.GroupNorm(8, outward),
        )
        self.past = nn.Identity() if stride == 1 else nn.Conv2d(inward, outward, 1, stride, bias=False)

    def forward(self, x):
        return torch.relu(self.path(x) + self.past(x))


def resnet():
    """ResNet-14 for images of 32 by 32, 0.2 million parameters. Groups are normalised, not batches:
    no statistics that a backend would have to broadcast."""
    layers = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.GroupNorm(8, 16), nn.ReLU()]
    for inward, outward in ((16, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64)):
        layers.append(Block(inward, outward))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


# The model, and images in a rank's batch.
MODELS = {"vgg": (vgg, 8), "resnet": (resnet, 32)}


class Watch:
    """A communication hook around another that times from the first bucket out to the last back."""

    def __init__(self, inner):
        self.inner = inner
        self.begin()

    def begin(self):
        self.first = self.last = None

    def seconds(self):
        return self.last - self.first

    def hook(self, state, bucket):
        if self.first is None:
            self.first = time.perf_counter()
        return self.inner(state, bucket).then(self.back)

    def back(self, future):
        value = future.value()
        self.last = time.perf_counter()
        return value[0] if isinstance(value, (list, tuple)) else value


def hook_of(backend, wire):
    if wire is None:
        return default_hooks.allreduce_hook, None
    if backend == "gloo":
        assert wire == "bf16", wire
        return default_hooks.bf16_compress_hook, None
    import tally.torch

    return tally.ddp_hook, tally.torch.HookState(wire=wire)


def run(case, steps, backend, rank, folder):
    make, batch = MODELS[case["model"]]
    torch.manual_seed(SEED)
    bare = make()
    start = [parameter.detach().clone() for parameter in bare.parameters()]
    model = DistributedDataParallel(bare)
    inner, state = hook_of(backend, case["wire"])
    watch = Watch(inner)
    model.register_comm_hook(state, watch.hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(SEED + 1 + rank)
    images = torch.randn(BATCHES, batch, 3, 32, 32)
    classes = torch.randint(CLASSES, (BATCHES, batch))

    def step(number):
        loss = cross_entropy(model(images[number % BATCHES]), classes[number % BATCHES])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    step_s, communication_s, losses = [], [], []
    dist.barrier()
    for number in range(WARM_UP + steps):
        watch.begin()
        begun = time.perf_counter()
        losses.append(step(number))
        step_s.append(time.perf_counter() - begun)
        communication_s.append(watch.seconds())
        if number + 1 == COMPARED and rank == 0:
            moved = [(now.detach() - then).reshape(-1) for now, then in zip(bare.parameters(), start)]
            name = f"{backend}-{case['model']}-{case['wire'] or 'default'}.f32"
            torch.cat(moved).numpy().tofile(pathlib.Path(folder) / name)
    digest = hashlib.sha256()
    for parameter in bare.parameters():
        digest.update(parameter.detach().numpy().tobytes())

    compute_s = []
    dist.barrier()
    with model.no_sync():
        for number in range(WARM_UP + steps):
            begun = time.perf_counter()
            step(number)
            compute_s.append(time.perf_counter() - begun)
    dist.barrier()
    said = {
        "case": case,
        "rank": rank,
        "batch": batch,
        "gradient_bytes": sum(parameter.numel() * 4 for parameter in bare.parameters()),
        "step_s": step_s[WARM_UP:],
        "communication_s": communication_s[WARM_UP:],
        "compute_s": compute_s[WARM_UP:],
        "losses": losses,
        "digest": digest.hexdigest(),
    }
    print(json.dumps(said), flush=True)


def main():
    backend, rank, workers, address, folder, plan = sys.argv[1:]
    torch.set_num_threads(1)
    if backend == "tally":
        import tally.torch  # noqa: F401
    url = f"tcp://{address}:29500"
    dist.init_process_group(backend, init_method=url, rank=int(rank), world_size=int(workers))
    plan = json.loads(plan)
    for case in plan["cases"]:
        run(case, plan["steps"], backend, int(rank), folder)
    dist.destroy_process_group()


main()
