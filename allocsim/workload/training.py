"""Training loop of a transformer.

With a fixed sequence length, the second step reuses all blocks of the first step without driver
calls.  With varying lengths, each step requests other sizes.  Blocks that were split for one step
do not fit the next step, and reserved memory grows beyond the need of any single step.
"""

from __future__ import annotations

import random

from allocsim.recording import Recording
from allocsim.workload.recorder import Recorder

_VOCABULARY = 50_257
_FLOAT, _HALF, _TOKEN = 4, 2, 8
_FILE = "train.py"


def training(
    *,
    steps: int = 10,
    layers: int = 12,
    hidden: int = 768,
    batch: int = 4,
    sequence: int = 512,
    ragged: bool = False,
    seed: int = 0,
    device_memory: int | str = "24GiB",
    conf: str = "",
    entries: int | None = None,
) -> Recording:
    """Simulate a training loop with forward, backward and Adam.

    steps: number of steps.
    layers, hidden: number of layers and width of the model.
    batch, sequence: number of sequences in a step, and tokens in each.
    ragged: True to draw a sequence length for every step, from a quarter of `sequence` to all of
        it.
    entries: number of entries to generate, in place of `steps`.
    """
    options = dict(locals())
    chance = random.Random(seed)
    recorder = Recorder(device_memory, conf)
    with recorder.program():
        loop = _Loop(recorder, layers, hidden)
        for step in recorder.rounds(steps, entries):
            length = chance.randint(sequence // 4, sequence) if ragged else sequence
            loop.step(batch * max(length, 1), is_first=step == 0)
    return recorder.recording("training", options)


class _Loop:
    """Simulated program: it frees gradients after each step, but no parameters or Adam state."""

    def __init__(self, recorder: Recorder, layers: int, hidden: int) -> None:
        self._recorder = recorder
        self._hidden = hidden
        square = hidden * hidden
        self._weights = [[3 * square, square, 4 * square, 4 * square, hidden]] * layers
        self._embedding = _VOCABULARY * hidden * _FLOAT
        code = recorder.code
        self._forward = code(_FILE, "forward", 31)
        self._backward = code(_FILE, "backward", 47)
        self._optimizer = code(_FILE, "optimizer_step", 58)
        self._zero_grad = code(_FILE, "zero_grad", 60)
        self._gradients: list[int] = []
        build = code(_FILE, "build_model", 12)
        for size in self._parameters():
            recorder.malloc(size, build)

    def _parameters(self) -> list[int]:
        sizes = [count * _FLOAT for layer in self._weights for count in layer]
        return [self._embedding, *sizes]

    def step(self, tokens: int, *, is_first: bool) -> None:
        """Simulate one step with `tokens` tokens."""
        recorder = self._recorder
        batch = recorder.malloc(tokens * _TOKEN, recorder.code(_FILE, "load_batch", 22))
        saved = [self._layer_forward(tokens) for _ in self._weights]
        logits = recorder.malloc(tokens * _VOCABULARY * _HALF, self._forward)
        loss = recorder.malloc(_FLOAT, self._forward)
        gradient = recorder.malloc(tokens * self._hidden * _HALF, self._backward)
        recorder.free(logits, self._backward)
        for weights, kept in reversed(list(zip(self._weights, saved, strict=True))):
            gradient = self._layer_backward(weights, kept, gradient, tokens)
        self._gradients.append(recorder.malloc(self._embedding, self._backward))
        for block in (gradient, loss, batch):
            recorder.free(block, self._backward)
        self._optimize(is_first)

    def _layer_forward(self, tokens: int) -> list[int]:
        """Return the addresses of the blocks of norm, attention and MLP that backward needs.

        Each part also allocates and frees a temporary block.
        """
        recorder, code = self._recorder, self._forward
        row = tokens * self._hidden * _HALF
        kept = []
        for factor in (1, 3, 1, 1, 4, 4, 1):
            temporary = recorder.malloc(row, code)
            kept.append(recorder.malloc(row * factor, code))
            recorder.free(temporary, code)
        return kept

    def _layer_backward(
        self, weights: list[int], kept: list[int], gradient: int, tokens: int
    ) -> int:
        """Free the blocks that a layer kept, last first; return the gradient of its input.

        weights: number of elements of each parameter.
        kept: addresses of the blocks.
        gradient: address of the gradient of the layer's output, which is freed.
        """
        recorder, code = self._recorder, self._backward
        row = tokens * self._hidden * _HALF
        for block in reversed(kept):
            passed_on = recorder.malloc(row, code)
            recorder.free(gradient, code)
            recorder.free(block, code)
            gradient = passed_on
        for count in weights:
            self._gradients.append(recorder.malloc(count * _FLOAT, code))
        return gradient

    def _optimize(self, is_first: bool) -> None:
        recorder, code = self._recorder, self._optimizer
        for size in self._parameters():
            if is_first:
                recorder.malloc(size, code)
                recorder.malloc(size, code)
            recorder.free(recorder.malloc(size, code), code)
        for gradient in self._gradients:
            recorder.free(gradient, self._zero_grad)
        self._gradients.clear()
