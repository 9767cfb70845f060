"""Memory sizes in start-up logs of serving engines and in tables of memory_summary().

Numbers are returned as they are printed, and not added up.  If a log prints a number of the same
name and device again, the later one counts.
"""

# All units are taken as powers of 1,024: vLLM and SGLang print GB and mean GiB. Supported are the
# logs of vLLM 0.6 to 0.33, SGLang 0.4 to 0.5, llama.cpp of 2024 to 2026 and Ollama.

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from allocsim._repr import Shown
from allocsim.recording.refusals import Refusal, refusals_in
from allocsim.recording.source import TEXTS
from allocsim.units import format_size

_LONGEST_LINE = 4000
_LONGEST_NUMBER = 20
_SHIFTS = {"B": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}
_SIZE = r"(?P<size>-?\d[\d,]{0,19}(?:\.\d{1,9})?)\s?(?P<unit>(?:[KMGTP]i?)?B|bytes)\b"
_COUNT = r"(?P<count>\d[\d,]{0,19}(?:\.\d{1,16})?)"
_RANK = re.compile(
    r"\b(?:Worker(?:_[A-Z]{2}\d{1,5})+|(?:TP|DP|PP|rank[ =]?)\d{1,5})(?![\dA-Za-z])", re.IGNORECASE
)
_BUFFER = r"(?P<device>\w{1,20})"
_MARKS = re.compile(
    r"(?i)mem|cache|[gm]i?b|weight|token|bytes|buffer|n_ctx|offload|max_|_size|fraction|block|utili|cuda"
)
"""Pattern of words; lines of a log without any of these words are not searched."""
_VERSIONS = {
    "vllm": re.compile(
        r"(?:\bvLLM (?:API server )?version v?|LLM engine \(v)(\d{1,4}\.\d{1,4}[\w.+-]{0,60})"
    ),
    "sglang": re.compile(r"\bsglang[ _=]v?(\d{1,4}\.\d{1,4}[\w.+-]{0,60})", re.IGNORECASE),
    "llama.cpp": re.compile(r"\b(?:build|version)\s*[:=]\s*(\d{1,8})\b"),
}
"""Patterns of the text with the engine's release, keyed by kind of log."""


@dataclass(frozen=True, slots=True)
class LogFigure:
    """Number that a log prints.

    name: key of the number in JSON output; it ends in "_bytes" if the value is a size.
    label: name of the number in output for people.
    value: bytes, or a count.
    device: GPU, buffer or rank that the log names on the same line; "" without one.
    line: number of the line in the log, counted from 1.
    """

    name: str
    label: str
    value: float
    device: str
    line: int

    @property
    def is_bytes(self) -> bool:
        return self.name.endswith("_bytes")

    def __str__(self) -> str:
        if not self.is_bytes:
            return f"{self.value:,.10g}"
        size = format_size(abs(int(self.value)))
        return f"-{size}" if self.value < 0 else size


