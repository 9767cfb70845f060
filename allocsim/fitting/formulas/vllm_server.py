"""Memory that a vLLM server needs and takes, and the number of tokens in its KV cache.

The size of the KV cache is a fraction of the GPU's memory, minus the weights, the peak of the
profiling run, memory outside PyTorch and, from vLLM 0.21 on, an estimate of the CUDA graphs.
"""

# Sources: vLLM, "Conserving Memory" and `determine_available_memory`. Ranges: public start-up logs
# (docs/evidence/serving.md).

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from allocsim.fitting.formulas.logged import DECIMALS
from allocsim.fitting.formulas.needs import (
    Largest,
    Needs,
    ServingWork,
    cache_part,
    communication_parts,
    context_part,
    doubt_of,
    forward_bytes,
    known_or,
    parallel_option,
    weights_part,
)
from allocsim.fitting.formulas.paged_cache import BLOCK, PagedCache
from allocsim.fitting.formulas.parts import MemoryPart
from allocsim.fitting.formulas.server_options import (
    OLD_MEMORY,
    WITH_GRAPHS,
    ServerOptions,
    of_vllm,
    options_again,
)
from allocsim.units import MIB

_SORTED = (37, 40)
"""Minimum and maximum bytes per logit while PyTorch sorts the logits to sample a token."""
_KERNEL, _OTHER_KERNEL = (13, 15), (6, 15)
"""Minimum and maximum bytes per logit while a token is sampled, on GPUs that FlashInfer's sampling
kernel supports, and on other GPUs."""
_FLASHINFER = (8, 0)
_FIRST_KERNEL, _LAST_SORTED = (0, 16), (0, 16)
_A_GRAPH = (MIB, 65 * MIB)
_A_LATER_GRAPH = (MIB, 26 * MIB)
"""Minimum and maximum bytes of the CUDA graph for one batch size, in vLLM from 0.18 on.

Only one log has more than 22 MiB.  `_A_GRAPH` is the range for earlier releases of vLLM."""
_LATER = (0, 18)
_ESTIMATED = (2 * MIB, 26 * MIB)
"""Minimum and maximum bytes that vLLM estimates for one batch size's CUDA graph."""
_MADE_AT_LOAD = 144 * MIB
"""Maximum bytes of buffers created while a model loads, except weights and rotary table."""
_TUNED_STACK = 11_912 - 1024
"""Maximum bytes of local memory per GPU thread that linear attention adds to the context's 1,024.

When the engine starts for the first time, Triton tries every variant of its kernels, and the driver
keeps the local memory of the variant that needs most.  The number is for sm_80.
"""
_KERNELS, _OLD_KERNELS = (20 * MIB, 360 * MIB), (20 * MIB, 1200 * MIB)
"""Minimum and maximum bytes that vLLM measures outside PyTorch: from vLLM 0.7 on, and before."""


