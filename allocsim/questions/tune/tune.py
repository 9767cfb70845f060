"""The setting that a recording would have done best with, found by replays.

Rule: the figures of every row are those of a replay of the recorded requests on the modelled
release, to the byte; nothing is estimated but the time of driver calls (`Costs`).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from allocsim.core import parse_conf
from allocsim.engine import Point, Setting
from allocsim.errors import ConfigError
from allocsim.measures import front, merged
from allocsim.questions.tune.candidates import candidates
from allocsim.questions.tune.cost import Costs
from allocsim.questions.tune.grid import Asked, Search, SearchProgress
from allocsim.questions.tune.judgement import Bounds, bounds_of, judge
from allocsim.questions.tune.part import Part, Source, parts_of
from allocsim.questions.tune.results import Results
from allocsim.questions.tune.row import Row
from allocsim.questions.tune.sweep import Crew
from allocsim.questions.tune.worker import Tricks
from allocsim.trace import Recording
from allocsim.units import parse_size

__all__ = ["Tuning", "tune"]


@dataclass(frozen=True, slots=True)
class Tuning:
    """The outcome of `tune`.

    files: names of the recordings.
    torch_version: the release for all of them.
    device_memory: bytes, None for a device without end.
    baseline: as recorded.
    best: None if nothing survives.
    front: rows that none is better than in memory, driver calls and retries at once.
    duplicates: settings of the grid that have the effect of another, with that other.
    helps: whether the best is worth setting.
    reason: why, or why not, in a sentence.
    entries: of all recordings together.
    entries_replayed: by all replays.
    entries_skipped: passed over in them, since they would have changed nothing.
    by_device: whether the smallest device decides.
    known: trials that a file of results had already.
    """

    files: tuple[str, ...]
    torch_version: str
    device_memory: int | None
    baseline: Row
    rows: tuple[Row, ...]
    best: Row | None
    front: tuple[Row, ...]
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

    @property
    def saved_bytes(self) -> int:
        """What the best reserves less than the baseline at its peak; 0 without a best."""
        best = self.best or self.baseline
        return self.baseline.peak_reserved_bytes - best.peak_reserved_bytes


def tune(
    recordings: Source | Sequence[Source],
    device_memory: int | str | None = None,
    *,
    torch_version: str | None = None,
    confs: Sequence[str] | None = None,
    device: int | None = None,
    expandable: bool = True,
    find_device: bool = False,
    jobs: int = 1,
    executor: Executor | None = None,
    results: str | Path | None = None,
    costs: Costs | None = None,
    tricks: Tricks | None = None,
    progress: SearchProgress | None = None,
) -> Tuning:
    """Replay one recording, or several that must share a setting, under many settings.

    device_memory: bytes or "24GiB"; None for that of the recordings, else without a limit.
    torch_version: None for that of the first recording.  confs: try these and no others.
    expandable: whether expandable segments may be proposed.  find_device: rank by the smallest
    device instead of the peak.  jobs: processes; executor: any other to use, whose workers can
    read the files.  results: a JSON Lines file that trials go to, and come from if it is
    there.  costs, tricks: None for the defaults.  progress: see `SearchProgress`.
    Raises ConfigError for a setting that the release refuses and for a file of other results,
    RecordingError for a recording that cannot be replayed.
    """
    begin = time.monotonic()
    sources = [recordings] if isinstance(recordings, str | os.PathLike | Recording) else recordings
    assert not isinstance(sources, Recording)
    with ExitStack() as stack:
        scratch = None
        if executor is None:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="allocsim-")))
        parts = parts_of(list(sources), torch_version, scratch, device)
        release, memory = parts[0].prepared.release, _memory(device_memory, parts)
        asked = Asked(parts, release, memory, costs or Costs(), tricks or Tricks(), find_device)
        crew = stack.enter_context(Crew(jobs, executor))
        stored = None
        if results is not None:
            stored = stack.enter_context(Results(results, _question(asked)))
        search = Search(asked, crew, stored, progress)
        baseline = Setting(parts[0].prepared.recorded.conf)
        _search(search, baseline, confs, expandable=expandable)
    return _tuning(search, baseline, time.monotonic() - begin)


def _memory(device_memory: int | str | None, parts: tuple[Part, ...]) -> int | None:
    if device_memory is not None:
        try:
            return parse_size(device_memory)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    recorded = [part.prepared.capacity for part in parts if part.prepared.capacity is not None]
    return min(recorded, default=None)


def _question(asked: Asked) -> dict[str, object]:
    return {
        "recordings": [part.digest for part in asked.parts],
        "torch_version": asked.release.version,
        "device_memory": asked.device_memory,
        "find_device": asked.by_device,
        "from_peak": asked.tricks.from_peak,
    }


def _search(
    search: Search, baseline: Setting, confs: Sequence[str] | None, *, expandable: bool
) -> None:
    asked = search.asked
    release = asked.release
    if confs is not None:
        for conf in confs:
            parse_conf(conf, release)  # a wrong one is the user's to know
        tried = tuple(dict.fromkeys([baseline, *map(Setting, confs)]))
        search.whole(tried, baseline)
        return
    search.whole([baseline], baseline)
    settings = candidates(
        merged(tuple(part.sizes for part in asked.parts)),
        parse_conf(baseline.conf, release),
        device_memory=asked.device_memory,
        expandable=expandable,
        limits=not asked.by_device,
    )
    search.grid([setting for setting in settings if setting != baseline])
    shown = [row for row in _front(search) if row.unrefused_device is None and not row.is_baseline]
    search.confirm(
        [row.setting for row in shown if row.setting.config(release).expandable_segments]
    )


def _ranked(search: Search) -> list[Row]:
    return sorted(search.rows.values(), key=lambda row: row.rank(by_device=search.asked.by_device))


def _front(search: Search) -> list[Row]:
    """The rows of the front, of equal ones the best ranked."""
    points: dict[Point, Row] = {}
    for row in _ranked(search):
        point = row.device_point if search.asked.by_device else row.point
        if row.survives and point is not None:
            points.setdefault(point, row)
    return [points[point] for point in front(points)]


def _tuning(search: Search, baseline: Setting, seconds: float) -> Tuning:
    asked, rows = search.asked, _ranked(search)
    replayed = [trial for row in rows if row.same_as is None for trial in row.parts]
    best = rows[0] if rows[0].survives else None
    first = search.rows[baseline]
    bounds = bounds_of([part.prepared for part in asked.parts])
    helps, reason = judge(asked, first, best, bounds)
    return Tuning(
        files=tuple(dict.fromkeys(part.name for part in asked.parts)),
        torch_version=asked.release.version,
        device_memory=asked.device_memory,
        baseline=first,
        rows=tuple(rows),
        best=best,
        front=tuple(_front(search)),
        duplicates=tuple(search.duplicates),
        bounds=bounds,
        costs=asked.costs,
        helps=helps,
        reason=reason,
        notes=_notes(asked),
        entries=sum(len(part.prepared.trace) for part in asked.parts),
        entries_replayed=sum(trial.entries for trial in replayed),
        entries_skipped=sum(trial.skipped for trial in replayed),
        seconds=seconds,
        by_device=asked.by_device,
        known=search.known,
    )


def _notes(asked: Asked) -> tuple[str, ...]:
    notes = [asked.parts[0].prepared.release_note]
    confs = {part.prepared.recorded.conf for part in asked.parts}
    if len(confs) > 1:
        notes.append("the recordings have different settings; those of the first are the baseline")
    if any(part.prepared.start for part in asked.parts):
        notes.append(
            "the recording starts mid-run: segments from before the first entry are kept, or what "
            "lives in them is laid out anew where a setting takes other segments from the driver"
        )
    if asked.device_memory is None:
        notes.append("the device's memory is not known: no limit, and no memory fraction is tried")
    return tuple(notes)
