"""Memory that Transformers, SGLang and TensorRT-LLM need and reserve; `vllm.py` has vLLM's.

Rule: the arithmetic is each engine's own, with its defaults, which are named here. Numbers that an
engine measures when it starts (profiling run, capture of CUDA graphs) are ranges.

Sources. Transformers: `growing.py`. SGLang: docs, "Hyperparameter Tuning"; `server_args.py`
(mem_fraction_static) and `profile_max_num_token`; public start-up logs. TensorRT-LLM: docs, "Memory
Usage of TensorRT-LLM", and `KvCacheConfig`.
"""

from __future__ import annotations

import math

from allocsim.fitting.formulas.growing import grow
from allocsim.fitting.formulas.needs import (
    Largest,
    MemoryPart,
    Needs,
    ServingWork,
    biggest_matrix,
)
from allocsim.fitting.formulas.parts import (
    cache_part,
    communication_parts,
    context_part,
    forward_bytes,
    parallel_option,
    room_of,
    weights_part,
)
from allocsim.fitting.formulas.server_options import options_again
from allocsim.units import GIB, MIB, round_up

_SEEN = 0.001
"""Largest relative error of the predicted reserved memory of Transformers.

Measured on eleven runs of dense models with sdpa: ten agree to the byte, one is 2 MiB short.
"""
_TENSORRT_BLOCK = 32
_TENSORRT_FRACTION = 0.9
_TENSORRT_CHUNK = 8192
_SAMPLED = 256
"""Number of sequences for which a token is sampled."""
_SAMPLING = (1, 8)
"""Copies of the 32-bit logits while a token is sampled: only the logits, or also sorted copies."""
_GRAPHS = (104 * MIB, 1 * GIB)
"""Bytes taken by the capture of CUDA graphs; posted logs: 0.11, 0.31, 0.36, 0.65 and 0.96 GiB."""
_MADE_AT_LOAD = 256 * MIB
"""Most bytes by which loading takes more memory than the weights, in posted logs."""


def transformers(work: ServingWork) -> Needs:
    """Estimate the memory of `generate()` in transformers with its default, growing cache."""
    grown = grow(
        work.sizes,
        work.weights,
        batch=work.batch,
        prompt=work.prompt,
        decode=work.decode,
        requests=work.requests,
        workspace=work.workspace,
    )
    rest = grown.reserved - grown.loaded - grown.cache
    margin = round(grown.reserved * _SEEN)
    low, high = max(rest - margin, 0), rest + margin
    # Replays of mixtures of experts were up to 9 % too low.
    if work.sizes.experts:
        high += grown.reserved // 10
    dequantised = 2 * biggest_matrix(work.weights)
    parts = [
        context_part(work),
        weights_part(work),
        MemoryPart("keys and values", grown.cache, grown.cache, "at the end of a request"),
        MemoryPart(
            "activations and the allocator's cache",
            low,
            high,
            "replayed; real runs of dense models lay within 0.1 % of all, a mixture of experts 9 % "
            "above",
        ),
    ]
    if dequantised:
        why = "kernels that turn a matrix into 16 bits for many rows need the largest one"
        parts.append(MemoryPart("dequantised matrix", 0, dequantised, why))
    return Needs(
        engine="transformers",
        parts=tuple(parts),
        source="transformers, cache_utils.py and modeling_llama.py, through the allocator of 2.15",
        notes=(
            "releases from 4.45 on keep the logits of the last token only; earlier ones keep those "
            "of the whole prompt, also in 32 bits",
        ),
    )


def static_fraction(
    memory: int, cards: int = 1, chunk: int | None = None, captured: int | None = None
) -> tuple[float, int]:
    """Return SGLang's mem_fraction_static, and the bytes that it leaves on a card for the rest.

    memory: bytes of the card.
    cards: number of cards that share each layer.
    chunk: tokens of a prefill chunk; default: by the card.
    captured: sequences of the largest graph; default: by the card.

    The bytes left are 512 MiB, 1.5 MiB for each token of a prefill chunk, 2 MiB for each sequence
    of the largest graph and 128 MiB for each card, and at least 10 GiB on cards above 60 GiB.
    """
    mib = memory / MIB
    table = ((20, 2048, 8), (35, 2048, 24), (60, 4096, 32), (90, 8192, 256), (160, 8192, 256))
    of_card = next((row for row in table if mib < row[0] * 1024), (0, 16384, 512))
    left = 512 + 1.5 * (chunk or of_card[1]) + 1024 * cards / 8 + 2 * (captured or of_card[2])
    if mib > 60 * 1024:
        left = max(left, 10 * 1024)
    return round(max(mib - left, 0) / max(mib, 1), 3), round(left * MIB)