@dataclass(frozen=True, eq=False)
class _Start:
    """Uses of the GPU's memory when a vLLM server starts, and the size of its KV cache.

    work: model and sequences to serve.
    options: all options, where None is replaced by vLLM's default.
    """

    work: ServingWork
    options: ServerOptions

    @property
    def has_graphs_inside(self) -> bool:
        return self.options.version is not None and self.options.version >= WITH_GRAPHS

    @cached_property
    def parts(self) -> tuple[MemoryPart, ...]:
        return (
            context_part(self.work),
            weights_part(self.work),
            self.tables,
            cache_part(self.work, BLOCK),
            self.activations,
            self.graphs,
            *communication_parts(self.work),
        )

    @cached_property
    def tables(self) -> MemoryPart:
        low, high = _OLD_KERNELS if (self.options.version or (0, 0)) < OLD_MEMORY else _KERNELS
        if self.work.sizes.linear is not None and self.work.logged.consumed is None:
            high += _TUNED_STACK * self.work.threads
        if self.work.logged.beside_torch is not None:
            low = high = round(self.work.logged.beside_torch)
        if self.work.logged.weights is None and self.work.logged.consumed is None:
            low, high = low + self.loaded_beside[0], high + self.loaded_beside[1]
        why = "rotary table, buffers made at load, kernels, handles of libraries, in posted logs"
        why += "; encoder of images" if any(self.work.encoder) else ""
        return MemoryPart("tables, buffers and kernels", low, high, why)

    @property
    def loaded_beside(self) -> tuple[int, int]:
        sizes = self.work.sizes
        turning = sizes.latent.turning if sizes.latent else sizes.head
        turning += sizes.whole.head if sizes.whole else 0
        table = sizes.longest * turning * self.work.number_size
        low, high = (0, 0) if self.options.has_text_only else self.work.encoder
        return low, high + table + _MADE_AT_LOAD

    @cached_property
    def activations(self) -> MemoryPart:
        part, logged = self._activations(self.options), self.work.logged.activations
        if logged is not None and self._loads[0] != self._loads[1]:
            expected = self._activations(self._full(self.work.logged.options))
            if logged > expected.high:  # the formula gives too little for this model
                return replace(part, low=min(part.low, round(logged)), high=round(logged))
        return self._as_logged(part, logged)

    def _activations(self, options: ServerOptions) -> MemoryPart:
        rows, sequences = options.chunk or 1, options.sequences or 1
        version = options.version or (0, 0)
        kernel = _KERNEL if self.work.capability >= _FLASHINFER else _OTHER_KERNEL
        low_each = (_SORTED if version < _FIRST_KERNEL else kernel)[0]
        high_each = (_SORTED if version <= _LAST_SORTED else kernel)[1]
        logits = sequences * self.work.sizes.vocabulary
        hidden = rows * self.work.sizes.width * self.work.number_size
        low, high = forward_bytes(self.work, rows)
        low = max(low, logits * low_each + hidden)
        high = max(high, logits * high_each + hidden)
        why = f"{rows:,} tokens at a time, or sampling for {sequences:,} sequences"
        return MemoryPart("activations", low, high, why)

    @cached_property
    def graphs(self) -> MemoryPart:
        # The graphs of all batch sizes share the memory of the largest one.
        version = self.options.version or (0, 0)
        low, high = _A_GRAPH if version < _LATER else _A_LATER_GRAPH
        count = self._n_graphs
        where = "in the fraction" if self.has_graphs_inside else "beside the fraction"
        why = f"{count} batch sizes of 1 to {high // MIB} MiB in posted logs; {where}"
        part = MemoryPart("CUDA graphs", count * low, count * high, why)
        return self._as_logged(part, self.work.logged.graphs)

    @property
    def _n_graphs(self) -> int:
        most = 0 if self.options.is_eager else self.options.captured or 0
        return sum(size <= most for size in (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)))

    def _as_logged(self, part: MemoryPart, logged: float | None) -> MemoryPart:
        # A start with fewer or shorter sequences than in the log needs at most the logged size.
        now, was = self._loads
        if now == was or logged is None:
            return known_or(part, logged)
        if not self._needs_no_more:
            return replace(part, high=max(part.high, round(logged)))
        return replace(part, low=min(part.low, round(logged)), high=min(part.high, round(logged)))

    @cached_property
    def inside(self) -> tuple[int, int]:
        logged = self.work.logged
        parts = [self.parts[1], self.tables, self.activations, *self.parts[6:]]
        if logged.consumed is not None:
            consumed = round(logged.consumed)
            parts = [MemoryPart("", consumed, consumed), self.activations]
        elif logged.beside_torch is not None:
            parts = parts[:3]
        elif (self.options.version or (0, 0)) < OLD_MEMORY:
            parts.append(self.parts[0])
        if self.has_graphs_inside:
            low, high = (self._n_graphs * each for each in _ESTIMATED)
            part = MemoryPart("", low, high)
            parts.append(self._as_logged(part, logged.estimated_graphs))
        return sum(part.low for part in parts), sum(part.high for part in parts)

    @property
    def budget(self) -> tuple[int, int]:
        low, high = (math.floor(each * (self.options.fraction or 0)) for each in self.work.capacity)
        return low, high

    @property
    def pool(self) -> tuple[int, int]:
        logged = self.work.logged
        if logged.pool is not None and self.options == self._full(self.work.options):
            return self._printed_pool or logged.pool
        low, high = self.budget[0] - self.inside[1], self.budget[1] - self.inside[0]
        measured = self._measured_pool
        if measured is None:
            return low, high
        now, was = self._loads
        if was == now:
            return measured
        if self._needs_no_more:
            return max(low, measured[0]), max(high, measured[1])
        return low, high

    @property
    def _printed_pool(self) -> tuple[int, int] | None:
        pool, longest = self.work.logged.printed_pool, self.work.logged.longest
        if pool is None or longest is None:
            return pool
        return min(max(pool[0], self.cache.bytes_of(int(longest))), pool[1]), pool[1]

    @property
    def _measured_pool(self) -> tuple[int, int] | None:
        # The log gives the size of the cache for the logged fraction; another fraction changes it.
        pool, was = self._printed_pool, self._full(self.work.logged.options).fraction or 0
        if pool is None:
            return None
        more = [((self.options.fraction or was) - was) * each for each in self.work.capacity]
        return round(pool[0] + min(more)), round(pool[1] + max(more))

    def _full(self, options: ServerOptions) -> ServerOptions:
        work = self.work
        return of_vllm(options, work.memory, work.card, work.capability)

    @property
    def _loads(self) -> tuple[tuple[int, int, int], ...]:
        # Returns the numbers that determine the memory of activations and CUDA graphs, for this
        # start and for the logged start.
        both = self.options, self._full(self.work.logged.options)
        return tuple(
            (each.chunk or 0, each.sequences or 0, 0 if each.is_eager else each.captured or 0)
            for each in both
        )

    @property
    def _needs_no_more(self) -> bool:
        """True if activations and CUDA graphs need at most the memory of the start in the log."""
        return all(each <= before for each, before in zip(*self._loads, strict=True))

    def with_options(self, **given: float | None) -> _Start:
        """Return the start with the user's options, but with the values in `given` for some."""
        options = replace(self.work.options, **given)  # type: ignore[arg-type]
        return replace(self, options=self._full(options))

    def fitted(self, longest: int) -> _Start:
        """Return the start with the longest sequences, at most `longest`, that fit in its cache."""
        given = {"fraction": self.options.fraction, "sequences": self.options.sequences}
        start = self.with_options(longest=longest, **given)
        while 0 < (held := start.cache.longest_in(start.pool[0])) < longest:
            # In older releases of vLLM, the length of sequences determines the activations.
            longest = held
            start = self.with_options(longest=longest, **given)
        return start

    @property
    def cache(self) -> PagedCache:
        sizes = self.work.sizes
        longest = self.options.longest or sizes.longest or self.work.tokens
        version = self.options.version or (0, 0)
        return PagedCache(sizes, self.work.computed_in, longest, self.options.chunk or 1, version)

    @property
    def room(self) -> tuple[int, int]:
        logged = self.work.logged
        if logged.room is not None:
            return logged.room
        if logged.pool is not None and logged.longest is not None and self.cache.is_uniform:
            return int(logged.longest), int(logged.longest)
        return self.cache.tokens(*self.pool)

    @property
    def safe_fraction(self) -> float:
        # Graphs can be larger than the estimate that vLLM subtracts, so they are counted here too.
        outside = [self.parts[0], self.graphs, *self.parts[6:]]
        low, logged = self.work.capacity[0], self.work.logged
        safe = 1 - sum(part.high for part in outside) / low
        if logged.free is not None:  # the logged start failed because of other processes
            safe = min(safe, (logged.free - DECIMALS - self.graphs.high) / low)
        safe = max(math.floor(safe * 100), 0) / 100
        is_proved = logged.has_started and self._needs_no_more
        return max(safe, logged.options.fraction or 0) if is_proved else safe


