"""Phases of serving engines, and the options that help if memory runs out in one of them.

The phase of an error is that of the last line of a log, or frame of a traceback, before it.  A
traceback without a frame of the engine, such as that of a training that also started vLLM, shows
that the error is not of the engine.
"""

# Sources: vLLM, "Conserving Memory", and log lines and functions of 0.6 to 0.33; SGLang,
# "Hyperparameter Tuning" and "Troubleshooting", and log lines and functions of 0.4 to 0.5.

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from allocsim.analysis.explain.cause import Figures


@dataclass(frozen=True, slots=True)
class _Engine:
    """Names of an engine and of its options.

    fraction: option for the share of the card that weights and KV cache may take.
    cards: option for the number of cards that share each layer.
    shorter: options that let a smaller KV cache hold as many requests.
    frame: expression for the beginning of a traceback's line, up to the name of the function.
    """

    name: str
    fraction: str
    cards: str
    shorter: str
    frame: str


def _frame(package: str) -> str:
    # Without names of environments, which a folder of packages or lib/ follows.
    names = r"\w{0,40}[/\\](?![Ll]ib(?:64)?[/\\]|\S{0,160}?-packages)\S{1,160}"
    return rf"{package}{names}, line \d{{1,6}}, in "


_VLLM = _Engine(
    "vLLM",
    "--gpu-memory-utilization",
    "--tensor-parallel-size",
    "a smaller --max-model-len, --kv-cache-dtype fp8",
    _frame("vllm"),
)
_SGLANG = _Engine(
    "SGLang",
    "--mem-fraction-static",
    "--tp-size",
    "a smaller --context-length, --kv-cache-dtype fp8_e5m2",
    _frame("sglang"),
)


@dataclass(frozen=True, slots=True)
class Phase:
    """Phase of a serving engine, such as loading the weights.

    what: clause on the work of the engine in this phase.
    helps: sentences on the options that help, with names in braces for `advice`.
    lines: regular expression for words of a log that show that the phase has begun.
    functions: regular expression for functions of the engine that work in this phase.
    """

    engine: _Engine
    what: str
    helps: tuple[str, ...]
    lines: str
    functions: str

    @property
    def begins(self) -> str:
        return f"{self.lines}|{self.engine.frame}(?:{self.functions})"

    def advice(self, figures: Figures) -> list[str]:
        """Return sentences on an out-of-memory error in this phase, and on the options that help.

        figures: bytes that describe the error, such as the failed request and the free memory.
        """
        engine = self.engine
        names = {
            "fraction": engine.fraction,
            "smaller": f"a smaller {engine.fraction}{_by_at_least(figures)}",
            "cards": f"more cards ({engine.cards}) or weights of fewer bits",
            "requests": "If the smaller KV cache holds too few requests, use "
            f"{engine.shorter} or more cards ({engine.cards}).",
        }
        first = f"{engine.name} ran out of memory while it {self.what}."
        return [first, *(each.format(**names) for each in self.helps)]


def _by_at_least(figures: Figures) -> str:
    # The missing bytes as a share of the card, rounded up to two decimals.
    tried, free, total = figures.tried_bytes, figures.free_bytes, figures.capacity
    if tried is None or free is None or not total or not 0 < tried - free < total:
        return ""
    return f" (by at least {math.ceil((tried - free) * 100 / total) / 100:.2f})"


