"""Sizes from a serving engine's start-up log, which replace the estimates of the formulas.

If the log has a number for each of several GPUs, the largest is used.  For the KV cache it is the
smallest, because the engine gives every GPU a cache of that size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from allocsim.errors import ConfigError
from allocsim.fitting.formulas.server_options import DEFAULTS, ServerOptions, version_of
from allocsim.units import GIB

if TYPE_CHECKING:
    from allocsim.recording import LogFigures

_LOGS = {"vllm": "vllm", "sglang": "sglang", "llama.cpp": "llama.cpp", "ollama": "llama.cpp"}
"""Dictionary from an engine to the kind of log that it prints (`LogFigures.kind`)."""
_PARTS = {
    "weights_bytes": "weights",
    "activation_bytes": "activations",
    "graphs_bytes": "graphs",
    "graphs_estimate_bytes": "estimated_graphs",
    "other_bytes": "beside_torch",
    "consumed_bytes": "consumed",
    "total_bytes": "total",
    "kv_cache_bytes": "cache",
    "kv_cache_tokens": "cache_tokens",
    "context_tokens": "cache_tokens",
    "compute_bytes": "compute_buffer",
    "longest_tokens": "longest",
    "free_before_bytes": "free_before",
    "free_end_bytes": "free_end",
}
_SMALLEST = ("cache", "cache_tokens", "longest", "free_before", "free_end")
_OPTIONS = {
    "max_model_len": "longest",
    "max_num_seqs": "sequences",
    "batched_tokens": "chunk",
    "tensor_parallel": "cards",
}
"""Dictionary from the name of an integer in a log to the field of `ServerOptions` that it gives."""
_HALVES = ("k_cache_bytes", "v_cache_bytes")
"""Names of the logged sizes of keys and of values; SGLang logs both, and not their sum."""
_ROUNDED = 0.02
"""Largest relative difference between log and formula, of the bytes per token in the KV cache.

The difference arises because caches consist of whole blocks, and because some layers keep states
that do not grow with the tokens."""
DECIMALS = 0.011 * GIB
"""Largest rounding error in bytes of a number printed in GiB with two decimals, or of a sum of two
such numbers."""
_BLOCK = 16
"""Tokens in a block of vLLM's KV cache; older releases print the number of blocks, not tokens."""
_RANK = re.compile(r"(?:TP|rank[ =]?)(\d+)", re.IGNORECASE)
_HOST = re.compile(r"CPU.*|AMX|.*Host")
"""Pattern for names of llama.cpp's buffers in host memory, such as CPU_Mapped and CUDA_Host."""


@dataclass(frozen=True, slots=True)
class Logged:
    """Sizes that a serving engine printed at its start, in bytes; None for a size not in the log.

    weights: weights of the model.
    activations: peak of a forward pass, without the weights.
    graphs: memory that the capture of CUDA graphs took.
    estimated_graphs: memory that the engine expected CUDA graphs to take.
    beside_torch: memory in use on the GPU outside PyTorch.
    consumed: sum of `weights` and `beside_torch`, if the engine prints only this sum.
    total: memory of the GPU.
    cache: memory of the KV cache.
    cache_tokens: number of tokens that fit in the KV cache.
    compute_buffer: llama.cpp's compute buffer.
    longest: number of tokens in the longest sequence that, according to vLLM, fits in the KV cache;
        only if vLLM did not start.
    free: free memory of the GPU before vLLM took any; only if vLLM did not start.
    free_before, free_end: SGLang's free memory before it loads the weights, and after its start.
    refusal: reason why the engine did not start with `options`; "" if it started.
    pool: range (low, high) of the bytes of the KV cache.  Only the method `applied` sets it, and
        only for the logged options.
    room: range (low, high) of the number of tokens that fit in the KV cache; None if `pool` is
        None, or if the log has no number of tokens.
    options: options with which the logged server was started.
    file: model file that llama.cpp names; "" if the log names none.
    """

    weights: float | None = None
    activations: float | None = None
    graphs: float | None = None
    estimated_graphs: float | None = None
    beside_torch: float | None = None
    consumed: float | None = None
    total: float | None = None
    cache: float | None = None
    cache_tokens: float | None = None
    compute_buffer: float | None = None
    longest: float | None = None
    free: float | None = None
    free_before: float | None = None
    free_end: float | None = None
    refusal: str = ""
    pool: tuple[int, int] | None = None
    room: tuple[int, int] | None = None
    options: ServerOptions = DEFAULTS
    file: str = ""

    def refuse_other(self, a_token: int, name: str) -> None:
        """Raise ConfigError if the log is from another model.

        The bytes per token in the KV cache show this.

        a_token: bytes per token in the KV cache of the model that the user named.
        name: name of this model, for the error.
        """
        found, is_part = self.bytes_a_token, self.compute_buffer is not None
        if found is None or not self.cache_tokens:
            return
        if abs(found - a_token) <= _ROUNDED * a_token + DECIMALS / self.cache_tokens:
            return
        if not is_part or found > a_token:
            raise ConfigError(
                f"the log's cache takes {found:,.0f} bytes a token and {name} {a_token:,}; "
                "expected a log of the same model, --kv-cache-type and --tensor-parallel"
            )

    @property
    def bytes_a_token(self) -> float | None:
        """Bytes per token in the KV cache; None if the log does not give them."""
        return self.cache / self.cache_tokens if self.cache and self.cache_tokens else None

    def applied(self, given: ServerOptions) -> tuple[Logged, ServerOptions]:
        """Compare the options in the log with `given`; return the sizes to use, and all options.

        The returned options are those of `given`, with each None replaced by the option in the log.
        If they are the same as in the log, the returned sizes have `pool`, `room` and `refusal`;
        otherwise these fields are empty.

        Raises ConfigError if `given.cards` is not the number of GPUs in the log.
        """
        known = self.options.cards or 1
        if given.cards not in (None, known):
            of = "one card" if known == 1 else f"{known} cards"
            raise ConfigError(f"a log describes {of}; expected one of {given.cards}")
        given = given.over(self.options)
        # A log does not print options without an effect on memory, nor types of weights and keys;
        # `refuse_other` checks the types by their bytes per token.
        own, asked = (
            replace(each, kv_type=None, weights=None, method=None, ignored=None)
            for each in (self.options, given)
        )
        return (self._of_this_start() if own == asked else replace(self, refusal="")), given

    @property
    def has_started(self) -> bool:
        """True if the log shows that the engine started and captured its CUDA graphs."""
        return not self.refusal and self.graphs is not None and self.cache is not None

    def _of_this_start(self) -> Logged:
        if self.cache is not None and self.cache <= 0:
            return replace(self, pool=(0, 0), room=(0, 0))
        if self.compute_buffer is not None:
            return self
        room = None
        if self.cache_tokens is not None:
            room = int(self.cache_tokens), int(self.cache_tokens)
        return replace(self, pool=self.printed_pool, room=room)

    @property
    def printed_pool(self) -> tuple[int, int] | None:
        """Range (low, high) of the KV cache's bytes, which the log rounds; None if not logged."""
        if self.cache is None:
            return None
        return round(self.cache - DECIMALS), round(self.cache + DECIMALS)


