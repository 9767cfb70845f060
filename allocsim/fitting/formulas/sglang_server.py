"""Memory that an SGLang server needs and takes, and the number of tokens in its KV cache.

The size of the KV cache is a fraction (mem_fraction_static) of the memory that is free before
loading, minus the bytes that loading takes.  Some model types have a second, smaller cache for
sliding windows.
"""

# Sources: SGLang, docs, "Hyperparameter Tuning"; `server_args.py` (mem_fraction_static),
# `HybridSWAPoolConfigurator` and `Gemma3TextScaledWordEmbedding` of 0.5.23; public start-up logs.

from __future__ import annotations

import math

from allocsim.fitting.formulas.engines import GRAPHS
from allocsim.fitting.formulas.needs import (
    Largest,
    Needs,
    ServingWork,
    cache_part,
    communication_parts,
    context_part,
    doubt_of,
    forward_bytes,
    parallel_option,
    weights_part,
)
from allocsim.fitting.formulas.parts import MemoryPart, bytes_a_token, row_bytes
from allocsim.fitting.formulas.server_options import options_again
from allocsim.units import MIB

_MADE_AT_LOAD = 320 * MIB
"""Largest number of bytes that loading a model took in addition to its weights, in public logs."""

_LESS = 0.05
"""Amount by which to reduce mem_fraction_static if there was no memory for CUDA graphs."""


def static_fraction(
    memory: int, cards: int = 1, chunk: int | None = None, captured: int | None = None
) -> tuple[float, int]:
    """Return SGLang's default mem_fraction_static, and the bytes of the GPU that it leaves free.

    memory: bytes of the GPU.
    cards: number of GPUs that share each layer.
    chunk: number of tokens in a prefill chunk; None for the GPU's default.
    captured: largest number of sequences with a CUDA graph; None for the GPU's default.
    """
    mib = memory / MIB
    table = ((20, 2048, 8), (35, 2048, 24), (60, 4096, 32), (90, 8192, 256), (160, 8192, 256))
    of_card = next((row for row in table if mib < row[0] * 1024), (0, 16384, 512))
    left = 512 + 1.5 * (chunk or of_card[1]) + 1024 * cards / 8 + 2 * (captured or of_card[2])
    if mib > 60 * 1024:
        left = max(left, 10 * 1024)
    return round(max(mib - left, 0) / max(mib, 1), 3), round(left * MIB)


_WINDOW_POOLS = ("gemma4_text", "gpt_oss", "laguna", "llama4_text")
"""Values of model_type whose sliding-window layers have a separate KV cache in SGLang."""
_WHOLE_EMBEDDINGS = ("gemma3_text", "gemma4_text")
"""Values of model_type for which SGLang does not divide the embedding over tensor parallel GPUs."""
_OF_WINDOWS = 0.8
"""Number of tokens in the sliding-window cache, divided by that in the other cache.

This is the default of SGLang's swa_full_tokens_ratio."""


def _sglang_room(work: ServingWork, pool: tuple[int, int]) -> tuple[int, int]:
    a_token: float = bytes_a_token(work.sizes, work.computed_in)
    if work.sizes.family in _WINDOW_POOLS:
        windows = sum(
            each.count * row_bytes(each.kept, work.computed_in)
            for each in work.sizes.cached
            if each.window
        )
        a_token -= (1 - (work.options.window_share or _OF_WINDOWS)) * windows
    low, high = (int(max(size, 0) / a_token) for size in pool)
    return low, high


