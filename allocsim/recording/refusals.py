"""Reasons for which a serving engine did not start, read from its log, and options that would help.

The reason repeats the engine's own numbers; the advice is the smallest change of one option that
suffices, or options that reduce the need.
"""

# Sources: vLLM's `request_memory`, its planning of the cache, and `raise_if_cache_size_invalid` of
# older releases; SGLang's model runner; llama.cpp's `ggml_backend_cuda_buffer_type_alloc_buffer`.

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_GIB = r"(\d{1,9}(?:\.\d{1,9})?) ?Gi?B"
_N = r"(\d[\d,]{0,15})"
_ROUNDED = 0.005
"""Largest rounding error of a size that is printed with two decimals, in the printed unit."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason for which an engine did not start.

    what: sentence on the reason, with the engine's figures.
    helps: options of the engine, or an action, that would let it start.
    line: line of the log, counted from 1.
    """

    what: str
    helps: str
    line: int


_Figures = Mapping[str, float]
_Answer = Callable[[re.Match[str], _Figures], tuple[str, str]]


def refusals_in(kind: str, text: str, figures: _Figures) -> tuple[Refusal, ...]:
    """Return the reasons in a log for which an engine did not start, in order, without repetitions.

    kind: engine of the log, "vllm", "sglang" or "llama.cpp"; for any other the result is empty.
    figures: numbers in the log, by `LogFigure.name`.
    """
    found: dict[str, Refusal] = {}
    for words, answer in _REFUSALS.get(kind, ()):
        for match in words.finditer(text):
            what, helps = answer(match, figures)
            found.setdefault(what, Refusal(what, helps, text.count("\n", 0, match.start()) + 1))
    return tuple(sorted(found.values(), key=lambda each: each.line))


def _whole(text: str) -> int:
    return int(text.replace(",", ""))


def _not_free(match: re.Match[str], _: _Figures) -> tuple[str, str]:
    free, total, fraction, wanted = (float(each) for each in match.groups())
    largest = math.floor((free - _ROUNDED) / total * 100) / 100
    what = f"{free:g} of {total:g} GiB are free, and {fraction:g} of the card is {wanted:g} GiB"
    if largest <= 0:
        return what, f"end the processes that hold {total - free:.2f} GiB of the card"
    missing = max(wanted - free, 0.01)
    return what, f"--gpu-memory-utilization {largest:.2f}, or {missing:.2f} GiB less in other use"


def _cache_too_small(match: re.Match[str], figures: _Figures) -> tuple[str, str]:
    length, needed, there, longest = match.groups()
    what = f"one request of {_whole(length):,} tokens needs {float(needed):.2f} GiB of cache, and "
    what += f"{float(there):.2f} GiB are left"
    tokens = _whole(longest) if longest else 0
    if not tokens:  # releases before 0.9 do not print it
        least = (float(there) - _ROUNDED) / (float(needed) + _ROUNDED)
        tokens = max(math.floor(least * _whole(length)), 0) // 16 * 16
    helps = f"--max-model-len {tokens}" if tokens else "a smaller model, or weights of fewer bits"
    total, fraction = figures.get("total_bytes"), figures.get("fraction")
    if total and fraction:
        more = (float(needed) - float(there) + 2 * _ROUNDED) * (1 << 30) / total
        larger = math.ceil((fraction + more) * 100) / 100
        helps += f", or --gpu-memory-utilization {larger:.2f}" if larger < 1 else ""
    return what, helps


def _too_few_tokens(match: re.Match[str], _: _Figures) -> tuple[str, str]:
    length, room = (_whole(each) for each in match.groups())
    what = f"one request may have {length:,} tokens, and the cache has room for {room:,}"
    return what, f"--max-model-len {room}, or a larger --gpu-memory-utilization"


def _no_cache(_: re.Match[str], figures: _Figures) -> tuple[str, str]:
    what = "weights and activations leave no memory for the cache"
    total, fraction, left = (
        figures.get(name) for name in ("total_bytes", "fraction", "kv_cache_bytes")
    )
    helps = "a smaller --max-num-batched-tokens or --max-num-seqs, or weights of fewer bits"
    if total and fraction and left is not None and left <= 0:
        larger = math.floor((fraction - left / total) * 100 + 1) / 100
        helps = f"--gpu-memory-utilization {larger:.2f} or more, {helps}" if larger < 1 else helps
    return what, helps


