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

from allocsim.fitting.formulas.needs import MemoryPart, Needs, ServingWork, known_or, kv_bytes
from allocsim.units import GIB, round_up

_BATCH = 512
"""Number of tokens that are computed at a time: the default of --ubatch-size."""
_CELLS = 256
_KEEP = 4096
_SOURCE = "llama.cpp, src/llama-model.cpp and src/llama-context.cpp"


def compute_buffer(work: ServingWork) -> tuple[int, int]:
    """Return the bytes of the compute buffer with flash attention, and without it.

    With flash attention it holds the logits of a batch and their inputs. Without it, it holds the
    attention scores of all heads and the mask, if they are larger.
    """
    sizes = work.sizes
    with_flash = 4 * _BATCH * (sizes.vocabulary + sizes.width)
    context = round_up(work.tokens, _CELLS) * work.batch
    scores = 4 * _BATCH * (context * (sizes.heads + 1) + 4 * sizes.width)
    return with_flash, max(with_flash, scores)


def llama_cpp(work: ServingWork) -> Needs:
    """Estimate the memory of llama-server or llama-cli.

    The context of each sequence holds its prompt and decoded tokens.
    """
    layers = work.sizes.layers
    gpu_layers = layers + 1 if work.gpu_layers is None else min(work.gpu_layers, layers + 1)
    spared = _weights_on_card(
        work, max(gpu_layers - 1, 0), with_output=gpu_layers > 0
    )  # Newer releases put the output on the card first, older ones last.
    plain = _weights_on_card(work, min(gpu_layers, layers), with_output=gpu_layers > layers)
    weights = sorted((spared, plain))
    total = work.weights.size
    fewest, most = max(gpu_layers - 1, 0), min(gpu_layers, layers)
    cache = [_cache(work, count) for count in (fewest, most)]
    # With all layers on the card, both orders place the whole cache there.
    if gpu_layers > layers:
        cache[0] = cache[1]
    why = f"{gpu_layers} of {layers + 1} layers; "
    why += "releases from 2026 on put the output there first, others last"
    parts = (
        _context(work, gpu_layers),
        MemoryPart("weights", weights[0], weights[1], f"{work.weights.name}, {why}"),
        MemoryPart("keys and values", cache[0], cache[1], f"allocated at once, {_kind(work)}"),
        _buffer(work, gpu_layers),
    )
    whole = _cache(work, layers)
    host = (
        MemoryPart(
            "weights",
            total - _counted(work, weights[1]),
            total - _counted(work, weights[0]),
            "the token embedding, and the layers that are not on the card; mapped from the file",
        ),
        MemoryPart("keys and values", whole - cache[1], whole - cache[0]),
    )
    notes = [
        "flash attention is on if the card supports it; the compute buffer's low end assumes it"
    ]
    return Needs(
        engine="llama.cpp",
        parts=parts,
        host=host,
        source=_SOURCE,
        paste=f"-ngl {gpu_layers} -c {round_up(work.tokens, _CELLS) * work.batch} -np {work.batch}",
        notes=tuple(notes),
    )


def ollama(work: ServingWork) -> Needs:
    """Estimate the memory of a model in Ollama.

    Ollama uses llama.cpp, with a context of 4,096 tokens or more.
    """
    prompt = max(work.prompt, _KEEP - work.decode)
    needs = llama_cpp(replace(work, prompt=prompt))
    return Needs(
        engine="ollama",
        parts=needs.parts,
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
    cells = round_up(work.tokens, _CELLS)
    return work.batch * kv_bytes(work.sizes, cells, _kind(work), layers=layers)


def _weights_on_card(work: ServingWork, count: int, *, with_output: bool) -> int:
    """Return the bytes of the last `count` layers, and `with_output` also of the output layer."""
    weights, layers = work.weights, work.sizes.layers
    size = weights.in_layers(layers - count, layers)
    if with_output:
        role = "token_embd" if work.sizes.tied else "output"  # a tied embedding is stored twice
        size += weights.of_role(role)
    return size


def _counted(work: ServingWork, on_card: int) -> int:
    """Return the bytes of the weights on the card that are no longer on the host."""
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
        why = f"{_BATCH} tokens at a time, with and without flash attention"
        part = MemoryPart("compute buffer", low, high, why)
        logged = work.logged
        is_same = logged.cache_tokens == round_up(work.tokens, _CELLS) * work.batch
        return known_or(part, logged.compute_buffer if is_same else None)
    biggest = max(each.size for each in work.weights.tensors)
    why = "nothing at first; for long prompts the products of one tensor at a time"
    return MemoryPart("compute buffer", 0, min(high, GIB) + biggest, why)
