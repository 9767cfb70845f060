"""What a serving engine's start-up log says of a model: figures in place of assumptions.

Rule: a figure takes the place of an assumption only where the log is of the same engine and of one
card, and where it says what a token takes in its cache, that is what the configuration says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allocsim.errors import ConfigError

if TYPE_CHECKING:
    from allocsim.estimate.log import LogFigures

__all__ = ["NOTHING_LOGGED", "Logged", "logged_in"]

_LOGS = {"vllm": "vllm", "sglang": "sglang", "llama.cpp": "llama.cpp", "ollama": "llama.cpp"}
"""By engine, the kind of its logs."""
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
"""SGLang logs the cache as these two."""
_ROUNDED = 0.02
"""How far figures of two decimals may be off together."""
_HOST = re.compile(r"CPU.*|AMX|.*Host")
"""Buffers of llama.cpp that are not on a card: CPU_Mapped, CPU_AARCH64, CUDA_Host, ROCm_Host..."""


@dataclass(frozen=True, slots=True)
class Logged:
    """Bytes of each part as a log has them, None where it has none.

    beside_torch: what lies on the card that PyTorch does not know of.  cache: of keys and values.
    fraction: gpu_memory_utilization or mem_fraction_static, of the card.
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
        """Raises ConfigError unless a token takes `a_token` bytes in the logged model's cache.

        Less is what a card of llama.cpp has that only some of the layers are on.
        """
        found, is_part = self.bytes_a_token, self.compute_buffer is not None
        if found is None or abs(found - a_token) <= _ROUNDED * a_token:
            return
        if not is_part or found > a_token:
            raise ConfigError(
                f"the log's cache takes {found:,.0f} bytes a token and {name} {a_token:,}; "
                "it is of another model, of another --kv-cache-type or of several cards"
            )

    @property
    def bytes_a_token(self) -> float | None:
        """What a token takes in the cache; None where the log does not say."""
        return self.cache / self.cache_tokens if self.cache and self.cache_tokens else None


NOTHING_LOGGED = Logged()


def logged_in(figures: LogFigures | None, engine: str) -> Logged:
    """What the log of `engine` says; ConfigError for another log or one of several cards."""
    kind = _LOGS.get(engine)
    if kind is None:
        raise ConfigError(f"{engine} logs no figures that are known; leave the log out")
    if figures is None or figures.kind != kind:
        found = "no start-up log" if figures is None else figures.what
        raise ConfigError(f"the text is {found}; expected what {kind} prints when it starts")
    on_card = [each for each in figures.figures if not _HOST.fullmatch(each.device)]
    cards = sorted({each.device for each in on_card} - {""})
    if len(cards) > 1:
        raise ConfigError(f"the log is of {', '.join(cards[:8])}; expected one of a single card")
    parts = {_PARTS[each.name]: each.value for each in on_card if each.name in _PARTS}
    halves = {each.name: each.value for each in on_card if each.name in _HALVES}
    if len(halves) == len(_HALVES):
        parts["cache"] = sum(halves.values())
    return Logged(**parts)
