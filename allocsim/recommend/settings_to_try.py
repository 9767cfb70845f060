"""Candidate settings: every option of a PyTorch release, with values from recorded sizes.

Unsafe combinations are not proposed, such as expandable_segments with max_split_size_mb.  Options
without an effect on device memory, and options in `UNTRIED`, stay as recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

import numpy as np

from allocsim.core import (
    LARGE_BUFFER,
    MIN_LARGE_ALLOC,
    N_ROUNDUP_INTERVALS,
    NO_DIVISIONS,
    OPTIONS,
    ROUND_LARGE,
    ROUNDUP_FIRST_BIT,
    SMALL_SIZE,
    UNLIMITED,
    AllocatorConfig,
    Release,
    parse_conf,
)
from allocsim.errors import ConfigError
from allocsim.metrics import Sizes, lifetimes_of, merged, sizes_of
from allocsim.recording import Action, options_read
from allocsim.replaying import Prepared
from allocsim.simulation import IN_STRING, Setting, in_option_string
from allocsim.units import MIB, round_up

UNTRIED: dict[str, str] = {
    "throw_on_cudamalloc_oom": "refuses more requests and serves none that fails without it",
    "expandable_segments_reserve": "reserves addresses, not memory",
    "graph_capture_record_stream_reuse": "a recording does not show which blocks a capture reuses",
}
"""Options that affect device memory and are never varied: dictionary from an option to the reason.

