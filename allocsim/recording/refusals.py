"""Reasons why a serving engine did not start, read from its log, and options that would help.

A reason repeats the engine's own numbers.  The advice is the smallest sufficient change of one
option, or a list of options that reduce the need for memory.
"""

# Sources: vLLM's `request_memory`, its planning of the cache, and `raise_if_cache_size_invalid` of
# older releases; SGLang's model runner; llama.cpp's `ggml_backend_cuda_buffer_type_alloc_buffer`.

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from allocsim.units import GIB, MIB

_GIB = r"(\d{1,9}(?:\.\d{1,9})?) ?Gi?B"
_SIGNED = r"(-?" + _GIB[1:]
_N = r"(\d[\d,]{0,15})"
_ROUNDED = 0.005
"""Largest rounding error of a size that a log prints with two decimals, in the printed unit."""
_DEFAULT_FRACTION = 0.9
"""vLLM's default gpu_memory_utilization before 0.22, for logs that do not print it."""
_MOST_ACTIVATIONS = 6 * GIB
"""Assumed upper limit of activations, in bytes, for logs that do not print them.

The largest in public logs of models without an encoder are 5.58 GiB, for 1,024 sequences.
"""
_LESS = "weights of fewer bits, or a larger card"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why a serving engine did not start.

    what: sentence about the reason, with the engine's figures.
    helps: options of the engine, or an action, with which it would start.
    line: number of the log line with the reason, counted from 1.
    """

    what: str
    helps: str
    line: int


_Figures = Mapping[str, float]
_Answer = Callable[[re.Match[str], _Figures], tuple[str, str] | None]


def refusals_in(kind: str, text: str, figures: _Figures) -> tuple[Refusal, ...]:
    """Return the reasons in a log why an engine did not start, in order, without repetitions.

    kind: engine of the log, "vllm", "sglang" or "llama.cpp"; for any other the result is empty.
    text: text of the log.
    figures: numbers in the log, keyed by `LogFigure.name`.
    """
    found: dict[str, Refusal] = {}
    for words, answer in _REFUSALS.get(kind, ()):
        for match in words.finditer(text):
            given = answer(match, figures)
            if given is not None:
                line = text.count("\n", 0, match.start()) + 1
                found.setdefault(given[0], Refusal(*given, line))
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
    if float(there) <= 0:
        return _no_cache(match, figures)
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
    missing = max(-figures.get("kv_cache_bytes", 0), 0)
    what += f"; {missing / GIB:.2f} GiB are missing" if missing else ""
    helps = []
    fraction, total = figures.get("fraction", _DEFAULT_FRACTION), figures.get("total_bytes")
    activations = figures.get("activation_bytes", _MOST_ACTIVATIONS)
    weights = figures.get("weights_bytes")
    if total and "fraction" in figures:
        larger = math.floor((fraction + missing / total) * 100 + 1) / 100
        helps += (
            [f"--gpu-memory-utilization {larger:.2f} or more"] if missing and larger < 1 else []
        )
    elif weights is None or missing < (weights - missing + activations) * (1 / fraction - 1):
        more = f" by at least {missing / GIB:.2f} GiB of the card" if missing else ""
        helps += [f"a --gpu-memory-utilization that is larger{more}"]
    if missing < activations:
        helps += ["a smaller --max-num-batched-tokens or --max-num-seqs"]
    return what, ", ".join([*helps, f"more cards (--tensor-parallel-size), {_LESS}"])


def _sampler(match: re.Match[str], _: _Figures) -> tuple[str, str]:
    requests = _whole(match[1])
    what = f"memory ran out while the sampler was tried with {requests:,} requests"
    return what, f"--max-num-seqs {max(requests // 2, 1)}, or a smaller --gpu-memory-utilization"


def _released(match: re.Match[str], _: _Figures) -> tuple[str, str]:
    before, after = match.groups()
    what = f"free memory grew from {before} to {after} GiB while vLLM measured its own use"
    return what, "start it again when no other process releases memory of the card"


_LOADING = {
    "vllm": (
        ("Starting to load model",),
        ("oading took", "weights took"),
        "--tensor-parallel-size",
    ),
    "sglang": (("Load weight begin",), ("Load weight end",), "--tp-size"),
}
"""For each engine: words in its log before and after it loads the weights, and its option for the
number of GPUs."""


_LOAD_CHARACTERS = 1 << 18
"""Largest number of characters in a log from the start of loading to a failure of loading."""


def _while_loading(engine: str) -> _Answer:
    begins, ends, option = _LOADING[engine]

    def answer(match: re.Match[str], figures: _Figures) -> tuple[str, str] | None:
        text, at = match.string, match.start()
        near = max(at - _LOAD_CHARACTERS, 0)
        begin, end = (max(text.rfind(each, near, at) for each in words) for words in (begins, ends))
        if begin <= end:
            return None
        what = f"memory ran out while the weights were loaded, at a request of {match[1]}"
        what += f" on a card of {match[2]}" if match[2] else ""
        cards = f"{option} {2 * int(figures.get('tensor_parallel', 1))}"
        return what, f"more cards ({cards}), {_LESS.replace(', or', ',')}, or a smaller model"

    return answer


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
_FEWER = "fewer layers on the card (-ngl), a quantization of fewer bits, or more cards (-ts)"
_USES = {
    "unable to allocate": ("the weights", _FEWER),
    "buffer for kv cache": ("the KV cache", _SMALLER),
    "allocate compute buffer": ("computation", f"-ub 256, {_SMALLER}"),
}
"""Dictionary from words in llama.cpp's log after the failed allocation of a buffer to the use of
the buffer, and to options that make it smaller."""
_USE = re.compile("|".join(_USES))
_NEAR = 1000
"""Number of characters after a failed allocation that are searched for the keys of `_USES`."""


def _without(card: str, mib: float, match: re.Match[str]) -> tuple[str, str]:
    use = _USE.search(match.string, match.end(), match.end() + _NEAR)
    name, helps = _USES[use[0]] if use else ("the next buffer", _SMALLER)
    return f"card {card} has no {mib:,.2f} MiB for {name}", helps


def _not_allocated(match: re.Match[str], _: _Figures) -> tuple[str, str]:
    return _without(match[2], float(match[1]), match)


def _no_buffer(match: re.Match[str], _: _Figures) -> tuple[str, str]:
    return _without(match[1], int(match[2]) / MIB, match)


def _ran_out(match: re.Match[str], _: _Figures) -> tuple[str, str]:
    return f"memory of card {match[1]} ran out during a computation", f"-ub 256, {_SMALLER}"


def _rules(*rows: tuple[str, _Answer]) -> tuple[tuple[re.Pattern[str], _Answer], ...]:
    return tuple((re.compile(words.replace(" ", r"\s+")), answer) for words, answer in rows)


_OUT = (
    r"out of memory\. Tried to allocate (\d{1,9}(?:\.\d{1,9})? [KMG]iB)\."
    r"(?: GPU \d{1,4} has a total capacity of (\d{1,9}(?:\.\d{1,9})? [KMG]iB))?"
)
"""Pattern of PyTorch's out-of-memory message: size of the request, and memory of the GPU."""
_REFUSALS = {
    "vllm": _rules(
        (r"Free memory on device (?:[\w:]{1,20} )?\((\d[\d.]{0,11})/(\d[\d.]{0,11}) GiB\) on "
         r"startup is less than desired GPU memory utilization \((\d[\d.]{0,11}), "
         r"(\d[\d.]{0,11}) GiB\)",
         _not_free),
        (rf"max seq len \({_N}\), \({_GIB} KV cache is ?needed, which is larger than the "
         rf"available KV [Cc]ache memory \({_SIGNED}\)\.?"
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
        (_OUT, _while_loading("vllm")),
    ),
    "sglang": _rules(
        (r"Not enough memory[.;] Please try (?:to increase|increasing) --mem-fraction-static",
         _static_too_small),
        (r"Capture (?:cuda|CUDA) graph failed: CUDA out of memory", _capture),
        (_OUT, _while_loading("sglang")),
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