def sglang(work: ServingWork) -> Needs:
    """Estimate the memory of an SGLang server."""
    options = work.options
    usual, left = static_fraction(work.memory, work.cards, options.chunk, options.captured)
    fraction = options.fraction or usual
    if options.fraction:
        left = round(work.memory * (1 - fraction))
    weights, context = weights_part(work), context_part(work)
    chunk = options.chunk or 2048
    graphs = 0 if options.is_eager else _GRAPHS[0]
    low = min(forward_bytes(work, chunk)[0] + graphs, left)
    why = "to what SGLang leaves for them by card; its graphs share one pool"
    rest = MemoryPart("activations and CUDA graphs", low, max(left, low), why)
    parts = (context, weights, cache_part(work, 1), rest, *communication_parts(work))
    needed = parts[2].high
    # SGLang: KV pool = free memory after loading - free memory before x (1 - fraction).
    before = (context, *parts[4:])
    free = (
        work.capacity[0] - sum(part.high for part in before),
        work.capacity[1] - sum(part.low for part in before),
    )
    made = 0 if work.logged.weights is not None else _MADE_AT_LOAD
    pools = {
        each: (
            math.floor(free[0] * each) - weights.high - made,
            math.floor(free[1] * each) - weights.low,
        )
        for each in (fraction, usual)
    }
    least = math.ceil((weights.high + made + needed) / max(free[0], 1) * 100) / 100
    cards = parallel_option(work, "--tp-size")
    length = options.longest or work.tokens
    pool, largest = work.logged.pool or pools[fraction], pools[usual]
    room = room_of(work, largest, 1)
    return Needs(
        engine="sglang",
        parts=parts,
        source="SGLang, server_args.py and Hyperparameter Tuning; public start-up logs",
        taken=(work.memory - left, work.memory),
        loaded_beside=(0, made),
        pool=pool,
        room=work.logged.room or room_of(work, pool, 1),
        largest=Largest(
            "--mem-fraction-static",
            usual,
            room,
            min(room[0], work.sizes.longest or room[0]),
            "--context-length",
        ),
        paste=f"{cards}--mem-fraction-static {fraction:g} --context-length {length} "
        f"--max-running-requests {options.sequences or work.batch}"
        f"{options_again(options, 'sglang')}"
        if pool[0] >= needed
        else "",
        least=f"--mem-fraction-static {least:.2f}" if least < 1 else "",
        notes=()
        if options.fraction
        else (f"mem_fraction_static is {usual} on this card by default",),
    )


def tensorrt_llm(work: ServingWork) -> Needs:
    """Estimate the memory of a TensorRT-LLM server."""
    chunk = work.options.chunk or _TENSORRT_CHUNK
    default = work.options.fraction or _TENSORRT_FRACTION
    low, high = forward_bytes(work, chunk)
    logits = 4 * _SAMPLED * work.sizes.vocabulary
    why = f"{chunk:,} tokens at a time; sampling for {_SAMPLED} sequences holds 1 to 8 copies of "
    why += "their logits"
    parts = (
        context_part(work),
        weights_part(work),
        cache_part(work, _TENSORRT_BLOCK),
        MemoryPart(
            "activations", max(low, logits * _SAMPLING[0]), high + logits * _SAMPLING[1], why
        ),
        MemoryPart("CUDA graphs", *_GRAPHS, "0.11 to 0.96 GiB in posted logs"),
        *communication_parts(work),
    )
    fixed = [part for part in parts if part.name != "keys and values"]
    free = [work.capacity[0] - sum(part.high for part in fixed)]
    free.append(work.capacity[1] - sum(part.low for part in fixed))
    pool = [math.floor(each * default) for each in free]
    tokens = work.batch * round_up(work.tokens, _TENSORRT_BLOCK)
    fraction = parts[2].high / free[0] if free[0] > 0 else 1
    return Needs(
        engine="tensorrt-llm",
        parts=parts,
        source="TensorRT-LLM, Memory Usage of TensorRT-LLM, and KvCacheConfig",
        taken=(
            work.memory - math.ceil(max(free[1], 0) * (1 - default)),
            work.memory - math.floor(max(free[0], 0) * (1 - default)),
        ),
        room=room_of(work, (pool[0], pool[1]), _TENSORRT_BLOCK),
        paste=f"KvCacheConfig(free_gpu_memory_fraction={math.ceil(fraction * 100) / 100:.2f}, "
        f"max_tokens={tokens})"
        if fraction < 1
        else "",
        notes=("a built engine allocates its activations separately; its log gives their size",),
    )
