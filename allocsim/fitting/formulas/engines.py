"""Memory that Transformers, vLLM, SGLang and TensorRT-LLM need and reserve.

Rule: the arithmetic is each engine's own, with its defaults, which are named here. Numbers that an
engine measures when it starts (profiling run, capture of CUDA graphs) are ranges.

Sources. Transformers: `growing.py`. vLLM: docs, "Conserving Memory"; `gpu_worker.py`
(`determine_available_memory`) and the lines that it logs, for instance in vllm-project/vllm#10511.
SGLang: docs, "Hyperparameter Tuning"; `server_args.py` (mem_fraction_static) and
`profile_max_num_token`. TensorRT-LLM: docs, "Memory Usage of TensorRT-LLM", and `KvCacheConfig`.
"""

from __future__ import annotations

import math

from allocsim.fitting.formulas.growing import grow
from allocsim.fitting.formulas.needs import (
    MemoryPart,
    Needs,
    ServingWork,
    biggest_matrix,
    bytes_a_token,
    known_or,
    kv_range,
)
from allocsim.units import GIB, MIB, round_up

FRACTIONS = {"vllm": 0.9, "tensorrt-llm": 0.9}
"""Default of gpu_memory_utilization (0.92 in newer releases) and of free_gpu_memory_fraction."""

_SEEN = 0.001
"""Largest relative error of the predicted reserved memory of Transformers.

Measured on eleven runs of dense models with sdpa: ten agree to the byte, one is 2 MiB short.
"""
_VLLM_BLOCK = 16
_TENSORRT_BLOCK = 32
_LARGE_CARD = 70 * GIB
_SAMPLED = 256
"""Number of sequences for which the profiling run samples a token."""
_SAMPLING = (1, 8)
"""Copies of the 32-bit logits while a token is sampled: only the logits, or also sorted copies."""
_COMMUNICATION = (0, 3_174 * MIB)
"""Lowest and highest bytes of the buffers of NCCL and of the all-reduce on cards that share layers.

The maximum is the memory outside PyTorch that vLLM 0.6 printed on two H100, 3.58 GiB, less the
smallest CUDA context.
"""
_GRAPHS = (104 * MIB, 1 * GIB)
"""Bytes taken by the capture of CUDA graphs; posted logs: 0.11, 0.31, 0.36, 0.65 and 0.96 GiB."""


def transformers(work: ServingWork) -> Needs:
    """Estimate the memory of `generate()` with a growing cache, neither static nor offloaded."""
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
        _context(work),
        _weights(work),
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


def vllm(work: ServingWork) -> Needs:
    """Estimate the memory of a vLLM server with the default gpu_memory_utilization."""
    activations = _profiled(work)
    parts = (
        _context(work),
        _weights(work),
        _cache(work, _VLLM_BLOCK),
        activations,
        _graphs(work),
        *_communication(work),
    )
    needs = Needs(engine="vllm", parts=parts, source="vLLM, gpu_worker.py and Conserving Memory")
    # vLLM's cache takes what the fraction of the card leaves. Graphs are in the fraction only in
    # newer releases, so only the low end subtracts them.
    budget = math.floor(work.memory * (work.logged.fraction or FRACTIONS["vllm"]))
    fixed = [known_or(parts[0], work.logged.beside_torch), *parts[1:2], *parts[3:]]
    most = budget - sum(part.low for part in fixed if part.name != "CUDA graphs")
    least = budget - sum(part.high for part in fixed)
    cache = parts[2].high
    fraction = math.ceil(needs.high / work.memory * 100) / 100
    return Needs(
        engine=needs.engine,
        parts=parts,
        source=needs.source,
        taken=(budget, budget + parts[4].high),
        room=_room(work, (least, most), _VLLM_BLOCK),
        paste=f"{_parallel(work, '--tensor-parallel-size')}"
        f"--gpu-memory-utilization {fraction:.2f} --max-model-len {work.tokens} "
        f"--max-num-seqs {work.batch} or --kv-cache-memory-bytes {cache}"
        if fraction < 1
        else "",
        notes=(
            "CUDA graphs share one pool, and are counted within the fraction from release 0.21 on, "
            "outside of it before",
        ),
    )


