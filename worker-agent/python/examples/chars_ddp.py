"""A small transformer learns to write the manual of Python, character by character, on all workers
at once.

    torchrun --nproc-per-node 4 examples/chars_ddp.py --backend tally
"""

import pydoc_data.topics
import torch
import training
from torch import nn

CONTEXT = 64
"""Characters that the model sees."""
WIDTH, HEADS, LAYERS = 64, 4, 2
TEST = 200
"""Stretches of text in the test set."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        batch, length, _ = x.shape
        parts = self.mix(self.before(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.think(x)


class Writer(nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.character = nn.Embedding(characters, WIDTH)
        self.place = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.next = nn.Linear(WIDTH, characters)

    def forward(self, text):
        return self.next(self.blocks(self.character(text) + self.place.weight[: text.shape[1]]))


def make() -> training.Task:
    topics = pydoc_data.topics.topics
    text = "\n\n".join(topics[name] for name in sorted(topics))
    numbers = {character: number for number, character in enumerate(sorted(set(text)))}
    codes = torch.tensor([numbers[character] for character in text])
    # Stretches of one character more than the model sees: what comes next is what it learns.
    stretches = codes[: len(codes) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    order = torch.randperm(len(stretches), generator=torch.Generator().manual_seed(0))
    stretches = stretches[order]
    model = Writer(len(numbers))

    def loss(model, numbers):
        text = stretches[numbers]
        return nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def accuracy(model):
        text = stretches[-TEST:]
        return (model(text[:, :-1]).argmax(2) == text[:, 1:]).double().mean().item()

    return training.Task(
        model,
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        examples=len(stretches) - TEST,
        batch=16,
        loss=loss,
        accuracy=accuracy,
    )


if __name__ == "__main__":
    training.main(__doc__, make, epochs=2)
