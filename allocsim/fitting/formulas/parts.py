"""Parts of the memory that several serving engines have in common.

Rule: a number from the engine's log replaces the formula's range. The ranges are those of public
start-up logs, compared in docs/evidence/serving.md.
"""

from __future__ import annotations

from allocsim.fitting.formulas.needs import (
    MemoryPart,
    ServingWork,
    bytes_a_token,
    known_or,
    kv_range,
)
from allocsim.units import MIB

_COMMUNICATION = 30 * MIB, 310 * MIB
"""Least bytes of the buffers with which cards that share layers communicate, and most per card."""


def context_part(work: ServingWork) -> MemoryPart:
    """Return the memory of the CUDA context, from the log or as a range."""
    why = "range of driver, kernels and libraries in out-of-memory messages"
    beside = work.logged.beside_torch or 0
    # Some releases log the whole context, others only its growth after the measurement began.
    part = MemoryPart("CUDA context", *work.context, why)
    return known_or(part, beside if beside > work.context[1] else None)


def weights_part(work: ServingWork) -> MemoryPart:
    """Return the memory of the weights on one card."""
    size = work.weights.size
    why = f"{work.weights.name}, {work.weights.bits:.2f} bits each"
    return known_or(MemoryPart("weights", size, size, why), work.logged.weights)


def cache_part(work: ServingWork, block: int) -> MemoryPart:
    """Return the memory of the keys and values of all sequences that are served at a time.

    block: tokens of a block; only whole blocks count.
    """
    kind = work.computed_in
    low, high = kv_range(work.sizes, work.tokens, kind, block=block)
    why = f"{work.batch} x {work.tokens:,} tokens in {kind}"
    if low != high:
        why += "; less if the engine uses the sliding window"
    return MemoryPart("keys and values", work.batch * low, work.batch * high, why)


def forward_bytes(work: ServingWork, rows: int) -> tuple[int, int]:
    """Return the lowest and highest peak of a forward pass, beside weights and logits.

    The peak is in the MLP: gate, up and product, with the hidden state and the residual. Experts
    hold inputs, products and outputs of each chosen expert.

    rows: tokens that are computed at a time.
    """
    sizes = work.sizes
    inner = 3 * sizes.inner
    if sizes.experts:
        inner = sizes.chosen * (2 * sizes.width + 3 * sizes.expert_inner) + 3 * sizes.shared_inner
    low = rows * work.number_size * (inner + 2 * sizes.width)
    return low, low + low // 10 + rows * work.number_size * 3 * sizes.width


def communication_parts(work: ServingWork) -> tuple[MemoryPart, ...]:
    """Return the memory for communication of cards that share layers; empty for one card."""
    if work.cards == 1:
        return ()
    low, each = _COMMUNICATION
    why = "NCCL's and the all-reduce's, by how the cards are connected; up to 0.3 GiB per card of "
    why += "the group in posted logs"
    return (MemoryPart("communication buffers", low, each * work.cards, why),)


def parallel_option(work: ServingWork, option: str) -> str:
    """Return the setting for the number of cards, such as "--tp 2 "; "" for one card.

    option: name of the server's option.
    """
    return f"{option} {work.cards} " if work.cards > 1 else ""


def room_of(work: ServingWork, pool: tuple[int, int], block: int) -> tuple[int, int]:
    """Return the number of tokens that fit in a cache of the lowest and highest size.

    pool: lowest and highest bytes of the cache.
    block: tokens of a block; only whole blocks count.
    """
    each = bytes_a_token(work.sizes, work.computed_in) * block
    low, high = (max(size, 0) // each * block for size in pool)
    return low, high
