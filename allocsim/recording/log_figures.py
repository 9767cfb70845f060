"""Memory sizes in start-up logs of serving engines and in tables of memory_summary().

Rule: every number was printed by the engine, and belongs to the device that its line names. Numbers
are never added, and a later number for the same device replaces an earlier one. All units are
powers of 1,024, whatever their names: vLLM and SGLang print GB and mean GiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from allocsim._repr import Shown
from allocsim.recording.source import TEXTS
from allocsim.units import format_size

_LONGEST_LINE = 2000
_LONGEST_NUMBER = 15
_SHIFTS = {"B": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}
_SIZE = r"(?P<size>[\d,]{1,20}(?:\.\d{1,9})?)\s?(?P<unit>(?:[KMGTP]i?)?B)\b"
_COUNT = r"(?P<count>[\d,]{1,20}(?:\.\d{1,4})?)"
_RANK = re.compile(r"\b(?:TP|DP|PP|Worker_TP|rank[ =]?)\d{1,5}\b", re.IGNORECASE)
_BUFFER = r"(?P<device>\w{1,20})"


@dataclass(frozen=True, slots=True)
class LogFigure:
    """One number of a log.

    name: key in the JSON output, which ends in the unit.
    label: name for people.
    value: bytes, or a count.
    device: card, buffer or rank that the line names, "" if it names none.
    line: line of the log, counted from 1.
    """

    name: str
    label: str
    value: float
    device: str
    line: int

    @property
    def is_bytes(self) -> bool:
        """True if the number is a size in bytes."""
        return self.name.endswith("_bytes")

    def __str__(self) -> str:
        shown = f"{self.value:,.10g}"
        return format_size(int(self.value)) if self.is_bytes else shown


@dataclass(frozen=True, slots=True, repr=False)
class LogFigures(Shown):
    """Kind of a text, and its numbers in order.

    kind: "vllm", "sglang", "llama.cpp" or "memory_summary".
    what: description of the kind, for people.
    """

    kind: str
    what: str
    figures: tuple[LogFigure, ...]

    def headline(self) -> str:
        """Return the description of the text."""
        return self.what

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """Yield the label and the value of each number."""
        for figure in self.figures:
            yield f"{figure.label} {figure.device}".rstrip(), str(figure)


@dataclass(frozen=True, slots=True)
class _Pattern:
    name: str
    label: str
    words: re.Pattern[str]


def _patterns(*rows: tuple[str, str, str]) -> tuple[_Pattern, ...]:
    return tuple(_Pattern(name, label, re.compile(words)) for name, label, words in rows)


def _table(*names: tuple[str, str]) -> tuple[_Pattern, ...]:
    """Return patterns for rows of the memory_summary() table: current and peak columns."""
    cell = r"\|?\s*%s\s*\|\s*"
    other = r"[\d.]+ [KMGTP]?i?B\s*\|\s*"
    found = []
    for name, title in names:
        words, low = cell % re.escape(title), title.replace("GPU ", "").lower()
        found.append((f"{name}_bytes", low, words + _SIZE))
        found.append((f"peak_{name}_bytes", f"{low}, peak", words + other + _SIZE))
    return _patterns(*found)


_PATTERNS = {
    "memory_summary": (
        *_table(
            ("allocated", "Allocated memory"),
            ("active", "Active memory"),
            ("requested", "Requested memory"),
            ("reserved", "GPU reserved memory"),
            ("inactive_split", "Non-releasable memory"),
        ),
        *_patterns(
            ("num_ooms", "out-of-memory errors", rf"CUDA OOMs:\s*{_COUNT}"),
            ("num_alloc_retries", "retries", rf"cudaMalloc retries:\s*{_COUNT}"),
        ),
    ),
    "vllm": _patterns(
        (
            "weights_bytes",
            "weights",
            r"(?:[Ll]oading model weights took|[Mm]odel loading took|[Mm]odel weights take"
            r"|weights memory:)\s+" + _SIZE,
        ),
        (
            "activation_bytes",
            "activations at the peak",
            r"(?:activation peak memory(?: takes)?|torch peak memory increase:)\s+" + _SIZE,
        ),
        ("peak_torch_bytes", "PyTorch at the peak", rf"peak_torch_memory=\s*{_SIZE}"),
        (
            "other_bytes",
            "beside PyTorch",
            r"(?:non_torch_memory(?:=| takes|)|non-torch forward increase memory:)\s*" + _SIZE,
        ),
        (
            "kv_cache_bytes",
            "KV cache",
            r"(?:Available KV cache memory:|reserved for KV Cache is|kv_cache_size="
            r"|available_kv_cache_memory)\s*" + _SIZE,
        ),
        ("total_bytes", "the card", rf"total_gpu_memory\s*[=(]?\s*{_SIZE}"),
        ("fraction", "gpu_memory_utilization", rf"gpu_memory_utilization'?\s*[=(:]?\s*{_COUNT}"),
        ("kv_cache_tokens", "tokens in the KV cache", rf"GPU KV cache size:\s*{_COUNT} tokens"),
        ("kv_cache_blocks", "blocks of the KV cache", rf"# (?:GPU|cuda) blocks:\s*{_COUNT}"),
        ("concurrency", "requests at once", rf"Maximum concurrency for [^:]{{1,60}}:\s*{_COUNT}x"),
        (
            "graphs_bytes",
            "CUDA graphs",
            r"(?:Graph capturing finished in .{1,40}?took|CUDA graph pool memory:)\s+" + _SIZE,
        ),
    ),
    "sglang": _patterns(
        ("weights_bytes", "weights", rf"Load weight end\..{{0,200}}?mem usage=\s*{_SIZE}"),
        (
            "kv_cache_tokens",
            "tokens in the KV cache",
            rf"KV Cache is allocated.*?#tokens:\s*{_COUNT}",
        ),
        ("k_cache_bytes", "K cache", rf"KV Cache is allocated.*?\bK size:\s*{_SIZE}"),
        ("v_cache_bytes", "V cache", rf"KV Cache is allocated.*?\bV size:\s*{_SIZE}"),
        ("kv_cache_bytes", "KV cache", rf"KV Cache is allocated.*?\bKV size:\s*{_SIZE}"),
        ("free_bytes", "free behind the pools", rf"Memory pool end\. avail mem=\s*{_SIZE}"),
        ("graphs_bytes", "CUDA graphs", rf"Capture cuda graph end\..*?mem usage=\s*{_SIZE}"),
        ("max_total_tokens", "tokens at once", rf"max_total_num_tokens=\s*{_COUNT}"),
        ("fraction", "mem_fraction_static", rf"mem_fraction_static=\s*{_COUNT}"),
    ),
    "llama.cpp": _patterns(
        (
            "weights_bytes",
            "weights",
            rf"load_tensors:\s*{_BUFFER}\s+(?:model )?buffer size\s*=\s*{_SIZE}",
        ),
        ("kv_cache_bytes", "KV cache", rf":\s*{_BUFFER}\s+KV buffer size\s*=\s*{_SIZE}"),
        ("recurrent_bytes", "recurrent state", rf":\s*{_BUFFER}\s+RS buffer size\s*=\s*{_SIZE}"),
        ("compute_bytes", "compute buffer", rf":\s*{_BUFFER}\s+compute buffer size\s*=\s*{_SIZE}"),
        ("output_bytes", "output buffer", rf":\s*{_BUFFER}\s+output buffer size\s*=\s*{_SIZE}"),
        ("context_tokens", "context", rf"\bn_ctx\s*=\s*{_COUNT}"),
    ),
}


def figures_in(text: str) -> LogFigures | None:
    """Return the numbers in a log or table; None for a text of unknown kind."""
    sample = text.encode("utf-8", "replace")
    for kind, what, words in TEXTS:
        if kind in _PATTERNS and re.search(words, sample):
            found = tuple(_figures(kind, text))
            if found:
                return LogFigures(kind, what, found)
    return None


def _figures(kind: str, text: str) -> Iterator[LogFigure]:
    last: dict[tuple[str, str], LogFigure] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        # A later number of the same name and device replaces an earlier one.
        for pattern in _PATTERNS[kind]:
            found = pattern.words.search(line[:_LONGEST_LINE])
            if found is not None:
                figure = _figure(pattern, found, line, number)
                last[figure.name, figure.device] = figure
    yield from last.values()


def _figure(pattern: _Pattern, found: re.Match[str], line: str, number: int) -> LogFigure:
    named = found.groupdict()
    device = named.get("device") or ""
    if not device and (rank := _RANK.search(line[:_LONGEST_LINE])) is not None:
        device = rank[0]
    if "size" in named:
        value = _number(named["size"]) * (1 << _SHIFTS[named["unit"][0]])
        return LogFigure(pattern.name, pattern.label, int(value), device, number)
    return LogFigure(pattern.name, pattern.label, _number(named["count"]), device, number)


def _number(text: str) -> float:
    return float(text.replace(",", "")[:_LONGEST_NUMBER] or 0)