def static_fraction(memory: int, cards: int = 1) -> tuple[float, int]:
    """Return SGLang's mem_fraction_static, and the bytes that it leaves on a card for the rest.

    memory: bytes of the card.
    cards: number of cards that share each layer.

    The bytes left are 512 MiB, 1.5 MiB for each token of a prefill chunk, 2 MiB for each sequence
    of the largest graph and 128 MiB for each card, and at least 10 GiB on cards above 60 GiB.
    """
    mib = memory / MIB
    table = ((20, 2048, 8), (35, 2048, 24), (60, 4096, 32), (90, 8192, 256), (160, 8192, 256))
    chunk, graphs = next(
        ((chunk, graphs) for top, chunk, graphs in table if mib < top * 1024), (16384, 512)
    )
    left = 512 + 1.5 * chunk + 1024 * cards / 8 + 2 * graphs
    if mib > 60 * 1024:
        left = max(left, 10 * 1024)
    return round(max(mib - left, 0) / max(mib, 1), 3), round(left * MIB)


def sglang(work: ServingWork) -> Needs:
    """Estimate the memory of an SGLang server with the default mem_fraction_static."""
    fraction, left = static_fraction(work.memory, work.cards)
    if work.logged.fraction:
        fraction = work.logged.fraction
        left = round(work.memory * (1 - fraction))
    profiled, weights = _profiled(work), _weights(work)
    low = min(profiled.low + _graphs(work).low, left)
    why = "to what SGLang leaves for them by card; its graphs share one pool"
    rest = MemoryPart("activations and CUDA graphs", low, max(left, low), why)
    parts = (_context(work), weights, _cache(work, 1), rest, *_communication(work))
    cache = parts[2].high
    # SGLang: KV pool = free memory after loading - free memory before x (1 - fraction).
    taken = _beside(work)
    free = [work.memory - each for each in reversed(taken)]
    pool = [math.floor(each * fraction) - weights.high for each in free]
    needed_fraction = math.ceil((weights.high + cache) / max(free[0], 1) * 100) / 100
    return Needs(
        engine="sglang",
        parts=parts,
        source="SGLang, server_args.py and Hyperparameter Tuning",
        taken=(work.memory - left, work.memory),
        room=_room(work, (pool[0], pool[1]), 1),
        paste=f"{_parallel(work, '--tp-size')}--mem-fraction-static {needed_fraction:.2f} "
        f"--context-length {work.tokens} "
        f"--max-running-requests {work.batch}"
        if needed_fraction < 1
        else "",
        notes=()
        if work.logged.fraction
        else (f"mem_fraction_static is {fraction} on this card by default",),
    )


def tensorrt_llm(work: ServingWork) -> Needs:
    """Estimate the memory of a TensorRT-LLM server that computes 8,192 tokens at a time.

    It has the default free_gpu_memory_fraction.
    """
    activations = _activations(work, 8192)
    parts = (
        _context(work),
        _weights(work),
        _cache(work, _TENSORRT_BLOCK),
        activations,
        _graphs(work),
        *_communication(work),
    )
    fixed = [part for part in parts if part.name != "keys and values"]
    free = [work.memory - sum(part.high for part in fixed)]
    free.append(work.memory - sum(part.low for part in fixed))
    pool = [math.floor(each * FRACTIONS["tensorrt-llm"]) for each in free]
    tokens = work.batch * round_up(work.tokens, _TENSORRT_BLOCK)
    fraction = parts[2].high / free[0] if free[0] > 0 else 1
    return Needs(
        engine="tensorrt-llm",
        parts=parts,
        source="TensorRT-LLM, Memory Usage of TensorRT-LLM, and KvCacheConfig",
        taken=(
            work.memory - math.ceil(max(free[1], 0) * 0.1),
            work.memory - math.floor(max(free[0], 0) * 0.1),
        ),
        room=_room(work, (pool[0], pool[1]), _TENSORRT_BLOCK),
        paste=f"KvCacheConfig(free_gpu_memory_fraction={math.ceil(fraction * 100) / 100:.2f}, "
        f"max_tokens={tokens})"
        if fraction < 1
        else "",
        notes=("a built engine allocates its activations separately; its log gives their size",),
    )


