"""A small convolutional net learns scikit-learn's handwritten digits, on all workers at once.

    torchrun --nproc-per-node 4 examples/digits_ddp.py --backend tally
"""

import torch
import training
from sklearn.datasets import load_digits
from torch import nn

TEST = 360


def make() -> training.Task:
    images, digits = load_digits(return_X_y=True)
    # The same order for every seed: the last ones are the test set.
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(images, dtype=torch.float32)[order].reshape(-1, 1, 8, 8) / 16
    digits = torch.tensor(digits)[order]
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )

    def loss(model, numbers):
        return nn.functional.cross_entropy(model(images[numbers]), digits[numbers])

    def accuracy(model):
        return (model(images[-TEST:]).argmax(1) == digits[-TEST:]).double().mean().item()

    return training.Task(
        model,
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        examples=len(digits) - TEST,
        batch=16,
        loss=loss,
        accuracy=accuracy,
    )


if __name__ == "__main__":
    training.main(__doc__, make, epochs=12)