docs/commands/tune.md lists them.
"""

_SPLITS, _SEGMENTS, _LIMITS = 10, 8, 3
_SCALARS = (2, 4, 8, 16, 32, 64)
_LIST_DIVISIONS = (4, 8)
_PAIRED = 4  # number of an option's values that are combined with the values of another option

_Change = dict[str, object]  # fields of `AllocatorConfig` that differ from the base setting
_Value = TypeVar("_Value")


def candidates(
    sizes: Sizes,
    recorded: AllocatorConfig,
    *,
    device_memory: int | None = None,
    expandable: bool = True,
    limits: bool = True,
) -> tuple[Setting, ...]:
    """Return the settings to try in the PyTorch release of `recorded`, simplest first.

    sizes: sizes of the recorded requests, from which values of options are derived.
    recorded: allocator settings of the recorded run.
    device_memory: bytes of the device.  None if unknown; then no memory fraction is tried.
    expandable: False to leave out settings with expandable segments.
    limits: False to try no memory fraction and no garbage collection.
    """
    grid = _Grid(sizes, recorded.release)
    base = recorded.with_default_cuts()
    changes: list[_Change] = [{}, *grid.singles(expandable), *grid.combined(expandable)]
    found = [_setting(base, change) for change in changes]
    if limits and device_memory is not None:
        found += _settings_with_limit(base, sizes, device_memory)
    return tuple(dict.fromkeys(setting for setting in found if setting is not None))


def _setting(base: AllocatorConfig, change: _Change) -> Setting | None:
    # The default of max_non_split_rounding_mb follows large_segment_size_mb.
    if "large_segment_size" in change and "max_non_split_rounding" not in change:
        change = {**change, "max_non_split_rounding": change["large_segment_size"]}
    config = replace(base, **change)  # type: ignore[arg-type]
    setting = Setting(_shortest_conf(config))
    try:
        meant = setting.config(base.release)
    except ConfigError:
        return None
    # In some PyTorch releases, this combination of values cannot be written as a conf.
    return setting if replace(meant, text=config.text) == config else None


def _shortest_conf(config: AllocatorConfig) -> str:
    divisions = config.roundup_power2_divisions
    first, last = divisions[0], divisions[-1]
    rest = divisions.index(last)
    has_two_parts = divisions == (first,) * rest + (last,) * (len(divisions) - rest)
    if first == last or not last or not has_two_parts:
        return str(config)
    # Up to PyTorch 2.9, the key `>` overwrites the key before it (semantics.md, section 1.2).
    key = 1 << (rest if config.release.list_tail_overwrites_last else rest - 1)
    plain_text = str(replace(config, roundup_power2_divisions=NO_DIVISIONS))
    rounding = f"roundup_power2_divisions:[{key}:{first},>:{last}]"
    return f"{rounding},{plain_text}" if plain_text else rounding


@dataclass(frozen=True, slots=True)
class _Grid:
    sizes: Sizes  # request sizes of the recording, from which values of options are derived
    release: Release

    def singles(self, expandable: bool) -> Iterator[_Change]:
        if expandable:
            yield {"expandable_segments": True}
        yield from self._segments()
        yield from self._roundings()
        yield from self._splits()

    def combined(self, expandable: bool) -> Iterator[_Change]:
        segments, roundings, splits = self._segments(), self._roundings(), self._splits()
        if expandable:
            grows: list[_Change] = [{"expandable_segments": True}]
            yield from _pairs(grows, segments)
            yield from _pairs(grows, roundings)
            yield from _pairs(_pairs(grows, segments[:_PAIRED]), roundings[:_PAIRED])
        for split in splits:
            yield from _pairs([split], self._rounding_limits(split))
        yield from _pairs(splits, segments[:_PAIRED])
        yield from _pairs(_spread(splits, _PAIRED), roundings[:_PAIRED])
        yield from _pairs(segments[:_PAIRED], roundings[:_PAIRED])

    def _splits(self) -> list[_Change]:
        # Values just above large request sizes.  Of many sizes, those are chosen that divide the
        # requested bytes into equal parts.
        sizes = [(size, size * count) for size, count in self.sizes.counts if size >= LARGE_BUFFER]
        least = LARGE_BUFFER // MIB + (not self.release.thresholds_inclusive)
        values = {least} if self.sizes.counts else set()
        total, seen = sum(weight for _, weight in sizes), 0
        for size, weight in sizes[:-1]:
            before, seen = seen, seen + weight
            is_few = len(sizes) < _SPLITS - 1
            if is_few or seen * (_SPLITS - 1) // total > before * (_SPLITS - 1) // total:
                values.add(max(least, size // MIB + 1))
        if sizes:
            values.add(max(least, sizes[-1][0] // MIB))  # only the largest requests are oversize
        return [{"max_split_size": value * MIB} for value in sorted(values)[:_SPLITS]]

    def _rounding_limits(self, split: _Change) -> list[_Change]:
        # The values are differences between segments of oversize requests and smaller requests.
        limit = split["max_split_size"]
        assert isinstance(limit, int)
        sizes = [size for size, _ in self.sizes.counts if size >= limit]
        segments = sorted({round_up(size, ROUND_LARGE) for size in sizes})
        gaps = {(s - size) // MIB + 1 for size in sizes for s in segments if s > size}
        least = LARGE_BUFFER // MIB + 1
        values = _spread(sorted(gap for gap in gaps if gap >= least), _LIMITS)
        return [{"max_non_split_rounding": value * MIB} for value in values]

    def _segments(self) -> list[_Change]:
        # Sizes with which a few segments hold the peak of all requests that share segments.
        peak = self.sizes.peak_middle
        least = MIN_LARGE_ALLOC + ROUND_LARGE
        shares = [round_up(-(-peak // k), ROUND_LARGE) for k in (1, 2, 3, 4, 6, 8, 12, 16)]
        usual = [64 * MIB, least, 32 * MIB]
        values = [v for v in dict.fromkeys([*usual, *shares]) if v >= least and v != LARGE_BUFFER]
        return [{"large_segment_size": value} for value in values[: _SEGMENTS + 2]] if peak else []

    def _roundings(self) -> list[_Change]:
        scalars = [(d,) * N_ROUNDUP_INTERVALS for d in _SCALARS]
        lists = []
        for cut in _spread(self._filled(), _PAIRED):
            for d in _LIST_DIVISIONS:
                lists.append((0,) * cut + (d,) * (N_ROUNDUP_INTERVALS - cut))
                lists.append((d,) * cut + (0,) * (N_ROUNDUP_INTERVALS - cut))
        return [{"roundup_power2_divisions": divisions} for divisions in [*scalars, *lists]]

    def _filled(self) -> list[int]:
        top = N_ROUNDUP_INTERVALS - 1
        intervals = (s.bit_length() - 1 - ROUNDUP_FIRST_BIT for s, _ in self.sizes.counts)
        return sorted({min(max(i, 0), top) for i in intervals} - {0})


def _settings_with_limit(
    base: AllocatorConfig, sizes: Sizes, memory: int
) -> Iterator[Setting | None]:
    # The limits of memory are between the peak of live requests and the recorded peak of reserved
    # memory.
    room = max(sizes.recorded_peak - sizes.peak_live, 0)
    for quarter in range(1, 4):
        wanted = sizes.peak_live + room * quarter // 4
        fraction = math.ceil(100 * wanted / memory) / 100
        if fraction < 1.0:
            yield _with_fraction(base, {}, fraction)
        whole = 0.99 if in_option_string(base.release) else 1.0
        threshold = math.floor(100 * wanted / (whole * memory)) / 100
        if 0.0 < threshold < 1.0:
            yield _with_fraction(base, {"garbage_collection_threshold": threshold}, whole)


def _with_fraction(base: AllocatorConfig, change: _Change, fraction: float) -> Setting | None:
    if in_option_string(base.release):
        return _setting(base, {**change, IN_STRING: fraction})
    setting = _setting(base, change)
    return None if setting is None else replace(setting, call_fraction=fraction)


def _pairs(changes: Iterable[_Change], others: Iterable[_Change]) -> list[_Change]:
    return [{**one, **other} for one, other in product(changes, others)]


def _spread(values: list[_Value], count: int) -> list[_Value]:
    if len(values) <= count:
        return values
    return [values[i * (len(values) - 1) // (count - 1)] for i in range(count)]


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
"""Settings that `proposals` adds to `_USUAL`.

