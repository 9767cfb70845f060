"""Search for the best allocator setting for one or more recordings, by replays."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from allocsim._repr import Shown
from allocsim.analysis.tune.batches import Search, SearchProgress
from allocsim.analysis.tune.lower_bound import Bounds
from allocsim.analysis.tune.recommended import further_of, judge, propose, recommendation_of
from allocsim.analysis.tune.results import (
    Results,
    SavedTrials,
    SettingRow,
    TriedSetting,
    read_tried,
)
from allocsim.analysis.tune.target import Source, Target, edited_sources, parts_of, write_columns
from allocsim.analysis.tune.worker import EXHAUSTIVE, Tricks, can_keep
from allocsim.core import parse_conf
from allocsim.metrics import merged
from allocsim.recommend import (
    Costs,
    Recommendation,
    allows_expandable,
    applicable_settings,
    candidates,
    entries_left,
    front,
)
from allocsim.recording import Recording
from allocsim.replaying import (
    OTHER_RELEASE,
    Point,
    Prepared,
    bytes_of,
    device_of,
    is_recorded_device,
    parting_of,
)
from allocsim.simulation import Hints, Parting, Setting, releases_needed
from allocsim.units import format_size
from allocsim.workers import Crew

__all__ = [
    "EXHAUSTIVE", "SettingRow", "Tricks", "SavedTrials", "TriedSetting", "Tuning", "read_tried",
    "tune",
]  # fmt: skip

_SHOWN = 8  # number of rows in the table of a notebook


@dataclass(frozen=True, slots=True, repr=False)
class Tuning(Shown):
    """Result of a search for the best setting: the best, all tried settings, and reasons.

    device_memory: bytes of the smallest of the replayed devices; None if all are unlimited.
    baseline: results of the recorded settings, on the recorded device or a device that the user
        gave.
    rows: results of all settings, best first.
    best: recommended setting, or else the baseline; with `by_device`, the first of `rows`.  None if
        the run fails under this setting, or if `warnings` is not empty.
    front: settings that no other setting beats in memory, driver calls and retries at once.
    duplicates: (setting that was not replayed, replayed setting with the same effect).
    bounds: memory that the recorded requests need at least, and memory that suffices for them.
    costs: times of driver calls, from which the time that a setting costs is estimated.
    helps: True if `best` saves at least 1 % of memory, or avoids an error or retries.
    reason: reason for `helps`, as a sentence.
    notes: assumptions of the replays, as sentences.
    entries: number of entries of all recorded devices.
    entries_replayed: number of entries in all replays.
    entries_skipped: number of entries that replays skipped because steps repeat.
    seconds: duration of the search.
    by_device: True if settings are compared by the smallest sufficient device, and not by the peak.
    known: number of replays whose results were read from the results file.
    warnings: differences of replays under the recorded settings from the recordings; if there are
        any, the search proves nothing.
    needs: PyTorch releases that give the best setting the replayed effect, such as "PyTorch 2.11
        or later"; None if each release that may have written the first recording does.
    recommendation: recommended setting, as in `replay`, `explain` and `risk`; None with
        `by_device`.
    further: setting that reserves over 5 % less than `best`, or None.  It is not recommended, since
        its values are fitted to these recordings.
    parts: (recording, device number, device memory in bytes) of each device in the search.
    prepared: the device in the search, ready for replays; None if there are several.
    entries_left: number of entries after the last recorded error; None if the baseline succeeds.
    """

    files: tuple[str, ...]
    torch_version: str
    device_memory: int | None
    baseline: SettingRow
    rows: tuple[SettingRow, ...]
    best: SettingRow | None
    front: tuple[SettingRow, ...]
    duplicates: tuple[tuple[Setting, Setting], ...]
    bounds: Bounds
    costs: Costs
    helps: bool
    reason: str
    notes: tuple[str, ...]
    entries: int
    entries_replayed: int
    entries_skipped: int
    seconds: float
    by_device: bool
    known: int
    warnings: tuple[str, ...] = ()
    needs: str | None = None
    recommendation: Recommendation | None = None
    further: SettingRow | None = None
    parts: tuple[tuple[str, int, int | None], ...] = ()
    prepared: Prepared | None = None
    entries_left: int | None = None

    @property
    def saved_bytes(self) -> int:
        """Bytes by which `best` lowers the peak of reserved memory; 0 if `best` is None."""
        best = self.best or self.baseline
        return self.baseline.peak_reserved_bytes - best.peak_reserved_bytes

    def headline(self) -> str:
        best = "nothing" if self.best is None else self.best.conf or "the defaults"
        return f"{best} of {len(self.rows):,} settings: {self.reason}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        for row in self.rows[:_SHOWN]:
            peak = f"{format_size(row.peak_reserved_bytes)} at the peak"
            counts = f"retries: {row.num_alloc_retries:,}, errors: {row.num_ooms:,}"
            yield row.conf or "defaults", row.error or f"{peak}, {counts}"


def tune(
    recordings: Source | Sequence[Source],
    device_memory: int | str | None = None,
    *,
    torch_version: str | None = None,
    confs: Sequence[str] | None = None,
    device: int | None = None,
    hints: Hints | None = None,
    edits: Sequence[str] = (),
    expandable: bool = True,
    find_device: bool = False,
    jobs: int = 1,
    executor: Executor | None = None,
    results: str | Path | None = None,
    costs: Costs | None = None,
    tricks: Tricks | None = None,
    progress: SearchProgress | None = None,
) -> Tuning:
    """Replay recordings under many settings; return all results and the best setting.

    With several recordings, for example of several ranks, the search finds one setting for all.

    device_memory: bytes or "24GiB"; None for the recorded device of each recording.
    torch_version: PyTorch release to model; None for the release of the first recording.
    confs: try only these values of PYTORCH_CUDA_ALLOC_CONF.
    device: number of the only device to tune; None for all devices.
    hints: facts about the programs that the recordings do not contain.
    edits: changes of the recorded programs to make first, such as "largest step first"; the forms
        are listed in docs/commands/replay.md.
    expandable: try expandable segments where the platform has them.
    find_device: look for the setting with the smallest sufficient device, and not for the lowest
        peak.
    jobs: number of processes.
    executor: executor that runs the replays instead of processes; its workers must be able to read
        the files.
    results: JSON Lines file for the results of finished replays; replays in it are not repeated.
    costs: times of driver calls; None for the defaults.
    tricks: shortcuts of the search; None for all that are valid for these recordings.
    progress: callback for the number of finished settings and the number of all settings.
    Raises ConfigError for a setting that the PyTorch release refuses and for a results file of
    another search, RecordingError for a recording that cannot be replayed.
    """
    begin = time.monotonic()
    sources = [recordings] if isinstance(recordings, str | os.PathLike | Recording) else recordings
    assert not isinstance(sources, Recording)
    with ExitStack() as stack:
        scratch = None
        if executor is None:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="allocsim-")))
        named = bytes_of(device_memory)
        if edits:  # the edited recordings contain the calls of the hints
            sources, hints = edited_sources(sources, edits, torch_version, hints), None
        parts = parts_of(sources, torch_version, scratch, device, device_memory=named, hints=hints)
        parts = _with_device_memory(parts, named)
        if tricks is None:
            # If a recorded program changes settings while it runs, no shortcut is valid.
            changes = any(part.prepared.plan.changes for part in parts)
            tricks = EXHAUSTIVE if changes else Tricks()
        crew = stack.enter_context(Crew(jobs, executor))
        keeps = crew.inherits and can_keep([part.prepared for part in parts])
        if scratch is not None and not keeps:
            write_columns(parts, scratch)
        search = Search(
            parts=parts,
            release=parts[0].prepared.release,
            device_memory=min((p.memory for p in parts if p.memory is not None), default=None),
            knows_device=named is not None or all(p.prepared.inferred is None for p in parts),
            costs=costs or Costs(),
            tricks=tricks,
            by_device=find_device,
            crew=crew,
            progress=progress,
        )
        if results is not None:
            search.results = stack.enter_context(Results(results, _question(search)))
        baseline = parts[0].prepared.recorded
        expandable = expandable and all(allows_expandable(part.prepared) for part in parts)
        for conf in confs or ():
            parse_conf(conf, search.release)  # raises ConfigError now, not within one replay
        bounds, partings = search.start_bounds(), search.start_partings()
        proposed = _search(search, baseline, confs, expandable=expandable)
        partings()
        return _tuning(search, baseline, proposed, bounds(), begin)


def _with_device_memory(parts: tuple[Target, ...], named: int | None) -> tuple[Target, ...]:
    # `named` is the device memory that the user gave, or None.
    found = [replace(part, memory=named or device_of(part.prepared)[0]) for part in parts]
    least = min((part.memory for part in found if part.memory is not None), default=None)
    for number, part in enumerate(found):
        # A device of unknown memory is assumed to have the least known memory, if the recorded run
        # fits there.
        if part.memory is None and is_recorded_device(part.prepared, least):
            found[number] = replace(part, memory=least)
    return tuple(found)


def _question(search: Search) -> dict[str, object]:
    return {
        "recordings": [part.digest for part in search.parts],
        "torch_version": search.release.version,
        "device_memory": search.device_memory,
        "device_memories": [part.memory for part in search.parts],
        "find_device": search.by_device,
        "from_peak": search.tricks.from_peak,
    }


def _search(
    search: Search, baseline: Setting, confs: Sequence[str] | None, *, expandable: bool
) -> tuple[Setting, ...]:
    release = search.release
    if confs is not None:
        tried = tuple(dict.fromkeys([baseline, *map(Setting, confs)]))
        search.replay_fully(tried, baseline)
        return tried
    search.replay_fully([baseline], baseline)
    config = parse_conf(baseline.conf, release)
    proposed = () if search.by_device else propose(search, baseline, expandable=expandable)
    settings = candidates(
        merged(tuple(part.sizes for part in search.parts)),
        config,
        device_memory=search.device_memory if search.knows_device else None,
        expandable=expandable,
        limits=not search.by_device,
    )
    read = applicable_settings(settings, [part.prepared for part in search.parts], config)
    search.replay_while_hopeful([setting for setting in read if setting != baseline])
    shown = [row for row in _front(search) if row.unrefused_device is None and not row.is_baseline]
    search.find_unrefused_devices(
        [row.setting for row in shown if row.setting.config(release).expandable_segments]
    )
    return proposed


def _ranked(search: Search) -> list[SettingRow]:
    return sorted(search.rows.values(), key=lambda row: row.rank(by_device=search.by_device))


def _front(search: Search) -> list[SettingRow]:
    points: dict[Point, SettingRow] = {}
    for row in _ranked(search):
        point = row.device_point if search.by_device else row.point
        if row.survives and point is not None:
            points.setdefault(point, row)
    return [points[point] for point in front(points)]


def _tuning(
    search: Search, baseline: Setting, proposed: Sequence[Setting], bounds: Bounds, begin: float
) -> Tuning:
    rows = _ranked(search)
    replayed = [trial for row in rows if row.same_as is None for trial in row.parts]
    first = search.rows[baseline]
    warnings = _warnings(search, first)
    recommendation, best = None, rows[0] if rows[0].survives else None
    if warnings:
        best = None
    elif not search.by_device:
        recommendation = recommendation_of(search, first, proposed)
        offer = recommendation.best
        best = first if first.survives else None
        best = best if offer is None else search.rows[offer.setting]
    left = [] if first.survives else [entries_left(part.prepared) for part in search.parts]
    possible = search.parts[0].prepared.releases  # every part is replayed as the first's release
    helps, reason = False, "the replay differs from the recorded run, so it proves nothing"
    if not warnings:
        helps, reason = judge(search, first, best, bounds)
    return Tuning(
        files=tuple(dict.fromkeys(part.name for part in search.parts)),
        torch_version=search.release.version,
        device_memory=search.device_memory,
        baseline=first,
        rows=tuple(rows),
        best=best,
        front=tuple(_front(search)),
        duplicates=tuple(search.duplicates),
        bounds=bounds,
        costs=search.costs,
        helps=helps,
        reason=reason,
        notes=_notes(search),
        entries=sum(len(part.prepared.trace) for part in search.parts),
        entries_replayed=sum(trial.entries for trial in replayed),
        entries_skipped=sum(trial.skipped for trial in replayed),
        seconds=time.monotonic() - begin,
        by_device=search.by_device,
        known=search.known,
        warnings=warnings,
        needs=None if best is None else releases_needed(best.conf, search.release, possible),
        recommendation=recommendation,
        further=None if search.by_device else further_of(rows, best),
        prepared=search.parts[0].prepared if len(search.parts) == 1 else None,
        parts=tuple((part.name, part.device, part.memory) for part in search.parts),
        entries_left=next((each for each in left if each is not None), None),
    )


def _named(search: Search, part: Target) -> str:
    if len(search.parts) == 1:
        return ""
    return f"{_file_of(search, part)}device {part.device}: "


def _file_of(search: Search, part: Target) -> str:
    return "" if len({p.name for p in search.parts}) == 1 else f"{Path(part.name).name}, "


def _warnings(search: Search, baseline: SettingRow) -> tuple[str, ...]:
    found = []
    for part, trial in zip(search.parts, baseline.parts, strict=True):
        parting = None
        if not trial.was_compared:
            parting = parting_of(part.prepared)
        elif trial.parts_at is not None:
            entry = trial.parts_at if trial.parts_at < len(part.prepared.trace) else None
            parting = Parting(part.device, entry)
        if parting is not None:
            found.append(f"{_file_of(search, part)}{parting}")
    return tuple(found)


def _notes(search: Search) -> tuple[str, ...]:
    notes = [search.parts[0].prepared.release_note]
    if not all(part.prepared.is_own_release for part in search.parts):
        notes.append(OTHER_RELEASE)
    confs = {part.prepared.recorded.conf for part in search.parts}
    if len(confs) > 1:
        notes.append("the recordings have different settings; the baseline uses the first one's")
    if any(part.prepared.start for part in search.parts):
        notes.append(
            "the recording starts mid-run: segments from before the first entry are kept, or their "
            "live blocks are allocated again if a setting uses segments of other sizes"
        )
    for part in search.parts:
        own, (*why, of_memory) = device_of(part.prepared)
        if part.memory == own:
            why.append(of_memory)
        elif part.assumed_memory is None and part.memory is not None:
            why.append(f"device memory {format_size(part.memory)}: the same as the other devices")
        notes += [f"{_named(search, part)}{note}" for note in why]
    if search.device_memory is None or not search.knows_device:
        notes.append("the device's memory is not known, so no memory fraction is tried")
    return tuple(notes)
