"""Numbers from a serving engine's start-up log that replace assumptions about a model.

Rule: a number replaces an assumption only if the log is of the same engine and of one card. If the
log gives the bytes per token of the cache, they must agree with the configuration.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allocsim.errors import ConfigError

if TYPE_CHECKING:
    from allocsim.recording import LogFigures

_LOGS = {"vllm": "vllm", "sglang": "sglang", "llama.cpp": "llama.cpp", "ollama": "llama.cpp"}
"""Kind of log that each engine prints."""
_PARTS = {
    "weights_bytes": "weights",
    "activation_bytes": "activations",
    "graphs_bytes": "graphs",
    "other_bytes": "beside_torch",
    "kv_cache_bytes": "cache",
    "kv_cache_tokens": "cache_tokens",
    "context_tokens": "cache_tokens",
    "compute_bytes": "compute_buffer",
    "fraction": "fraction",
}
_HALVES = ("k_cache_bytes", "v_cache_bytes")
"""Sizes of both halves of the cache, which SGLang logs instead of its total."""
_ROUNDED = 0.02
"""Largest relative error of the ratio of two numbers that are printed with two decimals."""
_HOST = re.compile(r"CPU.*|AMX|.*Host")
"""Buffers of llama.cpp in host memory: CPU_Mapped, CPU_AARCH64, CUDA_Host, ROCm_Host and others."""


@dataclass(frozen=True, slots=True)
class Logged:
    """Sizes from an engine's log, in bytes; None for a size that the log does not give.

    weights, activations, graphs: memory of weights, activations and CUDA graphs.
    beside_torch: bytes used on the card outside PyTorch.
    cache: bytes of keys and values.
    cache_tokens: number of tokens that the cache holds.
    compute_buffer: memory of llama.cpp's compute buffer.
    fraction: gpu_memory_utilization or mem_fraction_static, as a share of the card.
    """

    weights: float | None = None
    activations: float | None = None
    graphs: float | None = None
    beside_torch: float | None = None
    cache: float | None = None
    cache_tokens: float | None = None
    compute_buffer: float | None = None
    fraction: float | None = None

    def refuse_other(self, a_token: int, name: str) -> None:
        """Raise ConfigError unless a token takes `a_token` bytes in the logged model's cache.

        name: name of the expected model, for the error message.

        Fewer bytes are accepted from llama.cpp, whose card may hold only some of the layers.
        """
        found, is_part = self.bytes_a_token, self.compute_buffer is not None
        if found is None or abs(found - a_token) <= _ROUNDED * a_token:
            return
        if not is_part or found > a_token:
            raise ConfigError(
                f"the log's cache takes {found:,.0f} bytes a token and {name} {a_token:,}; "
                "expected a log of the same model and --kv-cache-type, on one card"
            )

    @property
    def bytes_a_token(self) -> float | None:
        """Bytes per token in the cache, or None if the log does not give them."""
        return self.cache / self.cache_tokens if self.cache and self.cache_tokens else None


NOTHING_LOGGED = Logged()


def logged_in(figures: LogFigures | None, engine: str) -> Logged:
    """Return the sizes in the log of `engine`.

    figures: numbers of the log, None without a log.

    Raises ConfigError for a log of another engine, and for a log of several cards.
    """
    kind = _LOGS.get(engine)
    if kind is None:
        raise ConfigError(f"{engine} has no known log format; omit the log")
    if figures is None or figures.kind != kind:
        found = "not a start-up log" if figures is None else figures.what
        raise ConfigError(f"the text is {found}; expected the start-up log of {kind}")
    on_card = [each for each in figures.figures if not _HOST.fullmatch(each.device)]
    cards = sorted({each.device for each in on_card} - {""})
    if len(cards) > 1:
        raise ConfigError(f"the log is of {', '.join(cards[:8])}; expected one of a single card")
    parts = {_PARTS[each.name]: each.value for each in on_card if each.name in _PARTS}
    halves = {each.name: each.value for each in on_card if each.name in _HALVES}
    if len(halves) == len(_HALVES):
        parts["cache"] = sum(halves.values())
    return Logged(**parts)
