"""Memory that Transformers, TensorRT-LLM, llama.cpp and Ollama need to serve a model.

Each function repeats the arithmetic of one engine with its default options.  Memory that an engine
measures when it starts, in a profiling run or while it captures CUDA graphs, is given as a range.
"""

# Sources. Transformers: `growing.py`. TensorRT-LLM: docs, "Memory Usage of TensorRT-LLM", and
# `KvCacheConfig`. `ggml-org/llama.cpp`: src/llama-model.cpp (`load_tensors`,
# `get_layer_buft_list`) for the placement of layers, src/llama-context.cpp for the buffers,
# `llama_kv_cache_iswa` for windows, `llama_memory_recurrent` for states, tools/server/README.md for
# the options; compute buffers from its logs, such as 258.50 MiB of Llama 3 8B at 512 tokens.
# Ollama: docs/faq.md and docs/context-length.md.

from __future__ import annotations

import math
from dataclasses import replace

from allocsim.fitting.formulas.needs import (
    Largest,
    Needs,
    ServingWork,
    biggest_matrix,
    cache_part,
    communication_parts,
    context_part,
    forward_bytes,
    known_or,
    room_of,
    weights_part,
)
from allocsim.fitting.formulas.parts import MemoryPart, bytes_a_token, row_bytes
from allocsim.fitting.formulas.server_options import options_again
from allocsim.fitting.formulas.sizes import Encoder
from allocsim.units import GIB, MIB, round_up

_RESERVED_BESIDE = (0.01, 0.02)
"""Tolerances of the simulated reserved memory, below and above it, as fractions of it.

Real runs of dense models were within them, after adding `_SMALL_POOLS`."""
_SMALL_POOLS = 192 * MIB
"""Additional tolerance above the simulated memory, in bytes, which mostly small models need.

This and `_RESERVED_BESIDE` are from 33 runs in traces/fit that serve a model, without eager
attention, and with weights loaded in place."""
_TENSORRT_BLOCK = 32
_TENSORRT_FRACTION = 0.9
_TENSORRT_CHUNK = 8192
_SAMPLED = 256
"""Assumed number of sequences for which TensorRT-LLM samples a token at the same time."""
_SAMPLING = (1, 8)
"""Minimum and maximum number of 32-bit copies of the logits during sampling, which sorts them."""
GRAPHS = (104 * MIB, 1 * GIB)
"""Minimum and maximum bytes that the capture of an engine's CUDA graphs takes.

Public logs have 0.11, 0.31, 0.36, 0.65 and 0.96 GiB."""


def transformers(work: ServingWork) -> Needs:
    """Estimate the memory of transformers' `generate()` with its default cache, `DynamicCache`."""
    if work.sizes.encoder is not None:
        return _with_encoder(work, work.sizes.encoder)
    from allocsim.fitting.formulas.growing import grow  # noqa: PLC0415  (loads NumPy)

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
    less, more = _RESERVED_BESIDE
    low = max(rest - round(grown.reserved * less), 0)
    high = rest + round(grown.reserved * more) + _SMALL_POOLS
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
            "replayed; real runs of dense models reserved 1 % less to 2 % and 192 MiB more in all, "
            "a mixture of experts 10 % more",
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


_FEWEST_WIDE = 2
_MOST_WIDE = 6
"""Maximum number of tensors with the MLP's width that exist at one time in an encoder's layer;
`_FEWEST_WIDE` is the minimum."""
_T5_SCORES = (8, 12)
"""Minimum and maximum bytes per attention score in T5, for two or three tensors in 32 bits."""
_ROUNDED = 25
"""Divisor of the weights' bytes: rounding of blocks and segments adds at most this part (1/25)."""
_DISTANCES = 6
"""Number of 64-bit integers per pair of tokens while T5 computes its relative-position bias."""


