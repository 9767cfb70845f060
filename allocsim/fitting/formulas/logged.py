"""Figures from a serving engine's start-up log that replace assumptions about a model.

Rule: a figure replaces an assumption only if the log is of the same engine and of one card. If the
log gives the bytes per token of the cache, they must agree with the configuration.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allocsim.errors import ConfigError

if TYPE_CHECKING:
    from allocsim.fitting.formulas.log import LogFigures

__all__ = ["NOTHING_LOGGED", "Logged", "logged_in"]

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
"""Two figures that SGLang logs instead of the size of the cache."""
_ROUNDED = 0.02
"""Largest relative error of a ratio of two figures with two decimals."""
_HOST = re.compile(r"CPU.*|AMX|.*Host")
"""Buffers of llama.cpp in host memory: CPU_Mapped, CPU_AARCH64, CUDA_Host, ROCm_Host and so on."""


@dataclass(frozen=True, slots=True)
class Logged:
    """Bytes of each part as a log gives them; None for a part that it does not give.

    beside_torch: bytes on the card that PyTorch does not know.
    cache: bytes of keys and values.
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
    """Return the figures in the log of `engine`.

    Raises ConfigError for another kind of log, and for a log of several cards.
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
