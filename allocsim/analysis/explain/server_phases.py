"""Phases of serving engines, and the options that help if memory runs out in one of them.

The phase of an error is that of the last line of a log, or frame of a traceback, before it.
"""

# Sources: vLLM, "Conserving Memory", and log lines and functions of 0.6 to 0.33; SGLang,
# "Hyperparameter Tuning" and "Troubleshooting", and log lines and functions of 0.4 to 0.5.

from __future__ import annotations

import math
import re
from collections.abc import Iterator
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


_FRAME = r"{}\w*[/\\]\S{{1,160}}, line \d{{1,6}}, in "
_VLLM = _Engine(
    "vLLM",
    "--gpu-memory-utilization",
    "--tensor-parallel-size",
    "a smaller --max-model-len, --kv-cache-dtype fp8",
    _FRAME.format("vllm"),
)
_SGLANG = _Engine(
    "SGLang",
    "--mem-fraction-static",
    "--tp-size",
    "a smaller --context-length, --kv-cache-dtype fp8_e5m2",
    _FRAME.format("sglang"),
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
_PHASES = (
    Phase(
        _VLLM,
        "loaded the weights",
        _LOADED,
        "Starting to load model ",
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
        r"oading (?:model )?(?:weights )?took|odel weights take",
        r"(?:profile_run|determine_available_memory|determine_num_available_blocks)\b",
    ),
    Phase(
        _VLLM,
        "captured CUDA graphs beside the weights, to measure their memory",
        (f"Capture {_GRAPHS}.", _NO_CACHE, "If that is not enough, use {cards}."),
        "Profiling CUDA graph memory",
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
        "Available KV cache memory|GPU KV cache size:|# (?:GPU|cuda) blocks:",
        "initialize_kv_cache|_allocate_kv_cache|_init_cache_engine",
    ),
    Phase(
        _VLLM,
        "warmed up or captured CUDA graphs beside the KV cache",
        ("Set {smaller} or a smaller --max-num-seqs, or capture " + _GRAPHS + ".", "{requests}"),
        "Compile and warming up model|Capturing (?:the model for CUDA graphs|cudagraphs|"
        "(?:[a-z]{1,9} )?CUDA graph)",
        r"(?:capture_model|compile_or_warm_up_model|warm_up_model)\b",
    ),
    Phase(
        _VLLM,
        "served requests: a batch needed more than the trial batch before the KV cache",
        (
            "Set {smaller}, --max-num-batched-tokens or --max-num-seqs, or capture "
            + _GRAPHS
            + "; end other processes on the card.",
            "{requests}",
        ),
        r"Graph capturing finished|init engine \(profile|Starting vLLM (?:API )?server"
        "|Avg prompt throughput",
        r"(?:run_busy_loop|_process_engine_step|run_engine_loop|engine_step|_run_engine)\b",
    ),
    Phase(
        _SGLANG,
        "loaded the weights",
        _LOADED,
        "Load weight begin",
        r"load_model\b",
    ),
    Phase(
        _SGLANG,
        "allocated the KV cache",
        ("Set {smaller}, and end other processes on the card.", "{requests}"),
        "Load weight end",
        r"(?:init|alloc)_memory_pool\b",
    ),
    Phase(
        _SGLANG,
        "captured CUDA graphs beside the KV cache",
        (
            "Set {smaller} or a smaller --cuda-graph-max-bs, or --disable-cuda-graph.",
            "{requests}",
        ),
        r"Memory pool end|Capture [\w ]{0,30}?(?:cuda|CUDA) graph begin",
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
        r"max_total_num_tokens=\d|server is fired up|Prefill batch|Decode batch",
        r"event_loop_\w|forward_thread_func",
    ),
)
_SERVING = 5
"""Index of vLLM's last phase, the work on requests.

It is assumed for a traceback through `execute_model` without an earlier sign of a phase.  vLLM also
calls this function in a trial batch at its start, but then a line of the log precedes it.
"""
_OF_WORKERS = rf"{_VLLM.frame}execute_model\b"
# Without groups and with a letter at the beginning of each branch, Python's search is 20 times as
# fast.
_SIGNS = re.compile("|".join([*(phase.begins for phase in _PHASES), _OF_WORKERS]))
_BEGINS = [(re.compile(phase.begins), phase) for phase in _PHASES]


def phases_in(text: str) -> Iterator[tuple[int, Phase]]:
    """Yield (position, phase) of each sign of a phase of a serving engine in `text`, in order."""
    is_known = False
    for match in _SIGNS.finditer(text):
        phase = next((each for begins, each in _BEGINS if begins.match(match[0])), None)
        if phase is None and not is_known:
            phase = _PHASES[_SERVING]
        if phase is not None:
            yield match.start(), phase
            is_known = True
