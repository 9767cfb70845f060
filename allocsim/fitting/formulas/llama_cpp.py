"""Memory that llama.cpp and Ollama need on a card and on the host.

Rule: llama.cpp allocates everything when it loads: weights, the cache of the whole context, and a
compute buffer for one batch. No allocation grows afterwards. The token embedding stays on the host.

Sources: `ggml-org/llama.cpp`, src/llama-model.cpp (`load_tensors`, `get_layer_buft_list`) for the
placement of layers, src/llama-context.cpp for the buffers, tools/server/README.md for the options.
The sizes of compute buffers are from its logs, for instance 258.50 MiB of Llama 3 8B at 512 tokens
and 560.00 MiB at 8,192 without flash attention. Ollama: docs/faq.md (OLLAMA_KEEP_ALIVE,
OLLAMA_NUM_PARALLEL) and docs/context-length.md.
"""

from __future__ import annotations

from dataclasses import replace

from allocsim.fitting.formulas.needs import (
    Largest,
    MemoryPart,
    Needs,
    ServingWork,
    known_or,
    kv_bytes,
)
from allocsim.fitting.formulas.server_options import options_again
from allocsim.units import GIB, round_up

_BATCH = 512
"""Number of tokens that are computed at a time: the default of --ubatch-size."""
_CELLS = 256
_MOST_CELLS = 1 << 20
_KEEP = 4096
_SOURCE = "llama.cpp, src/llama-model.cpp and src/llama-context.cpp"


def compute_buffer(work: ServingWork) -> tuple[int, int]:
    """Return the bytes of llama.cpp's compute buffer with flash attention, and without it.

    With flash attention it holds the logits of a batch and their inputs. Without it, it holds the
    attention scores of all heads and the mask, if they are larger.
    """
    sizes, rows = work.sizes, work.options.chunk or _BATCH
    with_flash = 4 * rows * (sizes.vocabulary + sizes.width)
    scores = 4 * rows * (_cells(work) * (sizes.heads + 1) + 4 * sizes.width)
    without = max(with_flash, scores)
    if work.options.has_flash is None:
        return with_flash, without
    return (with_flash, with_flash) if work.options.has_flash else (without, without)


def _cells(work: ServingWork) -> int:
    """Return the tokens of the whole context: those given by -c, or those of all sequences."""
    if work.options.longest:
        return round_up(work.options.longest, _CELLS)
    return round_up(work.tokens, _CELLS) * (work.options.sequences or work.batch)


def llama_cpp(work: ServingWork) -> Needs:
    """Estimate the memory of llama-server or llama-cli.

    The context of each sequence holds its prompt and decoded tokens, unless -c is given.
    """
    gpu_layers, layers = _gpu_layers(work), work.sizes.layers
    parts = _parts(work, *gpu_layers)
    total, whole = work.weights.size, _cache(work, layers)
    weights, cache = parts[1], parts[2]
    host = (
        MemoryPart(
            "weights",
            total - _counted(work, weights.high),
            total - _counted(work, weights.low),
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
    """Return the layers on the card, counting the output as one, and all layers of the model."""
    layers = work.sizes.layers
    given = work.gpu_layers if work.options.gpu_layers is None else work.options.gpu_layers
    return (layers + 1 if given is None else min(given, layers + 1)), layers


def _parts(work: ServingWork, gpu_layers: int, layers: int) -> tuple[MemoryPart, ...]:
    # Newer releases put the output on the card first, older ones last.
    spared = _weights_on_card(work, max(gpu_layers - 1, 0), with_output=gpu_layers > 0)
    plain = _weights_on_card(work, min(gpu_layers, layers), with_output=gpu_layers > layers)
    low, high = sorted((spared, plain))
    fewest, most = max(gpu_layers - 1, 0), min(gpu_layers, layers)
    cache = [_cache(work, count) for count in (fewest, most)]
    # With all layers on the card, both orders place the whole cache there.
    if gpu_layers > layers:
        cache[0] = cache[1]
    why = f"{gpu_layers} of {layers + 1} layers; "
    why += "releases from 2026 on put the output there first, others last"
    return (
        _context(work, gpu_layers),
        MemoryPart("weights", low, high, f"{work.weights.name}, {why}"),
        MemoryPart("keys and values", cache[0], cache[1], f"allocated at once, {_kind(work)}"),
        _buffer(work, gpu_layers),
    )


def ollama(work: ServingWork) -> Needs:
    """Estimate the memory of a model in Ollama.

    Ollama uses llama.cpp, with a context of 4,096 tokens or more.
    """
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
    return kv_bytes(work.sizes, _cells(work), _kind(work), layers=layers)


def _longest(work: ServingWork) -> int:
    """Return the largest context, in tokens, with which everything fits the card for certain."""
    low, high = 0, (work.sizes.longest or _MOST_CELLS) * work.batch // _CELLS
    while low < high:
        middle = (low + high + 1) // 2
        tried = replace(work, options=replace(work.options, longest=middle * _CELLS))
        parts = _parts(tried, *_gpu_layers(tried))
        is_held = sum(part.high for part in parts) <= work.memory
        low, high = (middle, high) if is_held else (low, middle - 1)
    return low * _CELLS


def _weights_on_card(work: ServingWork, count: int, *, with_output: bool) -> int:
    """Return the bytes of the last `count` layers.

    with_output: True to add the output layer.
    """
    weights, layers = work.weights, work.sizes.layers
    size = weights.in_layers(layers - count, layers)
    if with_output:
        role = "token_embd" if work.sizes.tied else "output"  # a tied embedding is stored twice
        size += weights.of_role(role)
    return size


def _counted(work: ServingWork, on_card: int) -> int:
    """Return the bytes of the weights on the card that occupy no host memory.

    on_card: bytes of all weights on the card.
    """
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