@dataclass(frozen=True, slots=True, repr=False)
class LogFigures(Shown):
    """Memory sizes in a log or table, in order, and the program that printed them.

    kind: program that printed them: "vllm", "sglang", "llama.cpp" or "memory_summary".
    what: description of the program, for people.
    version: release of the engine; "" if the log does not print it.
    refusals: reasons why the engine did not start; empty if it started.
    file: model file that llama.cpp names; "" if the log does not print it.
    """

    kind: str
    what: str
    figures: tuple[LogFigure, ...]
    version: str = ""
    refusals: tuple[Refusal, ...] = ()
    file: str = ""

    def headline(self) -> str:
        return self.what

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        for figure in self.figures:
            yield f"{figure.label} {figure.device}".rstrip(), str(figure)


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Regular expression for one number of a log.

    name, label: values of these fields in the resulting `LogFigure`.
    words: expression with groups for the number and its unit.
    is_rough: True for a rounded number, which does not replace an earlier number of the same name.
    """

    name: str
    label: str
    words: re.Pattern[str]
    is_rough: bool = False


def _patterns(*rows: tuple[str, str, str]) -> tuple[_Pattern, ...]:
    return tuple(
        _Pattern(name, label.removesuffix("~"), re.compile(words), label.endswith("~"))
        for name, label, words in rows
    )


def _table(*names: tuple[str, str]) -> tuple[_Pattern, ...]:
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
    # A label that ends in ~ sets `is_rough`: the log repeats an earlier number with fewer digits.
    "vllm": _patterns(
        ("weights_bytes", "weights",
         r"(?:[Ll]oading model weights took|[Mm]odel loading took|[Mm]odel weights take"
         r"|weights memory:)\s+" + _SIZE),
        ("weights_bytes", "weights~", _SIZE + r" for weights?\b"),
        ("consumed_bytes", "weights and memory beside PyTorch", _SIZE + " for consumed memory"),
        ("activation_bytes", "activations at the peak",
         r"(?:activation peak memory(?: takes)?|torch peak memory increase:)\s+" + _SIZE),
        ("activation_bytes", "activations at the peak~", _SIZE + " for peak activation"),
        ("peak_torch_bytes", "PyTorch at the peak", rf"peak_torch_memory=\s*{_SIZE}"),
        ("other_bytes", "beside PyTorch",
         r"(?:non_torch_memory(?:=| takes|)|non-torch forward increase memory:)\s*" + _SIZE),
        ("other_bytes", "beside PyTorch~", _SIZE + " for non-torch memory"),
        ("kv_cache_bytes", "KV cache",
         r"(?:Available KV cache memory:|reserved for KV Cache is|kv_cache_size="
         r"|available_kv_cache_memory)\s*" + _SIZE),
        ("kv_cache_bytes", "KV cache",
         r"[Cc]urrent kv cache memory in use is\s*(?P<size>\d{5,20})\s(?P<unit>bytes)"),
        ("kv_cache_bytes", "KV cache~",
         rf"larger than the available KV [Cc]ache memory \({_SIZE}\)"),
        ("longest_tokens", "tokens of the longest request",
         r"(?:estimated maximum model length is |tokens that can be stored in KV cache \()"
         rf"{_COUNT}\b"),
        ("total_bytes", "the card",
         r"(?:total_gpu_memory\s*[=(]?\s*|Free memory on device (?:\S{1,20} )?\([\d.]{1,12}/)"
         + _SIZE),
        ("free_bytes", "free at the start",
         r"Free memory on device (?:\S{1,20} )?\((?P<size>[\d.]{1,12})/[\d.]{1,12} "
         r"(?P<unit>GiB)"),
        ("fraction", "gpu_memory_utilization",
         r"(?i:gpu[-_ ]memory[-_ ]utilization)'?(?: is)?\s*[=(:]?\s*" + _COUNT),
        ("kv_cache_tokens", "tokens in the KV cache",
         rf"\b[A-Z]{{3}}(?: \+ host)? KV cache size:\s*{_COUNT} tokens"),
        ("kv_cache_tokens", "tokens in the KV cache~",
         rf"tokens that can be stored in KV cache \({_COUNT}\)"),
        ("kv_cache_blocks", "blocks of the KV cache", rf"# (?:GPU|cuda) blocks:\s*{_COUNT}"),
        ("concurrency", "requests at once", rf"Maximum concurrency for [^:]{{1,60}}:\s*{_COUNT}x"),
        ("max_model_len", "max_model_len", rf"Maximum concurrency for {_COUNT} tokens"),
        ("max_model_len", "max_model_len~", rf"\bmax_(?:seq|model)_len'?[=:]\s*{_COUNT}"),
        ("max_model_len", "max_model_len~", rf"max seq len \({_COUNT}\)"),
        ("max_num_seqs", "max_num_seqs", rf"\bmax_num_seqs'?[=:]\s*{_COUNT}"),
        ("batched_tokens", "max_num_batched_tokens", rf"\bmax_num_batched_tokens'?[=:]\s*{_COUNT}"),
        ("tensor_parallel", "tensor_parallel_size", rf"\btensor_parallel_size'?[=:]\s*{_COUNT}"),
        ("graphs_bytes", "CUDA graphs",
         r"(?:Graph capturing finished in .{1,40}?took|CUDA graph pool memory:)\s+" + _SIZE),
        ("graphs_bytes", "CUDA graphs~", _SIZE + r" for (?:CUDAGraph|NPU graph) memory"),
        ("graphs_estimate_bytes", "CUDA graphs, estimated", _SIZE + r" \(estimated\)"),
        ("graphs_estimate_bytes", "CUDA graphs, estimated",
         rf"Estimated CUDA graph memory:\s*{_SIZE}"),
    ),
    "sglang": _patterns(
        ("weights_bytes", "weights", rf"Load weight end\..{{0,200}}?mem usage=\s*{_SIZE}"),
        ("free_before_bytes", "free before the weights",
         rf"Load weight begin\..{{0,200}}?avail mem=\s*{_SIZE}"),
        ("free_loaded_bytes", "free behind the weights",
         rf"Load weight end\..{{0,200}}?avail mem=\s*{_SIZE}"),
        ("kv_cache_tokens", "tokens in the KV cache",
         rf"KV Cache is allocated.*?#tokens:\s*{_COUNT}"),
        ("k_cache_bytes", "K cache", rf"KV Cache is allocated.*?\bK size:\s*{_SIZE}"),
        ("v_cache_bytes", "V cache", rf"KV Cache is allocated.*?\bV size:\s*{_SIZE}"),
        ("kv_cache_bytes", "KV cache", rf"KV Cache is allocated.*?\bKV size:\s*{_SIZE}"),
        ("kv_cache_bytes", "both KV caches", rf"SWAKVPool mem usage:\s*{_SIZE}"),
        ("window_tokens", "tokens in the cache of windows",
         rf"SWAKVPool mem usage:.*?swa size:\s*{_COUNT}"),
        ("kv_cache_tokens", "tokens in the KV cache",
         rf"SWAKVPool mem usage:.*?full size:\s*{_COUNT}"),
        ("conv_bytes", "convolution states", rf"Mamba Cache is.*?conv_state size:\s*{_SIZE}"),
        ("recurrent_bytes", "recurrent states", rf"Mamba Cache is.*?ssm_state size:\s*{_SIZE}"),
        ("free_bytes", "free behind the pools", rf"Memory pool end\. avail mem=\s*{_SIZE}"),
        ("graphs_bytes", "CUDA graphs",
         r"Capture (?:target |draft )?(?:decode )?(?i:cuda graph) end\..*?mem usage=\s*" + _SIZE),
        ("free_end_bytes", "free after the start", rf"available_gpu_mem=\s*{_SIZE}"),
        ("free_end_bytes", "free after the start~",
         r"Capture (?:target |draft )?(?:decode )?(?i:cuda graph) end\..*?avail mem=\s*" + _SIZE),
        ("prefill_graphs_bytes", "CUDA graphs of prefill",
         r"Capture [\w ]{0,20}?(?:prefill|piecewise) (?i:cuda graph) end\..*?mem usage=\s*"
         + _SIZE),
        ("max_total_tokens", "tokens at once", rf"max_total_num_tokens=\s*{_COUNT}"),
        ("max_model_len", "context_len", rf"\bcontext_len=\s*{_COUNT}"),
        ("fraction", "mem_fraction_static", rf"mem_fraction_static'?[=:]\s*{_COUNT}"),
        ("tensor_parallel", "tp_size", rf"\btp_size'?[=:]\s*{_COUNT}"),
    ),
    "llama.cpp": _patterns(
        ("weights_bytes", "weights",
         rf"load_tensors:\s*{_BUFFER}\s+(?:model )?buffer size\s*=\s*{_SIZE}"),
        ("kv_cache_bytes", "KV cache", rf":\s*{_BUFFER}\s+KV buffer size\s*=\s*{_SIZE}"),
        ("recurrent_bytes", "recurrent state", rf":\s*{_BUFFER}\s+RS buffer size\s*=\s*{_SIZE}"),
        ("compute_bytes", "compute buffer", rf":\s*{_BUFFER}\s+compute buffer size\s*=\s*{_SIZE}"),
        ("output_bytes", "output buffer", rf":\s*{_BUFFER}\s+output buffer size\s*=\s*{_SIZE}"),
        *(
            (f"{name}_bytes", label, rf'msg="{words}" device="?{_BUFFER}"? size="{_SIZE}"')
            for name, label, words in (
                ("weights", "weights", "(?:offloaded )?model weights"),
                ("kv_cache", "KV cache", "kv cache"),
                ("compute", "compute buffer", "compute graph"),
            )
        ),
        ("context_tokens", "context", rf"\bn_ctx\s*=\s*{_COUNT}"),
        ("gpu_layers", "layers on the card", rf"\boffloaded {_COUNT}/\d{{1,5}} layers to GPU"),
    ),
}  # fmt: skip
_FILE = re.compile(r"(?:tensors from|model) '?(\S{1,1000}\.gguf)\b")
_WINDOWS = re.compile(r"creating\s+SWA KV cache|creating\s+(non-SWA) KV cache")
"""Lines that llama.cpp prints before each of the two KV caches of a model with sliding windows."""


def figures_in(text: str) -> LogFigures | None:
    """Return the numbers in a log or table; None if it is from no known program."""
    sample = text.encode("utf-8", "replace")
    for kind, what, words in TEXTS:
        if kind in _PATTERNS and re.search(words, sample):
            found = tuple(_figures(kind, text))
            refusals = refusals_in(kind, text, {each.name: each.value for each in found})
            if found or refusals:
                version = _VERSIONS[kind].search(text) if kind in _VERSIONS else None
                file = _FILE.search(text) if kind == "llama.cpp" else None
                return LogFigures(
                    kind,
                    what,
                    found,
                    version[1] if version else "",
                    refusals,
                    file[1] if file else "",
                )
    return None


def _figures(kind: str, text: str) -> Iterator[LogFigure]:
    last: dict[tuple[str, str], LogFigure] = {}
    of_windows = False
    for number, line in enumerate(text.splitlines(), start=1):
        if kind == "llama.cpp" and (begins := _WINDOWS.search(line)):
            of_windows = begins[1] is None
        if not _MARKS.search(line[:_LONGEST_LINE]):
            continue
        # A later number of the same name and device replaces an earlier one.
        for pattern in _PATTERNS[kind]:
            found = pattern.words.search(line[:_LONGEST_LINE])
            if found is None:
                continue
            figure = _figure(pattern, found, line, number)
            if of_windows and figure.name == "kv_cache_bytes":
                figure = replace(figure, name="window_cache_bytes", label="KV cache of windows")
            if not (pattern.is_rough and (figure.name, figure.device) in last):
                last[figure.name, figure.device] = figure
    yield from last.values()


def _figure(pattern: _Pattern, found: re.Match[str], line: str, number: int) -> LogFigure:
    named = found.groupdict()
    device = named.get("device") or ""
    if not device and (rank := _RANK.search(line[:_LONGEST_LINE])) is not None:
        device = rank[0]
    if "size" in named:
        value = _number(named["size"]) * (1 << _SHIFTS[named["unit"][0].upper()])
        return LogFigure(pattern.name, pattern.label, int(value), device, number)
    return LogFigure(pattern.name, pattern.label, _number(named["count"]), device, number)


def _number(text: str) -> float:
    return float(text.replace(",", "")[:_LONGEST_NUMBER] or 0)