On several recordings in traces/, they help and no setting in `_USUAL` does.
"""

_PARTS = (1, 2)
"""Divisors of the peak memory of requests from 1 to 10 MiB, which share segments.

Each quotient is a value to try for large_segment_size_mb, so that one or two segments hold the
peak.
"""


def usual_settings(recorded: AllocatorConfig, *, expandable: bool = True) -> tuple[Setting, ...]:
    """Return common settings, such as expandable segments, that differ from the recorded one."""
    return tuple(_accepted(_USUAL, recorded, expandable=expandable))


def proposals(
    parts: Sequence[Prepared], recorded: AllocatorConfig, *, expandable: bool = True
) -> tuple[Setting, ...]:
    """Return the settings from which a recommendation for a recorded program is chosen.

    They are `usual_settings`, and a few settings whose values are derived from the requests in the
    first half of the recording.

    parts: recorded devices of the program.
    recorded: allocator settings of the recorded run.
    expandable: False to leave out settings with expandable segments.
    """
    may_expand = expandable and all(allows_expandable(part) for part in parts)
    options = (*_USUAL, *_BESIDE, *_fitted_confs(parts))
    found = dict.fromkeys(_accepted(options, recorded, expandable=may_expand))
    return applicable_settings(found, parts, recorded)


def rescues(
    parts: Sequence[Prepared], recorded: AllocatorConfig, *, expandable: bool = True
) -> tuple[Setting, ...]:
    """Return further settings, which may avoid an out-of-memory error if all `proposals` fail."""
    may_expand = expandable and all(allows_expandable(part) for part in parts)
    sizes = merged(tuple(sizes_of(part) for part in parts))
    found = candidates(sizes, recorded, expandable=may_expand, limits=False)
    return applicable_settings(found, parts, recorded)


def applicable_settings(
    settings: Iterable[Setting], parts: Sequence[Prepared], recorded: AllocatorConfig
) -> tuple[Setting, ...]:
    """Return the settings that change only options which the recorded build of PyTorch supports."""
    known = [options_read(part.trace.frame_table) for part in parts]
    unread = {name for each in known if each is not None for name in OPTIONS.keys() - each}
    fields = {OPTIONS[name].field for name in unread} - {""}

    def is_read(setting: Setting) -> bool:
        config = setting.config(recorded.release)
        return all(getattr(config, field) == getattr(recorded, field) for field in fields)

    return tuple(each for each in settings if not fields or is_read(each))


def allows_expandable(prepared: Prepared) -> bool:
    """Return False for a recording from Windows, where PyTorch has no expandable segments."""
    return not prepared.trace.frame_table.has_windows_paths


def is_fitted(setting: Setting, base: Setting, release: Release) -> bool:
    """Return True if `setting` seems to have a value that was derived from recorded sizes.

    Such values are lists, fractions, thresholds, and sizes that are not powers of two.
    base: present setting; values that are equal in both settings do not count.
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