def _sampler(match: re.Match[str], _: _Figures) -> tuple[str, str]:
    requests = _whole(match[1])
    what = f"memory ran out while the sampler was tried with {requests:,} requests"
    return what, f"--max-num-seqs {max(requests // 2, 1)}, or a smaller --gpu-memory-utilization"


def _released(match: re.Match[str], _: _Figures) -> tuple[str, str]:
    before, after = match.groups()
    what = f"free memory grew from {before} to {after} GiB while vLLM measured its own use"
    return what, "start it again when no other process releases memory of the card"


def _static_too_small(_: re.Match[str], figures: _Figures) -> tuple[str, str]:
    what = "the weights leave nothing of mem_fraction_static for the cache"
    before, after = figures.get("free_before_bytes"), figures.get("free_loaded_bytes")
    if not before or after is None:
        return what, "a larger --mem-fraction-static, or weights of fewer bits"
    least = math.floor((1 - after / before) * 100 + 1) / 100
    if least >= 1:
        return what, "a larger card, more cards (--tp-size), or weights of fewer bits"
    return what, f"--mem-fraction-static {least:.2f} or more, or weights of fewer bits"


def _capture(_: re.Match[str], figures: _Figures) -> tuple[str, str]:
    fraction = figures.get("fraction")
    smaller = f"--mem-fraction-static {fraction - 0.05:.2f}" if fraction else "a smaller "
    smaller += "" if fraction else "--mem-fraction-static"
    return "memory ran out while CUDA graphs were captured", f"{smaller}, or --cuda-graph-max-bs 8"


_SMALLER = "fewer layers on the card (-ngl), a shorter context (-c), or -ctk q8_0 -ctv q8_0"


def _not_allocated(match: re.Match[str], _: _Figures) -> tuple[str, str]:
    return f"card {match[2]} has no {float(match[1]):,.2f} MiB for the next buffer", _SMALLER


def _no_buffer(match: re.Match[str], _: _Figures) -> tuple[str, str]:
    size = int(match[2]) / (1 << 20)
    return f"card {match[1]} has no {size:,.2f} MiB for the next buffer", _SMALLER


def _ran_out(match: re.Match[str], _: _Figures) -> tuple[str, str]:
    return f"memory of card {match[1]} ran out during a computation", f"-ub 256, {_SMALLER}"


def _rules(*rows: tuple[str, _Answer]) -> tuple[tuple[re.Pattern[str], _Answer], ...]:
    return tuple((re.compile(words.replace(" ", r"\s+")), answer) for words, answer in rows)


_REFUSALS = {
    "vllm": _rules(
        (r"Free memory on device (?:[\w:]{1,20} )?\((\d[\d.]{0,11})/(\d[\d.]{0,11}) GiB\) on "
         r"startup is less than desired GPU memory utilization \((\d[\d.]{0,11}), "
         r"(\d[\d.]{0,11}) GiB\)",
         _not_free),
        (rf"max seq len \({_N}\), \({_GIB} KV cache is ?needed, which is larger than the "
         rf"available KV [Cc]ache memory \({_GIB}\)\.?"
         rf"(?: Based on the available memory, the estimated maximum model length is {_N})?",
         _cache_too_small),
        (rf"max seq len \({_N}\) is larger than the maximum number of tokens that can be stored "
         rf"in KV cache \({_N}\)",
         _too_few_tokens),
        (r"No available memory for the cache blocks", _no_cache),
        (rf"CUDA out of memory occurred when warming up sampler with {_N} dummy requests",
         _sampler),
        (rf"Error in memory profiling\. Initial free memory {_GIB}, current free memory {_GIB}",
         _released),
    ),
    "sglang": _rules(
        (r"Not enough memory[.;] Please try (?:to increase|increasing) --mem-fraction-static",
         _static_too_small),
        (r"Capture (?:cuda|CUDA) graph failed: CUDA out of memory", _capture),
    ),
    "llama.cpp": _rules(
        (r"allocating (\d{1,9}(?:\.\d{1,3})?) MiB on device (\d{1,4}): \w{2,9}[mM]alloc failed: "
         r"out of memory",
         _not_allocated),
        (r"failed to allocate [A-Za-z]{2,20}(\d{1,4}) buffer of size (\d{1,15})", _no_buffer),
        (r"CUDA error: out of memory(?:\\n)? current device: (\d{1,4}), in function \w{1,80} at "
         r"\S{0,200}ggml-cuda",
         _ran_out),
    ),
}  # fmt: skip