_GRAPHS = (
    "fewer CUDA graphs (--max-cudagraph-capture-size, up to 0.11 --cuda-graph-sizes) or none "
    "(--enforce-eager)"
)
_NO_CACHE = "{fraction} has no effect here, because the KV cache is allocated later."
_LOADED = ("Use {cards}, or a smaller model.",)
_VLLM_SERVES = Phase(
    _VLLM,
    "served requests: a batch needed more than the trial batch before the KV cache",
    (
        "Set {smaller}, --max-num-batched-tokens or --max-num-seqs, or capture "
        + _GRAPHS
        + "; end other processes on the card.",
        "{requests}",
    ),
    r"Graph capturing finished in \d|init engine \(profile, create kv cache"
    r"|Starting vLLM (?:API )?server|Avg prompt throughput: \d",
    r"(?:run_busy_loop|_process_engine_step|run_engine_loop|engine_step|_run_engine)\b",
)
"""Work on requests.

It is assumed for a traceback through `execute_model` without an earlier sign of a phase.  vLLM also
calls this function in a trial batch at its start, but then a line of the log precedes it.
"""
_PHASES = (
    Phase(
        _VLLM,
        "loaded the weights",
        _LOADED,
        r"model_runner\.py\S{0,9} Starting to load model \S",
        r"load_model\b",
    ),
    Phase(
        _VLLM,
        "ran a trial batch beside the weights, to measure the memory of activations",
        (
            "Set a smaller --max-num-batched-tokens or --max-num-seqs; with images or audio, "
            "--limit-mm-per-prompt; without chunked prefill, --max-model-len.",
            _NO_CACHE,
            "If that is not enough, use {cards}.",
        ),
        r"(?:odel loading|oading model weights) took \d{1,4}(?:\.\d{1,6})? Gi?B"
        r"|odel weights take\s{1,9}\d{1,4}(?:\.\d{1,6})?\s?Gi?B",
        r"(?:profile_run|determine_available_memory|determine_num_available_blocks)\b",
    ),
    Phase(
        _VLLM,
        "captured CUDA graphs beside the weights, to measure their memory",
        (f"Capture {_GRAPHS}.", _NO_CACHE, "If that is not enough, use {cards}."),
        r"Profiling CUDA graph memory: \w",
        r"profile_cudagraph_memory\b",
    ),
    Phase(
        _VLLM,
        "allocated the KV cache, or warmed up beside it",
        (
            "Set {smaller}, and end other processes that took memory of the card after vLLM "
            "measured it.",
            "{requests}",
        ),
        r"Available KV cache memory: \d|GPU KV cache size: \d|# (?:GPU|cuda) blocks: \d",
        "initialize_kv_cache|_allocate_kv_cache|_init_cache_engine",
    ),
    Phase(
        _VLLM,
        "warmed up or captured CUDA graphs beside the KV cache",
        ("Set {smaller} or a smaller --max-num-seqs, or capture " + _GRAPHS + ".", "{requests}"),
        r"Compile and warming up model for size \d|Capturing (?:the model for CUDA graphs\.|"
        r"cudagraphs for |encoder cudagraph for |(?:[\w-]{1,30} ){0,3}?CUDA graphs?(?: shapes)?"
        r"(?: \([^()\n]{1,60}\))?:\s{0,9}\d)",
        r"(?:capture_model|compile_or_warm_up_model|warm_up_model)\b",
    ),
    _VLLM_SERVES,
    Phase(
        _SGLANG,
        "loaded the weights",
        _LOADED,
        r"Load weight begin\. avail mem=\d",
        r"load_model\b",
    ),
    Phase(
        _SGLANG,
        "allocated the KV cache",
        ("Set {smaller}, and end other processes on the card.", "{requests}"),
        r"Load weight end\.[^\n]{1,160}?avail mem=\d",
        r"(?:init|alloc)_memory_pool\b",
    ),
    Phase(
        _SGLANG,
        "captured CUDA graphs beside the KV cache",
        (
            "Set {smaller} or a smaller --cuda-graph-max-bs, or --disable-cuda-graph.",
            "{requests}",
        ),
        r"Memory pool end\. avail mem=\d|Capture [\w ]{0,30}?(?:cuda|CUDA) graph begin\.",
        r"init_(?:cuda|device)_graphs\b",
    ),
    Phase(
        _SGLANG,
        "served requests beside the KV cache",
        (
            "Set {smaller}; against long prompts a smaller --chunked-prefill-size, such as 2048; "
            "against many requests a smaller --max-running-requests; end other processes on the "
            "card.",
            "{requests}",
        ),
        r"max_total_num_tokens=\d|server is fired up and|Prefill batch[^#\n]{1,12}#new-seq"
        r"|Decode batch[^#\n]{1,12}#running-req",
        r"event_loop_\w|forward_thread_func",
    ),
)


def _frames_of(engine: _Engine, *others: str) -> str:
    functions = [each.functions for each in _PHASES if each.engine is engine]
    return f"{engine.frame}(?:{'|'.join([*functions, *others])})"


# Without groups and with a letter at the beginning of each branch, Python's search is 20 times as
# fast.  Frames have one branch for each engine, because each branch reads a long name again.
_SIGNS = re.compile(
    "|".join(
        [
            *(each.lines for each in _PHASES),
            _frames_of(_VLLM, r"execute_model\b"),
            _frames_of(_SGLANG),
        ]
    )
)
_BEGINS = [(re.compile(phase.begins), phase) for phase in _PHASES]
_ANY_FRAME = re.compile(r"File [^\n]{1,300}?, line \d{1,6}, in ")
_FRAMES = {engine.name: re.compile(engine.frame) for engine in (_VLLM, _SGLANG)}


def phases_at(text: str, errors: Sequence[int]) -> Iterator[Phase | None]:
    """Yield the phase of a serving engine at each error, or None; errors: positions in order."""
    signs = deque(_signs(text[: errors[-1]]) if errors else ())
    phase, before, began = None, 0, 0
    for start in errors:
        while signs and signs[0][0] < start:
            began, phase = signs.popleft()
        if phase is not None and _is_foreign(text, phase.engine, before, began, start):
            phase = None
        yield phase
        before = start


def _is_foreign(text: str, engine: _Engine, before: int, began: int, start: int) -> bool:
    # Whether the traceback of the error at `start` has frames, but none of the engine.  Frames
    # without a first line belong to the error if they follow the sign of the phase; after another
    # error they may be the rest of a traceback that several ranks wrote at once.
    at = text.rfind("Traceback (most recent", max(before, began), start)
    if at < 0:
        if began < before:
            return False
        at = began
    has_frames = _ANY_FRAME.search(text, at, start) is not None
    return has_frames and _FRAMES[engine.name].search(text, at, start) is None


def _signs(text: str) -> Iterator[tuple[int, Phase]]:
    is_known = False
    for match in _SIGNS.finditer(text):
        phase = next((each for begins, each in _BEGINS if begins.match(match[0])), None)
        if phase is None and not is_known:
            phase = _VLLM_SERVES
        if phase is not None:
            yield match.start(), phase
            is_known = True
