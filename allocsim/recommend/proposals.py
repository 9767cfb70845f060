"""The few settings that commands replay by default, because a full search would take too long.

An error that no setting can avoid needs no replay: `overflows` and `was_refused` recognise it.

Only options that cut memory into segments and blocks vary.  Options that limit the process (memory
fraction, reserve) and options of pinned memory stay as recorded.  Expandable segments are not
proposed for a program with Windows paths, since PyTorch ignores them there.  Options that the
program's build of PyTorch does not read, such as a build for ROCm, are not proposed either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

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
from allocsim.recording import Action, options_read
from allocsim.replaying import Prepared
from allocsim.simulation import Setting
from allocsim.units import MIB, round_up

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
"""Further proposals, which win on several recordings in traces/ where no usual setting does."""

_PARTS = (1, 2)
"""Fitted segment sizes have room for the peak of the shared requests in this number of segments."""


def usual_settings(recorded: AllocatorConfig, *, expandable: bool = True) -> tuple[Setting, ...]:
    """Return the usual settings that the release accepts and that differ from `recorded`.

    recorded: settings in force in the recording.
    expandable: False to leave out expandable segments.
    """
    return tuple(_accepted(_USUAL, recorded, expandable=expandable))


def proposals(
    parts: Sequence[Prepared], recorded: AllocatorConfig, *, expandable: bool = True
) -> tuple[Setting, ...]:
    """Return the settings from which a recommendation is chosen.

    They are the usual settings, and a few with values fitted to the requests in the first half of
    the recording.

    parts: devices of one program.
    recorded: settings in force in the recording.
    expandable: False to leave out expandable segments.
    """
    may_expand = expandable and all(allows_expandable(part) for part in parts)
    options = (*_USUAL, *_BESIDE, *_fitted(parts))
    found = dict.fromkeys(_accepted(options, recorded, expandable=may_expand))
    return read_alike(found, parts, recorded)


def rescues(
    parts: Sequence[Prepared], recorded: AllocatorConfig, *, expandable: bool = True
) -> tuple[Setting, ...]:
    """Return further settings that may avoid an out-of-memory error that no proposal avoids.

    The parameters are those of `proposals`.
    """
    may_expand = expandable and all(allows_expandable(part) for part in parts)
    sizes = merged(tuple(sizes_of(part) for part in parts))
    found = candidates(sizes, recorded, expandable=may_expand, limits=False)
    return read_alike(found, parts, recorded)


def read_alike(
    settings: Iterable[Setting], parts: Sequence[Prepared], recorded: AllocatorConfig
) -> tuple[Setting, ...]:
    """Return the settings without those that change an option the build of PyTorch does not read.

    The build for CUDA reads all options; other builds are recognised by names in stacks.
    """
    known = [options_read(part.trace.frame_table) for part in parts]
    unread = {name for each in known if each is not None for name in OPTIONS.keys() - each}
    fields = {OPTIONS[name].field for name in unread} - {""}

    def is_read(setting: Setting) -> bool:
        config = setting.config(recorded.release)
        return all(getattr(config, field) == getattr(recorded, field) for field in fields)

    return tuple(each for each in settings if not fields or is_read(each))


def allows_expandable(prepared: Prepared) -> bool:
    """Return False if file paths show Windows, where PyTorch ignores expandable segments."""
    return not prepared.trace.frame_table.has_windows_paths


def is_fitted(setting: Setting, base: Setting, release: Release) -> bool:
    """Return True if a value of `setting` looks derived from the sizes of a recording.

    These are sizes that are not powers of two, a list of roundup_power2_divisions, memory fractions
    and garbage collection thresholds, unless `base` has the same value.
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
    """Yield confs whose large segments hold the peak of the requests of 1 to 10 MiB."""
    peak = max(_shared_peak(part) for part in parts)
    for count in _PARTS:
        size = round_up(-(-peak // count), ROUND_LARGE)
        if size >= MIN_LARGE_ALLOC + ROUND_LARGE and size != LARGE_BUFFER and not _is_round(size):
            yield f"large_segment_size_mb:{size // MIB}"


def _shared_peak(prepared: Prepared) -> int:
    """Return the peak bytes of the live requests of 1 to 10 MiB in the recording's first half."""
    lives = lifetimes_of(prepared.trace)
    shares = (lives.size > SMALL_SIZE) & (lives.size < MIN_LARGE_ALLOC)
    return lives.peak_bytes_among(shares & (lives.start < len(prepared.trace) // 2))


def overflows(prepared: Prepared, memory: int | None) -> bool:
    """Return True if the live requests, including failed requests, exceed `memory` bytes.

    memory: bytes of the device; None if unknown.
    """
    if memory is None:
        return False
    failed = np.flatnonzero(prepared.trace.action == Action.OOM).tolist()
    lives = lifetimes_of(prepared.trace, answered=failed, until=Action.FREE_REQUESTED)
    return lives.peak_bytes > memory - prepared.context_memory


def was_refused(prepared: Prepared, oom_entry: int | None) -> bool:
    """Return True if the request at `oom_entry` failed although the device had room for it.

    oom_entry: first entry that fails in the baseline; None if no entry does.
    """
    if oom_entry is None:
        return False
    trace, at_start = prepared.trace, prepared.in_force(prepared.recorded)
    is_limited = prepared.plan.limit is not None or at_start.fraction(prepared.release) is not None
    if is_limited or trace.action[oom_entry] != Action.OOM:
        return False
    tried = prepared.config.segment_size(int(trace.size[oom_entry]))
    return int(trace.addr[oom_entry]) >= tried
