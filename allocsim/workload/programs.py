"""Simulated programs, each with a typical pattern of memory use.

All functions return a recording; equal arguments give equal recordings.  Common parameters:
`seed` of the random sizes, `device_memory` in bytes or as text such as "24GiB", `conf` for the
value of PYTORCH_CUDA_ALLOC_CONF, and `entries` for the number of history entries to generate.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from allocsim.recording import Recording
from allocsim.units import MIB, parse_size
from allocsim.workload.recorder import Recorder

_PIPELINE = "pipeline.py"


def fragments(
    *,
    rounds: int = 20,
    blocks: int = 40,
    life: int = 3,
    block_size: int | str = "2MiB",
    growth: int = 5,
    seed: int = 0,
    device_memory: int | str = "24GiB",
    conf: str = "",
    entries: int | None = None,
) -> Recording:
    """Simulate a program whose freed short-lived blocks leave holes between long-lived blocks.

    Each round requests larger blocks than the holes, so half-empty segments accumulate.

    rounds: number of rounds.
    blocks: number of short-lived blocks, and also of long-lived blocks, that a round allocates.
    life: number of later rounds after which long-lived blocks are freed; short-lived blocks are
        freed at the end of their round.
    block_size: approximate bytes of a short-lived block in the first round.  Long-lived blocks have
        a random size from a quarter of it to all of it.
    growth: percent by which short-lived blocks grow per round; when they have grown eightfold, they
        start again at the first size.
    entries: number of history entries to generate; if given, `rounds` is ignored.
    """
    options = dict(locals())
    base = parse_size(block_size)
    chance = random.Random(seed)
    recorder = Recorder(device_memory, conf)
    short = recorder.code(_PIPELINE, "preprocess", 18)
    stays = recorder.code(_PIPELINE, "collect_result", 27)
    drop = recorder.code(_PIPELINE, "drop_results", 33)
    results: deque[list[int]] = deque()
    factor = 1.0
    with recorder.program():
        for _ in recorder.rounds(rounds, entries):
            young, old = [], []
            for _ in range(blocks):
                size = int(base * factor * chance.uniform(0.9, 1.0))
                young.append(recorder.malloc(max(size, 1), short))
                old.append(recorder.malloc(max(chance.randint(base // 4, base), 1), stays))
            for block in young:
                recorder.free(block, short)
            results.append(old)
            if len(results) > life:
                for block in results.popleft():
                    recorder.free(block, drop)
            factor = factor * (1 + growth / 100) if factor < 8 else 1.0
    return recorder.recording("fragments", options)


def oom(*, device_memory: int | str = "60MiB", conf: str = "") -> Recording:
    """Simulate an out-of-memory error by fragmentation, in ten calls.

    Six blocks of 9 MiB fill three segments, and every other block is freed.  A 60 MiB device then
    has 33 MiB unused, but the largest free block has 9 MiB, so a request of 12 MiB fails.  No
    segment can be released, because each contains an allocated block.
    """
    options = dict(locals())
    recorder = Recorder(device_memory, conf)
    make = recorder.code("classic.py", "make", 4)
    drop = recorder.code("classic.py", "drop_every_other", 8)
    want = recorder.code("classic.py", "want_more", 11)
    with recorder.program():
        blocks = [recorder.malloc(9 * MIB, make) for _ in range(6)]
        for block in blocks[::2]:
            recorder.free(block, drop)
        recorder.malloc(12 * MIB, want)
    return recorder.recording("oom", options)


_GRAPHED = "graphed.py"


def graphs(
    *,
    pools: int = 4,
    tensors: int = 12,
    tensor_size: int | str = "8MiB",
    rounds: int = 20,
    seed: int = 0,
    device_memory: int | str = "24GiB",
    conf: str = "",
    entries: int | None = None,
) -> Recording:
    """Simulate CUDA graphs, each captured into a private pool, followed by work outside of graphs.

    pools: number of graphs, each captured into its own pool.
    tensors: number of tensors that a capture allocates; all but the last are freed before it ends.
    tensor_size: bytes of the largest possible tensor; sizes are random, from an eighth of it.
    rounds: number of rounds after the captures; each allocates and frees `tensors` tensors.  After
        the rounds, every other graph is deleted and empty_cache is called.
    entries: number of history entries at which the rounds end; if given, `rounds` is ignored.
    """
    options = dict(locals())
    largest = parse_size(tensor_size)
    chance = random.Random(seed)
    recorder = Recorder(device_memory, conf)
    allocator = recorder.allocator
    capture = recorder.code(_GRAPHED, "capture", 17)
    eager = recorder.code(_GRAPHED, "eager_step", 32)
    drop = recorder.code(_GRAPHED, "drop_graph", 44)

    def some(code: int) -> list[int]:
        sizes = [chance.randint(max(largest // 8, 1), max(largest, 1)) for _ in range(tensors)]
        return [recorder.malloc(size, code) for size in sizes]

    outputs = {}
    with recorder.program():
        for pool in range(1, pools + 1):
            allocator.begin_allocate_to_pool(pool)
            *temporaries, outputs[pool] = some(capture)
            for block in temporaries:
                recorder.free(block, capture)
            allocator.end_allocate_to_pool(pool)
        for _ in recorder.rounds(rounds, entries):
            for block in some(eager):
                recorder.free(block, eager)
        for pool in list(outputs)[::2]:
            recorder.free(outputs[pool], drop)
            allocator.release_pool(pool)
        allocator.empty_cache()
    return recorder.recording("graphs", options)


SIDE_STREAM = 4096
"""CUDA handle of the second stream in `streams`, as a recording stores it."""

_OVERLAP = "overlap.py"


def streams(
    *,
    steps: int = 30,
    buffers: int = 4,
    buffer_size: int | str = "16MiB",
    lag: int = 3,
    seed: int = 0,
    device_memory: int | str = "24GiB",
    conf: str = "",
    entries: int | None = None,
) -> Recording:
    """Simulate buffers that the default stream fills and a side stream copies, with record_stream.

    A freed buffer is reused only after the side stream has finished.

    steps: number of steps.
    buffers: number of buffers per step.
    buffer_size: bytes of the largest possible buffer; sizes are random, from half of it.
    lag: number of steps after which the side stream finishes its work, again and again.
    entries: number of history entries to generate; if given, `steps` is ignored.
    """
    options = dict(locals())
    largest = parse_size(buffer_size)
    chance = random.Random(seed)
    recorder = Recorder(device_memory, conf)
    compute = recorder.code(_OVERLAP, "compute", 14)
    stage = recorder.code(_OVERLAP, "copy_stage", 23)
    drop = recorder.code(_OVERLAP, "drop_buffers", 29)
    with recorder.program():
        for step in recorder.rounds(steps, entries):
            if step % max(lag, 1) == 0:
                recorder.allocator.synchronize(SIDE_STREAM)
            staging = recorder.malloc(max(largest // 8, 1), stage, SIDE_STREAM)
            made = []
            for _ in range(buffers):
                size = chance.randint(max(largest // 2, 1), max(largest, 1))
                made.append(recorder.malloc(size, compute))
            for buffer in made:
                recorder.allocator.record_stream(buffer, SIDE_STREAM)
                recorder.free(buffer, drop)
            recorder.free(staging, stage)
    return recorder.recording("streams", options)


_SERVER = "serve.py"


@dataclass(slots=True)
class _Session:
    cache: int
    tokens: int
    end: int


def server(
    *,
    requests: int = 100,
    concurrent: int = 8,
    prompt: int = 512,
    answer: int = 256,
    growth: int = 32,
    cache_size: int | str = "72KiB",
    weights: int | str = "2GiB",
    seed: int = 0,
    device_memory: int | str = "24GiB",
    conf: str = "",
    entries: int | None = None,
) -> Recording:
    """Simulate a language model that serves several users at once, each with a growing KV cache.

    To grow a cache, the program allocates a larger one and frees the old one.  The freed memory is
    too small for later, still larger caches.

    requests: number of questions from users.
    concurrent: number of questions that the server answers at the same time.
    prompt, answer: highest number of tokens of a prompt and of an answer; the numbers are random,
        from an eighth of the highest.
    growth: number of tokens by which a cache grows at a time.
    cache_size: bytes of cache per token.
    weights: bytes of the model's weights, which are allocated as tensors of 64 MiB.
    entries: number of history entries to generate; if given, `requests` is ignored.
    """
    options = dict(locals())
    bytes_a_token = parse_size(cache_size)
    chance = random.Random(seed)
    recorder = Recorder(device_memory, conf)
    prefill = recorder.code(_SERVER, "prefill", 41)
    grow = recorder.code(_SERVER, "grow_cache", 55)
    finish = recorder.code(_SERVER, "finish", 70)
    sessions: list[_Session] = []

    def grow_caches() -> None:
        for session in list(sessions):
            session.tokens += growth
            longer = recorder.malloc(session.tokens * bytes_a_token, grow)
            recorder.free(session.cache, grow)
            session.cache = longer
            if session.tokens >= session.end:
                recorder.free(session.cache, finish)
                sessions.remove(session)

    with recorder.program():
        for _ in range(parse_size(weights) // (64 * MIB)):
            recorder.malloc(64 * MIB, recorder.code(_SERVER, "load_model", 9))
        for _ in recorder.rounds(requests, entries):
            while len(sessions) >= concurrent:
                grow_caches()
            tokens = chance.randint(max(prompt // 8, 1), max(prompt, 1))
            end = tokens + chance.randint(max(answer // 8, 1), max(answer, 1))
            cache = recorder.malloc(tokens * bytes_a_token, prefill)
            sessions.append(_Session(cache, tokens, end))
        while sessions:
            grow_caches()
    return recorder.recording("server", options)


_VOCABULARY = 50_257
_FLOAT, _HALF, _TOKEN = 4, 2, 8
_TRAINER = "train.py"


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

    steps: number of training steps.
    layers, hidden: number of layers, and width of the model (hidden size).
    batch, sequence: number of sequences in a step, and number of tokens in each.
    ragged: True for a random sequence length in every step, from a quarter of `sequence` to all of
        it.
    entries: number of history entries to generate; if given, `steps` is ignored.
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
    def __init__(self, recorder: Recorder, layers: int, hidden: int) -> None:
        self._recorder = recorder
        self._hidden = hidden
        square = hidden * hidden
        self._weights = [[3 * square, square, 4 * square, 4 * square, hidden]] * layers
        self._embedding = _VOCABULARY * hidden * _FLOAT
        code = recorder.code
        self._forward = code(_TRAINER, "forward", 31)
        self._backward = code(_TRAINER, "backward", 47)
        self._optimizer = code(_TRAINER, "optimizer_step", 58)
        self._zero_grad = code(_TRAINER, "zero_grad", 60)
        self._gradients: list[int] = []
        build = code(_TRAINER, "build_model", 12)
        for size in self._parameters():
            recorder.malloc(size, build)

    def _parameters(self) -> list[int]:
        sizes = [count * _FLOAT for layer in self._weights for count in layer]
        return [self._embedding, *sizes]

    def step(self, tokens: int, *, is_first: bool) -> None:
        recorder = self._recorder
        batch = recorder.malloc(tokens * _TOKEN, recorder.code(_TRAINER, "load_batch", 22))
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