def _with_encoder(work: ServingWork, encoder: Encoder) -> Needs:
    sizes, each = work.sizes, work.number_size
    source = encoder.tokens or work.prompt
    written = work.decode + (work.prompt if encoder.tokens else 1)
    rows = work.batch * source
    low, high = (
        rows * each * (sizes.width + sizes.inner * tensors)
        for tensors in (_FEWEST_WIDE, _MOST_WIDE)
    )
    if encoder.buckets:
        scores, few = work.batch * sizes.heads * source**2, source**2
        bias = few * (each * sizes.heads + 8 * _DISTANCES)
        low = max(low, _T5_SCORES[0] * scores)
        high = max(high, _T5_SCORES[1] * scores + bias + 3 * rows * sizes.width * each)
    else:
        sound = rows * 2 * (encoder.channels + 2 * sizes.width) * each
        low, high = max(low, sound // 2), high + sound
    logits = work.batch * (work.prompt if encoder.tokens else 1) * sizes.vocabulary * each
    high += work.workspace + logits + _SMALL_POOLS + work.weights.size // _ROUNDED
    output = rows * sizes.width * each
    cache = work.batch * (written + source) * bytes_a_token(sizes, work.computed_in)
    why = (
        f"{work.batch} x {written:,} tokens of the decoder, and {source:,} of the encoder's output"
    )
    parts = (
        context_part(work),
        weights_part(work),
        MemoryPart("encoder's output", output, output),
        MemoryPart("keys and values", cache, cache, why),
        MemoryPart(
            "activations and the allocator's cache", low, high, "a layer of the encoder, or logits"
        ),
    )
    source_text = "transformers, modeling_t5.py and modeling_whisper.py"
    return Needs(engine="transformers", parts=parts, source=source_text)


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
        MemoryPart("CUDA graphs", *GRAPHS, "0.11 to 0.96 GiB in posted logs"),
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


_BATCH = 512
"""Number of tokens that llama.cpp computes at a time: the default of its option --ubatch-size."""
_CELLS = 256
_MOST_CELLS = 1 << 20
_KEEP = 4096
_SOURCE = "llama.cpp, src/llama-model.cpp and src/llama-context.cpp"


def compute_buffer(work: ServingWork) -> tuple[int, int]:
    """Return the minimum and maximum bytes of llama.cpp's compute buffer.

    The minimum is with flash attention, the maximum without it.  They are equal if the options
    decide which is used.
    """
    sizes, rows = work.sizes, work.options.chunk or _BATCH
    with_flash = 4 * rows * (sizes.vocabulary + sizes.width)
    scores = 4 * rows * (_cells(work) * (sizes.heads + 1) + 4 * sizes.width)
    without = max(with_flash, scores)
    if work.options.has_flash is None:
        return with_flash, without
    return (with_flash, with_flash) if work.options.has_flash else (without, without)


def _cells(work: ServingWork) -> int:
    if work.options.longest:
        return round_up(work.options.longest, _CELLS)
    return round_up(work.tokens, _CELLS) * (work.options.sequences or work.batch)


def llama_cpp(work: ServingWork) -> Needs:
    """Estimate the memory of llama-server or llama-cli."""
    gpu_layers, layers = _gpu_layers(work), work.sizes.layers
    parts = _parts(work, *gpu_layers)
    total, whole = work.weights.size, _cache(work, layers)
    weights, cache = parts[1], parts[2]
    host = (
        MemoryPart(
            "weights",
            total - _taken_from_host(work, weights.high),
            total - _taken_from_host(work, weights.low),
            "the token embedding, and the layers that are not on the card; mapped from the file",
        ),
        MemoryPart("keys and values", whole - cache.high, whole - cache.low),
    )
    note = "flash attention is on if the card supports it; the compute buffer's low end assumes it"
    count = gpu_layers[0]
    longest = _longest(work)
    sequences = work.options.sequences or work.batch
    return Needs(
        engine="llama.cpp",
        parts=parts,
        host=host,
        source=_SOURCE,
        largest=Largest("-ngl", count, (longest, longest), longest, "-c") if longest else None,
        paste=f"-ngl {count} -c {_cells(work)} -np {sequences}"
        + options_again(work.options, "llama.cpp"),
        notes=() if work.options.has_flash is not None else (note,),
    )


def _gpu_layers(work: ServingWork) -> tuple[int, int]:
    layers = work.sizes.layers
    given = work.gpu_layers if work.options.gpu_layers is None else work.options.gpu_layers
    return (layers + 1 if given is None else min(given, layers + 1)), layers


def _parts(work: ServingWork, gpu_layers: int, layers: int) -> tuple[MemoryPart, ...]:
    # Newer releases of llama.cpp move the output layer to the GPU first, and older ones last.
    spared = _weights_on_card(work, max(gpu_layers - 1, 0), with_output=gpu_layers > 0)
    plain = _weights_on_card(work, min(gpu_layers, layers), with_output=gpu_layers > layers)
    low, high = sorted((spared, plain))
    fewest, most = max(gpu_layers - 1, 0), min(gpu_layers, layers)
    cache = [_cache(work, count) for count in (fewest, most)]
    # If all layers are on the GPU, both orders put the whole cache there.
    if gpu_layers > layers:
        cache[0] = cache[1]
    why = f"{gpu_layers} of {layers + 1} layers; "
    why += "releases from 2026 on put the output there first, others last"
    return (
        _context(work, gpu_layers),
        MemoryPart("weights", low, high, f"{work.weights.name}, {why}"),
        MemoryPart("keys and values", cache[0], cache[1], f"allocated at once, {_kind(work)}"),
        *_states(work, most),
        _buffer(work, gpu_layers),
    )


def ollama(work: ServingWork) -> Needs:
    """Estimate the memory of a model in Ollama: llama.cpp with at least 4,096 tokens of context."""
    prompt = max(work.prompt, _KEEP - work.decode)
    needs = llama_cpp(replace(work, prompt=prompt))
    *parts, buffer = needs.parts
    # Ollama's own engine computes the logits of a prompt's last token only.
    hidden = 4 * _BATCH * 2 * (work.sizes.inner + work.sizes.width)
    why = f"{buffer.why}, and with logits of one token only"
    buffer = replace(buffer, low=min(buffer.low, hidden), why=why)
    return Needs(
        engine="ollama",
        parts=(*parts, buffer),
        host=needs.host,
        source="Ollama, docs/faq.md and docs/context-length.md; " + _SOURCE,
        paste=f"OLLAMA_CONTEXT_LENGTH={prompt + work.decode} OLLAMA_NUM_PARALLEL={work.batch}",
        notes=(
            "an idle server takes none: a model is unloaded five minutes after its last request "
            "(OLLAMA_KEEP_ALIVE)",
            "Ollama moves layers to the host if the card is too small",
        ),
    )


def _kind(work: ServingWork) -> str:
    return work.kv_type or "fp16"


def _cache(work: ServingWork, layers: int) -> int:
    cells, size = _cells(work), 0
    for each in work.sizes.cached:
        # Layers with a sliding window cache the windows of all sequences and the batch's tokens.
        seen = each.window * (work.options.sequences or work.batch)
        seen += work.options.chunk or _BATCH
        is_short = each.window and each.count < work.sizes.keeping
        seen = min(round_up(seen, _CELLS), cells) if is_short else cells
        size += each.count * seen * row_bytes(each.kept, _kind(work))
    return size * layers // work.sizes.layers


def _states(work: ServingWork, layers: int) -> tuple[MemoryPart, ...]:
    if (linear := work.sizes.linear) is None:
        return ()
    # All elements of a state have 32 bits, also those of the convolution.
    each = 2 * linear.state_bytes - 4 * linear.value_heads * linear.key * linear.value
    each *= (work.options.sequences or work.batch) * len(linear.layers)
    size = each * layers // work.sizes.layers
    return (MemoryPart("states of linear attention", size, size, "in 32 bits"),)


def _longest(work: ServingWork) -> int:
    low, high = 0, (work.sizes.longest or _MOST_CELLS) * work.batch // _CELLS
    while low < high:
        middle = (low + high + 1) // 2
        tried = replace(work, options=replace(work.options, longest=middle * _CELLS))
        parts = _parts(tried, *_gpu_layers(tried))
        is_held = sum(part.high for part in parts) <= work.memory
        low, high = (middle, high) if is_held else (low, middle - 1)
    return low * _CELLS


def _weights_on_card(work: ServingWork, count: int, *, with_output: bool) -> int:
    weights, layers = work.weights, work.sizes.layers
    size = weights.in_layers(layers - count, layers)
    if with_output:
        role = "token_embd" if work.sizes.tied else "output"  # a tied embedding is stored twice
        size += weights.of_role(role)
    return size


def _taken_from_host(work: ServingWork, on_card: int) -> int:
    # A tied embedding is copied to the GPU as the output layer; it also stays on the host.
    is_copied = work.sizes.tied and on_card > 0
    return on_card - work.weights.of_role("token_embd") if is_copied else on_card


def _context(work: ServingWork, gpu_layers: int) -> MemoryPart:
    low, high = work.context
    if gpu_layers:
        return MemoryPart("CUDA context", low, high, "range of driver, kernels and libraries")
    return MemoryPart(
        "CUDA context", 0, high, "none before a long prompt's products go to the card"
    )


def _buffer(work: ServingWork, gpu_layers: int) -> MemoryPart:
    low, high = compute_buffer(work)
    if gpu_layers:
        rows = work.options.chunk or _BATCH
        why = f"{rows} tokens at a time, with and without flash attention"
        part = MemoryPart("compute buffer", low, high, why)
        logged = work.logged
        is_same = logged.cache_tokens == _cells(work)
        return known_or(part, logged.compute_buffer if is_same else None)
    biggest = max(each.size for each in work.weights.tensors)
    why = "nothing at first; for long prompts the products of one tensor at a time"
    return MemoryPart("compute buffer", 0, min(high, GIB) + biggest, why)