def _fitted_confs(parts: Sequence[Prepared]) -> Iterator[str]:
    peak = max(_shared_peak(part) for part in parts)
    for count in _PARTS:
        size = round_up(-(-peak // count), ROUND_LARGE)
        if size >= MIN_LARGE_ALLOC + ROUND_LARGE and size != LARGE_BUFFER and not _is_round(size):
            yield f"large_segment_size_mb:{size // MIB}"


def _shared_peak(prepared: Prepared) -> int:
    # Only requests of 1 to 10 MiB share a segment of large_segment_size_mb.
    lives = lifetimes_of(prepared.trace)
    shares = (lives.size > SMALL_SIZE) & (lives.size < MIN_LARGE_ALLOC)
    return lives.peak_bytes_among(shares & (lives.start < len(prepared.trace) // 2))


@dataclass(frozen=True, slots=True)
class Overflow:
    """Peak of live memory that exceeds the memory of a device.

    entry: index of the history entry at which the peak is reached.
    live_bytes: bytes of the live blocks at `entry`, and of the failed request if there is one.
    room_bytes: memory of the device without the CUDA context.
    """

    entry: int
    live_bytes: int
    room_bytes: int


def overflow_of(prepared: Prepared, memory: int | None) -> Overflow | None:
    """Return the peak of live blocks and failed requests if it exceeds `memory`, else None.

    memory: bytes of the device; None if unknown, which counts as unlimited.
    """
    if memory is None:
        return None
    failed = np.flatnonzero(prepared.trace.action == Action.OOM).tolist()
    lives = lifetimes_of(prepared.trace, answered=failed, until=Action.FREE_REQUESTED)
    room = memory - prepared.context_memory
    return Overflow(lives.peak_entry, lives.peak_bytes, room) if lives.peak_bytes > room else None


def entries_left(prepared: Prepared) -> int | None:
    """Return the number of entries after the last recorded `oom` entry; None if there is none."""
    ooms = np.flatnonzero(prepared.trace.action == Action.OOM)
    return len(prepared.trace) - 1 - int(ooms[-1]) if len(ooms) else None


def was_refused(prepared: Prepared, oom_entry: int | None) -> bool:
    """Return True if a recorded request failed although the device had room.

    Then no allocator setting can help, since something else refused the request.
    oom_entry: index of the recorded entry of the request; the result for None is False.
    """
    if oom_entry is None:
        return False
    trace, at_start = prepared.trace, prepared.in_force(prepared.recorded)
    is_limited = prepared.plan.limit is not None or at_start.fraction(prepared.release) is not None
    if is_limited or trace.action[oom_entry] != Action.OOM:
        return False
    tried = prepared.config.segment_size(int(trace.size[oom_entry]))
    return int(trace.addr[oom_entry]) >= tried
