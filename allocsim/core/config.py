"""Settings of one allocator: the values of PYTORCH_CUDA_ALLOC_CONF.

A program can set a new option string (conf) at run time.  This resets max_split_size,
roundup_power2_divisions and garbage_collection_threshold (from PyTorch 2.11 on also
max_non_split_rounding), and keeps all other options.  The parser is in option_string.py.  Source:
semantics 1.2, 8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from allocsim.core.constants import (
    LARGE_BUFFER,
    LARGEST_CARD,
    MIN_BLOCK_SIZE,
    MIN_LARGE_ALLOC,
    N_ROUNDUP_INTERVALS,
    PAGE,
    ROUND_LARGE,
    ROUNDUP_FIRST_BIT,
    SMALL_BUFFER,
    SMALL_SIZE,
    UNLIMITED,
    UNLIMITED_DEVICE,
)
from allocsim.core.options import OPTIONS, Role
from allocsim.core.releases import Release
from allocsim.units import MIB, round_up

NO_DIVISIONS = (0,) * N_ROUNDUP_INTERVALS

MAX_KEPT: Final = 1 << 16
"""Maximum number of sizes in the cache `RoundedSizes`; a program requests hundreds of sizes."""


@dataclass(frozen=True, slots=True)
class AllocatorConfig:
    """Options that the native allocator reads; sizes are in bytes.

    release: PyTorch release whose rules apply.
    text: option string (conf) as the user wrote it; snapshots contain it.

    The other fields are the options of the same name, documented by PyTorch.  A size without `_mb`
    in its name is the option with `_mb`, converted to bytes.

    Mirrors: CUDAAllocatorConfig
    """

    release: Release
    text: str = ""
    max_split_size: int = UNLIMITED
    max_non_split_rounding: int = LARGE_BUFFER
    large_segment_size: int = LARGE_BUFFER
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: tuple[int, ...] = NO_DIVISIONS
    expandable_segments: bool = False
    per_process_memory_fraction: float = 1.0
    throw_on_cudamalloc_oom: bool = False
    graph_capture_record_stream_reuse: bool = False
    expandable_segments_reserve: tuple[float, str] | None = None
    """Option as (number, unit): unit "" for a fraction of the device, "G" for GiB."""
    host: dict[str, int | bool] = field(default_factory=dict)
    """Values of options that do not affect device memory, keyed by the name of the option."""

    # -- used by the allocator -----------------------------------------------------------

    def round_size(self, size: int) -> int:
        """Return the block size for a request of `size` bytes, which must be positive.

        Source: semantics 1.2.
        """
        return round_up(size, self.rounding_step(size))

    def rounding_step(self, size: int) -> int:
        """Return the bytes of the unit to which a request of `size` bytes is rounded up.

        Source: semantics 1.2.
        """
        divisions = self.divisions_of(size)  # 0 if the option is not set
        # Up to PyTorch 2.3 one division leaves a size unrounded; later it has no effect.
        is_effective = divisions > (0 if self.release.one_division_keeps_size else 1)
        if is_effective and size > MIN_BLOCK_SIZE * divisions:
            return _power2_step(size, divisions)
        return MIN_BLOCK_SIZE

    def largest_raw(self, rounded: int) -> int:
        """Return the largest request, in bytes, that is rounded to at most `rounded` bytes."""
        # Bisection: rounding never decreases as requests grow.
        low, high = 0, rounded
        while low < high:
            middle = (low + high + 1) // 2
            if self.round_size(middle) <= rounded:
                low = middle
            else:
                high = middle - 1
        return low

    def divisions_of(self, size: int) -> int:
        """Return the value of roundup_power2_divisions for a request of `size` bytes.

        Mirrors: CUDAAllocatorConfig::roundup_power2_divisions
        """
        interval = size.bit_length() - 1 - ROUNDUP_FIRST_BIT
        return self.roundup_power2_divisions[min(max(interval, 0), N_ROUNDUP_INTERVALS - 1)]

    @property
    def rounds_to_quantum(self) -> bool:
        """True if every rounded size is a multiple of 512 bytes (semantics.md, section 1.2)."""
        return not (self.release.one_division_keeps_size and 1 in self.roundup_power2_divisions)

    @property
    def rounds_to_power2(self) -> bool:
        return any(self.roundup_power2_divisions)

    def segment_size(self, size: int) -> int:
        """Return the bytes of the segment for a request of rounded `size`.

        Source: semantics 1.4.

        Mirrors: get_allocation_size
        """
        if size <= SMALL_SIZE:
            return SMALL_BUFFER
        if size < MIN_LARGE_ALLOC:
            return self.large_segment_size
        return round_up(size, ROUND_LARGE)

    def accepts(self, size: int, block: int) -> bool:
        """Return True if a request of rounded `size` may use a block of `block` bytes.

        Source: semantics 1.6.
        """
        limit = self.max_split_size
        # An oversize request accepts a block that exceeds it by less than max_non_split_rounding.
        # Only blocks below max_split_size serve requests below it.
        if size < limit:
            return size <= block and (limit == UNLIMITED or block < limit)
        return size <= block < size + self.max_non_split_rounding

    def expandable_reserve(self, total: int) -> int:
        """Return the bytes of address space for an expandable segment (semantics.md, section 4.8).

        total: bytes of the device.
        """
        if self.expandable_segments_reserve is None:
            return longest_reserve(total)
        number, unit = self.expandable_segments_reserve
        wanted = number * (1024 * MIB if unit else total)
        return int(min(wanted, longest_reserve(total)))

    def with_default_cuts(self) -> AllocatorConfig:
        """Return a copy where the options that shape segments and blocks have their defaults.

        These are the options with `Role.CUTS`.
        """
        fresh = AllocatorConfig(self.release)
        cuts = [option.field for option in OPTIONS.values() if option.role is Role.CUTS]
        changes: dict[str, Any] = {name: getattr(fresh, name) for name in cuts}
        return replace(self, **changes)

    # -- shown to people -----------------------------------------------------------------

    def __str__(self) -> str:
        """Return an option string (conf) of all options without their default, in a fixed order."""
        parts = []
        if self.max_split_size != UNLIMITED:
            parts.append(f"max_split_size_mb:{self.max_split_size // MIB}")
        # Its default follows large_segment_size.
        if self.max_non_split_rounding != self.large_segment_size:
            parts.append(f"max_non_split_rounding_mb:{self.max_non_split_rounding // MIB}")
        if self.large_segment_size != LARGE_BUFFER:
            parts.append(f"large_segment_size_mb:{self.large_segment_size // MIB}")
        if self.garbage_collection_threshold > 0:
            parts.append(f"garbage_collection_threshold:{self.garbage_collection_threshold!r}")
        if self.rounds_to_power2:
            parts.append(f"roundup_power2_divisions:{self._divisions_text()}")
        if self.per_process_memory_fraction != 1.0:
            parts.append(f"per_process_memory_fraction:{self.per_process_memory_fraction!r}")
        if self.expandable_segments_reserve is not None:
            number, unit = self.expandable_segments_reserve
            parts.append(f"expandable_segments_reserve:{number!r}{unit}")
        for key in (
            "expandable_segments",
            "throw_on_cudamalloc_oom",
            "graph_capture_record_stream_reuse",
        ):
            if getattr(self, key):
                parts.append(f"{key}:True")
        parts.extend(f"{key}:{value}" for key, value in sorted(self.host.items()))
        return ",".join(parts)

    def inert_options(self, *, has_limit: bool) -> tuple[str, ...]:
        """Return a sentence for each option that is set without effect, given the other options.

        has_limit: True if a memory fraction limits reserved memory.
        """
        found = (look(self, has_limit) for look in _INERT.values() if look is not None)
        return tuple(text for text in found if text)

    def unsafe_options(self) -> tuple[str, ...]:
        if not self.expandable_segments or self.max_split_size == UNLIMITED:
            return ()
        return (
            f"expandable_segments:True with max_split_size_mb:{self.max_split_size // MIB}; "
            "together they stop on internal assertions in some releases and let reserved memory "
            "grow without bound",
        )

    def refused_handles(self) -> str | None:
        """Return a warning if the driver cannot map memory in units of large_segment_size_mb.

        Returns None if it can, or without expandable segments.
        """
        if not self.expandable_segments or self.large_segment_size % PAGE == 0:
            return None
        size = self.large_segment_size // MIB
        return (
            f"expandable_segments:True with large_segment_size_mb:{size}; "
            f"the driver makes handles in multiples of {PAGE // MIB} MiB, so every request that "
            'needs another one fails with "CUDA driver error: invalid argument"'
        )

    def settings(self) -> dict[str, object]:
        intervals = {str(1 << i): d for i, d in enumerate(self.roundup_power2_divisions)}
        values: dict[str, object] = {
            "PYTORCH_CUDA_ALLOC_CONF": self.text,
            "max_split_size": self.max_split_size_stat(),
            "garbage_collection_threshold": self.garbage_collection_threshold,
            "expandable_segments": self.expandable_segments,
            "pinned_num_register_threads": self.host.get("pinned_num_register_threads", 1),
            "release_lock_on_cudamalloc": bool(self.host.get("release_lock_on_cudamalloc")),
            "pinned_use_cuda_host_register": bool(self.host.get("pinned_use_cuda_host_register")),
            "graph_capture_record_stream_reuse": self.graph_capture_record_stream_reuse,
            "max_round_threshold": self._host_size("pinned_max_round_threshold_mb"),
            "max_cached_size": self._host_size("pinned_max_cached_size_mb"),
            "roundup_power2_divisions": intervals,
        }
        return {key: values[key] for key in self.release.settings_keys}

    def max_split_size_stat(self) -> int:
        """Return max_split_size in bytes as memory_stats() shows it; -1 if it is unlimited."""
        return _signed(self.max_split_size)

    def _host_size(self, key: str) -> int:
        # The option is in MiB, the result in bytes.
        if key not in self.host:
            return -1
        return _signed(min(self.host[key], UNLIMITED // MIB) * MIB)

    def _divisions_text(self) -> str:
        divisions = self.roundup_power2_divisions
        if len(set(divisions)) == 1:
            return str(divisions[0])
        # The first pair of a list also sets all smaller intervals.
        first = next(i for i in range(N_ROUNDUP_INTERVALS) if divisions[i] != divisions[0]) - 1
        pairs = [f"{1 << first}:{divisions[0]}"]
        later = range(first + 1, N_ROUNDUP_INTERVALS)
        pairs.extend(f"{1 << i}:{divisions[i]}" for i in later if divisions[i])
        return f"[{','.join(pairs)}]"


class RoundedSizes(dict[int, int]):
    """Cache of `config.round_size`: a dictionary from requested bytes to block size.

    A size of 0 or less is not a request and maps to `UNLIMITED`, which fits in no block.
    """

    def __init__(self, config: AllocatorConfig) -> None:
        super().__init__()
        self._config = config
        self._is_plain = not config.rounds_to_power2

    def __missing__(self, size: int) -> int:
        if size <= 0:
            rounded = UNLIMITED
        elif self._is_plain:  # the last case of rule 1.2; no other can apply
            rounded = round_up(size, MIN_BLOCK_SIZE)
        else:
            rounded = self._config.round_size(size)
        if len(self) < MAX_KEPT:
            self[size] = rounded
        return rounded


def _inert_threshold(config: AllocatorConfig, has_limit: bool) -> str:
    if config.garbage_collection_threshold <= 0 or has_limit:
        return ""
    hint = "set_per_process_memory_fraction"
    if "per_process_memory_fraction" in config.release.options:
        hint += " or per_process_memory_fraction below 1.0"
    return f"garbage_collection_threshold has no effect without a memory fraction ({hint})"


def _inert_rounding(config: AllocatorConfig, _: bool) -> str:
    is_plain = not config.release.one_division_keeps_size and config.rounds_to_power2
    if not is_plain or max(config.roundup_power2_divisions) != 1:
        return ""
    return f"roundup_power2_divisions:1 rounds like the default in release {config.release.version}"


def _inert_waste(config: AllocatorConfig, _: bool) -> str:
    is_set = config.max_non_split_rounding != config.large_segment_size
    if not is_set or config.max_split_size != UNLIMITED:
        return ""
    return "max_non_split_rounding_mb has no effect without max_split_size_mb"


def _inert_reserve(config: AllocatorConfig, _: bool) -> str:
    if config.expandable_segments_reserve is None or config.expandable_segments:
        return ""
    return "expandable_segments_reserve has no effect without expandable_segments"


def _inert_throw(config: AllocatorConfig, _: bool) -> str:
    if not config.throw_on_cudamalloc_oom or config.per_process_memory_fraction >= 1.0:
        return ""
    return (
        "throw_on_cudamalloc_oom has no effect with per_process_memory_fraction: the "
        "ordinary limit of the same size is tested first"
    )


_INERT: dict[str, Callable[[AllocatorConfig, bool], str] | None] = {
    "garbage_collection_threshold": _inert_threshold,
    "roundup_power2_divisions": _inert_rounding,
    "max_non_split_rounding_mb": _inert_waste,
    "expandable_segments_reserve": _inert_reserve,
    "throw_on_cudamalloc_oom": _inert_throw,
    "max_split_size_mb": None,
    "large_segment_size_mb": None,
    "expandable_segments": None,
    "per_process_memory_fraction": None,
    "graph_capture_record_stream_reuse": None,
}
"""For each option, a function that returns the reason why it has no effect, or "" if it has one.

The second argument of the function is True if a memory fraction limits reserved memory.  An option
with None instead of a function always has an effect.
"""


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _power2_step(size: int, divisions: int) -> int:
    """Return the step in bytes to which roundup_power2_divisions rounds a request of `size` bytes.

    The step is the largest power of two up to `size`, divided by `divisions`.  It is at least 512,
    because callers pass a `size` above 512 * `divisions`.  For 1 division the result is 1: the size
    stays unrounded.  Source: semantics 1.2.

    Mirrors: roundup_power2_next_division
    """
    if divisions == 1:
        return 1
    return (1 << (size.bit_length() - 1)) // divisions


def longest_reserve(total: int) -> int:
    """Return the most address space, in bytes, that PyTorch reserves for an expandable segment.

    This is 9/8 of `total`, the bytes of the device (semantics.md, section 4.1).  A device without a
    limit counts as `LARGEST_CARD`, because addresses and sort keys must fit machine words.
    """
    card = total if total < UNLIMITED_DEVICE else LARGEST_CARD
    return card + card // 8