def vllm(work: ServingWork) -> Needs:
    """Estimate the memory of a vLLM server."""
    options, card = work.options, (work.memory, work.card, work.capability)
    asked = _Start(work, of_vllm(options, *card))
    # The advice limits the number of sequences, and so activations and graphs.
    few = {"sequences": options.sequences or work.batch}
    largest = asked.with_options(**few).safe_fraction
    at_largest = asked.with_options(fraction=largest, **few)
    model = work.sizes.longest or work.tokens
    held = at_largest.fitted(model)
    longest = held.cache.longest_in(held.pool[0])
    proposed, logged = options.fraction, work.logged
    if logged.refusal:
        proposed = asked.options.fraction if (logged.cache or 0) > 0 else None
    fraction = min(proposed or largest, largest)
    pasted = asked.with_options(fraction=fraction, longest=options.longest or work.tokens, **few)
    if options.longest is not None:
        pasted = pasted.fitted(options.longest)
    length = max(pasted.options.longest or 1, work.tokens)
    pasted = replace(pasted, options=replace(pasted.options, longest=length))
    needed = max(asked.parts[3].high, pasted.cache.bytes_of(length))
    least = math.ceil((pasted.inside[1] + needed) / work.capacity[0] * 100) / 100
    outside = (0, 0) if asked.has_graphs_inside else (asked.graphs.low, asked.graphs.high)
    cards = parallel_option(work, "--tensor-parallel-size")
    limits = f"--max-model-len {length} --max-num-seqs {pasted.options.sequences}"
    advice = Largest(
        "--gpu-memory-utilization",
        largest,
        at_largest.cache.tokens(*at_largest.pool),
        longest,
        "--max-model-len",
        beside="" if options.sequences else f"--max-num-seqs {work.batch}",
        has_to_be_set=longest < (options.longest or model),
    )
    return Needs(
        engine="vllm",
        parts=asked.parts,
        source="vLLM, Conserving Memory and determine_available_memory; public start-up logs",
        taken=(asked.budget[0] + outside[0], asked.budget[1] + outside[1]),
        loaded_beside=asked.loaded_beside,
        pool=asked.pool,
        room=asked.room,
        largest=advice,
        paste=f"{cards}--gpu-memory-utilization {fraction:.2f} {limits}"
        f"{options_again(options, 'vllm')}"
        if pasted.pool[0] >= needed
        else "",
        least=f"--gpu-memory-utilization {least:.2f}, or --kv-cache-memory-bytes {needed}"
        if least < 1
        else "",
        notes=_notes(asked),
        doubt=doubt_of(work, advice),
    )


def _notes(start: _Start) -> tuple[str, ...]:
    options = start.options
    version = ".".join(map(str, options.version or ()))
    how = "LLM()" if options.is_offline else "vllm serve"
    note = (
        f"defaults of {how} {version} on this card: --gpu-memory-utilization {options.fraction}, "
    )
    note += f"--max-num-seqs {options.sequences}, --max-num-batched-tokens {options.chunk}"
    if any(start.work.encoder) and not options.has_text_only:
        beside = "the profiling run with images is not counted; --language-model-only omits both"
        return note, f"an encoder of images is counted with the tables; {beside}"
    return (note,)