NOTHING_LOGGED = Logged()


def logged_in(figures: LogFigures | None, engine: str) -> Logged:
    """Return the sizes in a start-up log of `engine`.

    figures: numbers in the log; None if the text is not a start-up log.

    Raises ConfigError for a log of another engine, or if `figures` is None.
    """
    kind = _LOGS.get(engine)
    if kind is None:
        raise ConfigError(f"{engine} has no known log format; omit the log")
    if figures is None or figures.kind != kind:
        found = "not a start-up log" if figures is None else figures.what
        raise ConfigError(f"the text is {found}; expected the start-up log of {kind}")
    on_card = [each for each in figures.figures if not _HOST.fullmatch(each.device)]
    cards = sorted({each.device for each in on_card} - {""})
    if kind == "llama.cpp" and len(cards) > 1:
        raise ConfigError(f"the log is of {', '.join(cards[:8])}; expected one of a single card")
    values: dict[str, list[float]] = {}
    for each in on_card:
        values.setdefault(_PARTS.get(each.name, each.name), []).append(each.value)
    parts = {
        name: (min if name in _SMALLEST else max)(found)
        for name, found in values.items()
        if name in _PARTS.values()
    }
    if all(name in values for name in _HALVES):
        parts["cache"] = sum(min(values[name]) for name in _HALVES)
    if "cache_tokens" not in parts and "kv_cache_blocks" in values:
        parts["cache_tokens"] = min(values["kv_cache_blocks"]) * _BLOCK
    loaded = ("free_before_bytes", "free_loaded_bytes")
    if "weights" not in parts and all(name in values for name in loaded):
        parts["weights"] = max(values[loaded[0]]) - min(values[loaded[1]])
    ranks = {rank[1] for each in cards if (rank := _RANK.search(each))}
    options = _options(values, figures.version, kind)
    if options.cards is None and ranks:
        options = replace(options, cards=len(ranks))
    if kind == "vllm" and "free_bytes" in values:
        parts["free"] = min(values["free_bytes"])
    reasons = () if kind == "llama.cpp" else figures.refusals
    refusal = reasons[0].what if reasons else ""
    return Logged(options=options, file=figures.file, refusal=refusal, **parts)  # type: ignore[arg-type]


def _options(values: dict[str, list[float]], version: str, kind: str) -> ServerOptions:
    counts = {_OPTIONS[name]: int(max(found)) for name, found in values.items() if name in _OPTIONS}
    fraction = max(values["fraction"]) if "fraction" in values else None
    if fraction is not None and not 0 < fraction <= 1:
        raise ConfigError(
            f"the log has a fraction of {fraction:g}; expected one above 0, at most 1"
        )
    given = {name: count for name, count in counts.items() if count > 0}
    release = version_of(version) if version and kind == "vllm" else None
    return ServerOptions(version=release, fraction=fraction, **given)  # type: ignore[arg-type]