def _parallel(work: ServingWork, option: str) -> str:
    """Return the setting for the number of cards, such as "--tp 2"; "" for one card.

    option: name of the server's option.
    """
    return f"{option} {work.cards} " if work.cards > 1 else ""


def _communication(work: ServingWork) -> tuple[MemoryPart, ...]:
    """Return the buffers with which cards that share layers communicate; empty for one card."""
    if work.cards == 1:
        return ()
    why = (
        "NCCL's and the all-reduce's, by how the cards are connected; up to 3.1 GiB in posted logs"
    )
    return (MemoryPart("communication buffers", *_COMMUNICATION, why),)


def _beside(work: ServingWork) -> tuple[int, int]:
    """Return the lowest and highest bytes that are used before the weights are loaded."""
    parts = (MemoryPart("", *work.context), *_communication(work))
    return sum(part.low for part in parts), sum(part.high for part in parts)


def _context(work: ServingWork) -> MemoryPart:
    why = "range of driver, kernels and libraries in out-of-memory messages"
    beside = work.logged.beside_torch or 0
    # Some releases log the whole context, others only its growth after the measurement began.
    part = MemoryPart("CUDA context", *work.context, why)
    return known_or(part, beside if beside > work.context[1] else None)


def _weights(work: ServingWork) -> MemoryPart:
    size = work.weights.size
    why = f"{work.weights.name}, {work.weights.bits:.2f} bits each"
    return known_or(MemoryPart("weights", size, size, why), work.logged.weights)


def _cache(work: ServingWork, block: int) -> MemoryPart:
    kind = work.computed_in
    low, high = kv_range(work.sizes, work.tokens, kind, block=block)
    why = f"{work.batch} x {work.tokens:,} tokens in {kind}"
    if low != high:
        why += "; less if the engine uses the sliding window"
    return MemoryPart("keys and values", work.batch * low, work.batch * high, why)


def _profiled(work: ServingWork) -> MemoryPart:
    """Return the peak of the profiling run: the largest chunk of prompts, and sampling."""
    rows = 8192 if work.memory >= _LARGE_CARD else 2048
    return known_or(_activations(work, rows), work.logged.activations)


def _activations(work: ServingWork, rows: int) -> MemoryPart:
    """Return the MLP's gate, up and product, the tensors alive with them, and copies of the logits.

    rows: tokens that are computed at a time.
    """
    sizes, each = work.sizes, work.number_size
    inner = rows * 3 * sizes.inner * each
    beside = rows * 4 * sizes.width * each
    logits = 4 * _SAMPLED * sizes.vocabulary
    why = f"{rows:,} tokens at a time; sampling for {_SAMPLED} sequences holds 1 to 8 copies of "
    why += "their logits"
    return MemoryPart(
        "activations",
        max(inner, logits * _SAMPLING[0]),
        inner + beside + logits * _SAMPLING[1],
        why,
    )


def _graphs(work: ServingWork) -> MemoryPart:
    """Return the CUDA graphs of all batch sizes, which share the memory of the largest graph."""
    why = "0.11 to 0.96 GiB in posted logs; nothing with --enforce-eager and the like"
    return known_or(MemoryPart("CUDA graphs", *_GRAPHS, why), work.logged.graphs)


def _room(work: ServingWork, pool: tuple[int, int], block: int) -> tuple[int, int]:
    """Return the number of tokens that fit in a cache of the lowest and highest size.

    pool: lowest and highest bytes of the cache.
    block: tokens of a block; only whole blocks count.
    """
    each = bytes_a_token(work.sizes, work.computed_in) * block
    low, high = (max(size, 0) // each * block for size in pool)
    return low, high