def sglang(work: ServingWork) -> Needs:
    """Estimate the memory of an SGLang server."""
    options = work.options
    usual, left = static_fraction(work.memory, work.cards, options.chunk, options.captured)
    fraction, spare = options.fraction or usual, left
    if options.fraction:
        left = round(work.memory * (1 - fraction))
    weights, context = weights_part(work), context_part(work)
    chunk = options.chunk or 2048
    graphs = 0 if options.is_eager else GRAPHS[0]
    logged, end = work.logged, work.logged.free_end
    low = min(forward_bytes(work, chunk)[0] + graphs, left)
    why = "to what SGLang leaves for them by card; its graphs share one pool"
    rest = MemoryPart("activations and CUDA graphs", low, max(left, low), why)
    if logged.pool is not None and logged.graphs is not None and end is not None:
        high = round(logged.graphs + end)
        low = min(forward_bytes(work, chunk)[0] + round(logged.graphs), high)
        rest = MemoryPart(rest.name, low, high, "to what the log shows free before the graphs")
    parts = (context, weights, cache_part(work, 1), rest, *communication_parts(work))
    needed = parts[2].high
    # SGLang: KV pool = free memory after loading - free memory before x (1 - fraction).
    before = (context, *parts[4:])
    free = (
        work.capacity[0] - sum(part.high for part in before),
        work.capacity[1] - sum(part.low for part in before),
    )
    made = (0, 0)
    if work.logged.weights is None:
        copies = (work.cards - 1) * (work.sizes.family in _WHOLE_EMBEDDINGS)
        whole = copies * work.weights.of_role("token_embd")
        made = whole + work.encoder[0], whole + work.encoder[1] + _MADE_AT_LOAD
    safe = max(usual, _proved(work, spare))
    if logged.refusal and logged.cache:  # memory ran out beside the cache
        safe = min(safe, round(fraction - _LESS, 3))
    pools = {
        each: (
            math.floor(free[0] * each) - weights.high - made[1],
            math.floor(free[1] * each) - weights.low - made[0],
        )
        for each in (fraction, safe)
    }
    least = math.ceil((weights.high + made[1] + needed) / max(free[0], 1) * 100) / 100
    cards = parallel_option(work, "--tp-size")
    length = options.longest or work.tokens
    pool, largest = logged.pool or pools[fraction], pools[safe]
    if logged.pool is not None and safe >= fraction and logged.free_before is not None:
        # The log gives the cache for the logged fraction; a larger fraction enlarges it.
        more = (safe - fraction) * logged.free_before
        largest = round(logged.pool[0] + more), round(logged.pool[1] + more)
    room = _sglang_room(work, largest)
    if safe == fraction and logged.room is not None:
        room = logged.room
    advice = Largest(
        "--mem-fraction-static",
        safe,
        room,
        min(room[0], work.sizes.longest or room[0]),
        "--context-length",
    )
    proposed = min(fraction, safe)
    return Needs(
        engine="sglang",
        parts=parts,
        source="SGLang, server_args.py and Hyperparameter Tuning; public start-up logs",
        taken=(work.memory - left, work.memory),
        loaded_beside=made,
        pool=pool,
        room=work.logged.room or _sglang_room(work, pool),
        largest=advice,
        paste=f"{cards}--mem-fraction-static {proposed:g} --context-length {length} "
        f"--max-running-requests {options.sequences or work.batch}"
        f"{options_again(options, 'sglang')}"
        if (largest if proposed < fraction else pool)[0] >= needed
        else "",
        least=f"--mem-fraction-static {least:.2f}" if least < 1 else "",
        notes=()
        if options.fraction
        else (f"mem_fraction_static is {usual} on this card by default",),
        doubt=doubt_of(work, advice),
    )


def _proved(work: ServingWork, left: int) -> float:
    """Return the largest mem_fraction_static that the log of an earlier start shows to be safe.

    Return 0 without such a log.

    left: bytes that SGLang by default leaves for activations and CUDA graphs.
    """
    logged = work.logged
    if not logged.has_started or logged.options.fraction is None:
        return 0
    if not logged.free_before or logged.free_end is None or logged.graphs is None:
        return logged.options.fraction
    spare = max(logged.graphs + logged.free_end - left, 0)
    return logged.options.fraction + math.floor(spare / logged.free_before * 1000) / 1000
