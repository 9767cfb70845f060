"""Six training programs in plain PyTorch, whose source can be edited by arguments.

    python programs.py NAME [EDIT ...]

Each EDIT is a text that `allocsim replay --edit` reads.  Here the program itself does what it says.
The lengths of the batches change at every step, and are the same in every run.
"""

import random
import re
import sys
from collections.abc import Callable

import torch
from torch import nn

STEPS = 8
DEVICE = "cuda"


class Loop:
    """Training loop with the edits in its source."""

    def __init__(self, edits: list[str], lengths: list[int]) -> None:
        self.edits = edits
        self.lengths = lengths

    def has(self, pattern: str) -> re.Match[str] | None:
        found = (re.fullmatch(pattern, edit) for edit in self.edits)
        return next((each for each in found if each is not None), None)

    def order(self) -> list[int]:
        steps = list(range(len(self.lengths)))
        if self.has("largest step first"):
            steps.sort(key=lambda step: step != self.lengths.index(max(self.lengths)))
        if dropped := self.has(r"drop step (\d+)"):
            steps.remove(int(dropped[1]) - 1)
        if again := self.has(r"repeat steps (\d+)\.\.(\d+) x (\d+)"):
            first, last, times = (int(number) for number in again.groups())
            steps[first - 1 : last] = steps[first - 1 : last] * times
        return steps

    def run(self, step: Callable[[int, Callable[[], None]], None]) -> None:
        empties_before = self.has("empty-cache before phase backward")
        before = torch.cuda.empty_cache if empties_before else lambda: None
        every = self.has(r"empty-cache every (\d+) steps")
        after = self.has(r"empty-cache after step (\d+)")
        for turn, number in enumerate(self.order(), 1):
            step(self.lengths[number], before)
            if every and turn % int(every[1]) == 0:
                torch.cuda.empty_cache()
            if after and number == int(after[1]) - 1:
                torch.cuda.empty_cache()


def lengths(least: int, most: int, seed: int = 0) -> list[int]:
    draws = random.Random(seed)
    return [draws.randrange(least, most) for _ in range(STEPS)]


def perceptron(edits: list[str]) -> None:
    """Train a perceptron with Adam; gradients are freed at the end of a step."""
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1000)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())

    def step(length: int, before_backward: Callable[[], None]) -> None:
        inputs = torch.randn(length, 1024, device=DEVICE)
        targets = torch.zeros(length, dtype=torch.long, device=DEVICE)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        before_backward()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    Loop(edits, lengths(2_000, 40_000)).run(step)


def encoder(edits: list[str]) -> None:
    """Train an encoder with AdamW; gradients are freed at the begin of a step."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(length: int, before_backward: Callable[[], None]) -> None:
        optimizer.zero_grad(set_to_none=True)
        inputs = torch.randn(4, length, 512, device=DEVICE)
        loss = model(inputs).square().mean()
        before_backward()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    Loop(edits, lengths(128, 1536, 1)).run(step)


def convolutions(edits: list[str]) -> None:
    """Train convolutions with momentum; gradients are never freed."""
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(128, 10),
    ).to(DEVICE)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, lr=0.1)

    def step(length: int, before_backward: Callable[[], None]) -> None:
        images = torch.randn(16, 3, length, length, device=DEVICE)
        loss = model(images).square().mean()
        optimizer.zero_grad(set_to_none=False)
        before_backward()
        loss.backward()
        optimizer.step()

    Loop(edits, lengths(64, 512, 2)).run(step)


def vocabulary(edits: list[str]) -> None:
    """Train an embedding and a wide output layer under autocast."""
    table, head = nn.Embedding(32_000, 512).to(DEVICE), nn.Linear(512, 32_000).to(DEVICE)
    parameters = [*table.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, foreach=False)

    def step(length: int, before_backward: Callable[[], None]) -> None:
        tokens = torch.zeros(2, length, dtype=torch.long, device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = head(table(tokens))
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        del logits
        before_backward()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    Loop(edits, lengths(128, 4096, 3)).run(step)


def accumulation(edits: list[str]) -> None:
    """Train with two backward passes for each step of the optimizer."""
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(6))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(length: int, before_backward: Callable[[], None]) -> None:
        for half in (length, length // 2):
            loss = model(torch.randn(half, 2048, device=DEVICE)).square().mean()
            before_backward()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    Loop(edits, lengths(1_000, 20_000, 4)).run(step)


def prefetch(edits: list[str]) -> None:
    """Train on batches that a second stream copies, with record_stream."""
    model = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 512)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    is_one = "one stream" in edits
    side = torch.cuda.current_stream() if is_one else torch.cuda.Stream()

    def step(length: int, before_backward: Callable[[], None]) -> None:
        with torch.cuda.stream(side):
            batch = torch.randn(length, 2048, device=DEVICE) * 2
        if not is_one:
            torch.cuda.current_stream().wait_stream(side)
            if "free early" not in edits:
                batch.record_stream(torch.cuda.current_stream())
        loss = model(batch).square().mean()
        del batch
        before_backward()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    Loop(edits, lengths(2_000, 30_000, 5)).run(step)


PROGRAMS = {
    each.__name__: each
    for each in (perceptron, encoder, convolutions, vocabulary, accumulation, prefetch)
}

if __name__ == "__main__":
    for edit in sys.argv[2:]:
        if size := re.fullmatch(r"preallocate (\d+)MiB", edit):
            block = torch.empty(int(size[1]) << 20, dtype=torch.uint8, device=DEVICE)
            del block
    PROGRAMS[sys.argv[1]](sys.argv[2:])
