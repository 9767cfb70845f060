"""The few settings that commands try by default, where a full search would take too long.

Options that limit the process (memory fraction, reserve) and options of pinned memory stay as
recorded; only the division of memory into segments and blocks varies.  Expandable segments are not
proposed for a program with Windows paths, since PyTorch ignores them there.  For builds other than
CUDA's, options that the build does not read are not proposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from allocsim.core import (
    LARGE_BUFFER,
    MIN_LARGE_ALLOC,
    OPTIONS,
    ROUND_LARGE,
    SMALL_SIZE,
    UNLIMITED,
    AllocatorConfig,
    Release,
    parse_conf,
)
from allocsim.errors import ConfigError
from allocsim.metrics import lifetimes_of, merged, sizes_of
from allocsim.recommend.candidates import candidates
from allocsim.recording import options_read
from allocsim.replaying import Prepared
from allocsim.simulation import Setting
from allocsim.units import MIB, round_up

__all__ = [
    "allows_expandable",
    "is_fitted",
    "proposals",
    "read_alike",
    "rescues",
    "usual_settings",
]

_USUAL = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "large_segment_size_mb:512",
    "roundup_power2_divisions:2",
    "roundup_power2_divisions:8",
)
_BESIDE = ("large_segment_size_mb:64", "expandable_segments:True,large_segment_size_mb:64")
"""Further proposals: settings that often win where the usual ones do not (traces/)."""

_PARTS = (1, 2)
"""Numbers of segments that fitted sizes should need for the requests that share segments."""


def usual_settings(recorded: AllocatorConfig, *, expandable: bool = True) -> tuple[Setting, ...]:
    """Return the usual settings that the release of `recorded` accepts and that differ from it.

    expandable: allow expandable segments.
    """
    return tuple(_accepted(_USUAL, recorded, expandable=expandable))


def proposals(
    parts: Sequence[Prepared], recorded: AllocatorConfig, *, expandable: bool = True
) -> tuple[Setting, ...]:
    """Return the settings among which a recommendation for devices of one program is chosen.

    These are the usual settings, and some with values fitted to the requests of the first half of
    each recording.  recorded, expandable: as for `usual_settings`.
    """
    may_expand = expandable and all(allows_expandable(part) for part in parts)
    options = (*_USUAL, *_BESIDE, *_fitted(parts))
    found = dict.fromkeys(_accepted(options, recorded, expandable=may_expand))
    return read_alike(found, parts, recorded)


def rescues(
    parts: Sequence[Prepared], recorded: AllocatorConfig, *, expandable: bool = True
) -> tuple[Setting, ...]:
    """Return further settings that may avoid an error that no proposal avoids."""
    may_expand = expandable and all(allows_expandable(part) for part in parts)
    sizes = merged(tuple(sizes_of(part) for part in parts))
    found = candidates(sizes, recorded, expandable=may_expand, limits=False)
    return read_alike(found, parts, recorded)


def read_alike(
    settings: Iterable[Setting], parts: Sequence[Prepared], recorded: AllocatorConfig
) -> tuple[Setting, ...]:
    """Drop settings that change an option which the program's build of PyTorch does not read.

    CUDA's build reads all options; other builds are recognised by names in stacks.
    """
    known = [options_read(part.trace.frame_table) for part in parts]
    unread = {name for each in known if each is not None for name in OPTIONS.keys() - each}
    fields = {OPTIONS[name].field for name in unread} - {""}

    def is_read(setting: Setting) -> bool:
        config = setting.config(recorded.release)
        return all(getattr(config, field) == getattr(recorded, field) for field in fields)

    return tuple(each for each in settings if not fields or is_read(each))


def allows_expandable(prepared: Prepared) -> bool:
    """Return False if paths show a platform on which PyTorch ignores expandable segments."""
    return not prepared.trace.frame_table.has_windows_paths


def is_fitted(setting: Setting, base: Setting, release: Release) -> bool:
    """Return True if a value of `setting` is derived from the sizes of a recording.

    Sizes that are not powers of two, rounding by intervals, and limits count as fitted, unless
    `base` has the same value.
    """
    config, own = setting.config(release), base.config(release)
    sizes = (
        (config.max_split_size, own.max_split_size),
        (config.large_segment_size, own.large_segment_size),
    )
    if any(size not in (before, UNLIMITED, LARGE_BUFFER) and not _is_round(size)
           for size, before in sizes):  # fmt: skip
        return True
    rounding = config.roundup_power2_divisions
    if len(set(rounding)) > 1 and rounding != own.roundup_power2_divisions:
        return True
    limits = (setting.fraction(release), config.garbage_collection_threshold)
    return limits != (base.fraction(release), own.garbage_collection_threshold)


def _is_round(size: int) -> bool:
    """Return True if a size is a power of two."""
    return size & (size - 1) == 0


def _accepted(
    options: Iterable[str], recorded: AllocatorConfig, *, expandable: bool
) -> Iterator[Setting]:
    kept = str(recorded.with_default_cuts())
    for option in options:
        if "expandable_segments" in option and not expandable:
            continue
        conf = ",".join(part for part in (option, kept) if part)
        try:
            config = parse_conf(conf, recorded.release)
        except ConfigError:
            continue
        if str(config) != str(recorded):
            yield Setting(conf)


def _fitted(parts: Sequence[Prepared]) -> Iterator[str]:
    """Yield segment sizes that hold the peak of the requests of 1 to 10 MiB in one or two parts."""
    peak = max(_shared_peak(part) for part in parts)
    for count in _PARTS:
        size = round_up(-(-peak // count), ROUND_LARGE)
        if size >= MIN_LARGE_ALLOC + ROUND_LARGE and size != LARGE_BUFFER and not _is_round(size):
            yield f"large_segment_size_mb:{size // MIB}"


def _shared_peak(prepared: Prepared) -> int:
    """Return the peak of live requests that share segments, over the first half."""
    lives = lifetimes_of(prepared.trace)
    shares = (lives.size > SMALL_SIZE) & (lives.size < MIN_LARGE_ALLOC)
    return lives.peak_bytes_among(shares & (lives.start < len(prepared.trace) // 2))
