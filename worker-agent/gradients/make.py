#!/usr/bin/python3
"""Real gradients to test the all-reduce with: a small convolutional net learns
scikit-learn's bundled digits on 8 data-parallel workers, and the local gradients of
each worker are kept at an early, a middle and a late step.

All 8 workers live in this process and take turns. Every step, worker r computes the
gradient of its own 32 examples; the gradients are summed in rank order in f32 and
divided by 8, as a job of Tally would do it, and the one shared model takes the step.

    apt-get install --no-install-recommends python3-torch python3-sklearn
    ./make.py              # writes beside itself, prints the table of README.md
    ./make.py --into DIR

Seeds are fixed and torch runs on one thread, so a second run on the same machine
writes the same bytes. Another CPU or another torch may sum its convolutions in
another order; the committed files, not this script, are what tests rely on.
"""

import argparse
import json
import pathlib
import struct

import numpy as np
import torch
from sklearn.datasets import load_digits

WORKERS = 8
EXAMPLES_PER_WORKER_STEP = 32
STEPS = 400
KEPT_STEPS = (0, 40, 399)
MIXED_STEP = 40
TEST_EXAMPLES = 357
SEED = 20

SAFETENSORS_DTYPE = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int32: "I32"}


def raw_bytes(tensor):
    """The tensor's elements as little-endian bytes. numpy has no bf16, but every bf16 is
    the upper half of the f32 of the same value."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype is torch.bfloat16:
        return (tensor.float().numpy().view("<u4") >> 16).astype("<u2").tobytes()
    array = tensor.numpy()
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def save_safetensors(path, tensors, metadata):
    """https://github.com/huggingface/safetensors#format: length of the header (u64, little
    endian), the header (JSON, padded with spaces to 8 bytes), then the elements."""
    header, blobs, end = {"__metadata__": metadata}, [], 0
    for name in sorted(tensors, key=lambda n: n.encode()):
        blob = raw_bytes(tensors[name])
        header[name] = {
            "dtype": SAFETENSORS_DTYPE[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [end, end + len(blob)],
        }
        blobs.append(blob)
        end += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


class Net(torch.nn.Module):
    """8x8 grey image -> 10 classes. No batch norm: a worker's gradient is then a function of
    its own examples and the shared parameters only."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 12, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(12, 24, 3, padding=1)
        self.linear = torch.nn.Linear(24 * 2 * 2, 10)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.linear(x.flatten(1))


def mixed_precision(gradient, labels):
    """The same gradient as a mixed-precision job would send it, and two integer tensors:
    how often each class occurs in the worker's shard, and (a scalar) the shard's size."""
    tensors = {}
    for name, g in gradient.items():
        if name.endswith(".bias"):
            tensors[name] = g
        else:
            tensors[name] = g.to(torch.bfloat16 if name.startswith("conv") else torch.float16)
    tensors["shard.label_counts"] = torch.bincount(labels, minlength=10).to(torch.int32)
    tensors["shard.examples"] = torch.tensor(len(labels), dtype=torch.int32)
    return tensors


def norm(gradient):
    return float(torch.sqrt(sum((g.double() ** 2).sum() for g in gradient.values())))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--into", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    into = parser.parse_args().into

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    digits = load_digits()
    order = np.random.RandomState(SEED).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16.0, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target[order], dtype=torch.int64)
    test_images, test_labels = images[:TEST_EXAMPLES], labels[:TEST_EXAMPLES]
    shards = [range(TEST_EXAMPLES + r, len(labels), WORKERS) for r in range(WORKERS)]
    draw = [np.random.RandomState(SEED + 1 + r) for r in range(WORKERS)]

    net = Net()
    loss_of = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    print(f"{sum(p.numel() for p in net.parameters())} parameters, {WORKERS} workers")
    print("| step | loss | accuracy before it | norm of a worker's gradient | norm of the mean |")
    print("|---|---|---|---|---|")

    def accuracy():
        with torch.no_grad():
            return float((net(test_images).argmax(1) == test_labels).float().mean())

    for step in range(STEPS):
        gradients, losses = [], []
        for rank in range(WORKERS):
            batch = draw[rank].choice(shards[rank], EXAMPLES_PER_WORKER_STEP, replace=False)
            net.zero_grad()
            loss = loss_of(net(images[batch]), labels[batch])
            loss.backward()
            losses.append(float(loss))
            gradients.append({name: p.grad.clone() for name, p in net.named_parameters()})

        mean = {name: g.clone() for name, g in gradients[0].items()}
        for gradient in gradients[1:]:
            for name in mean:
                mean[name] += gradient[name]
        for name in mean:
            mean[name] /= WORKERS

        if step in KEPT_STEPS:
            norms = [norm(g) for g in gradients]
            print(f"| {step} | {sum(losses) / WORKERS:.4f} | {accuracy():.1%} "
                  f"| {min(norms):.4f} to {max(norms):.4f} | {norm(mean):.4f} |")
            about = {"model": "digits", "step": str(step), "workers": str(WORKERS)}
            for rank, gradient in enumerate(gradients):
                about["rank"] = str(rank)
                save_safetensors(into / f"digits/step{step}/rank{rank}.safetensors", gradient, about)
                if step == MIXED_STEP:
                    mixed = mixed_precision(gradient, labels[list(shards[rank])])
                    save_safetensors(into / f"mixed/rank{rank}.safetensors", mixed, about)

        for name, p in net.named_parameters():
            p.grad = mean[name]
        optimizer.step()

    print(f"accuracy on {TEST_EXAMPLES} held-out images after {STEPS} steps: {accuracy():.1%}")


if __name__ == "__main__":
    main()
