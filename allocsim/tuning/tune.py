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
from pathlib import Path

from allocsim.core import Release, parse_conf
from allocsim.errors import ConfigError
from allocsim.trace import Recording
from allocsim.tuning.bounds import bounds_of
from allocsim.tuning.candidates import candidates
from allocsim.tuning.cost import Costs
from allocsim.tuning.judgement import judge
from allocsim.tuning.pareto import Point, front
from allocsim.tuning.part import Part, Source, parts_of
from allocsim.tuning.results import Results
from allocsim.tuning.row import Row
from allocsim.tuning.search import Asked, Search, SearchProgress
from allocsim.tuning.setting import Setting
from allocsim.tuning.sizes import merged
from allocsim.tuning.sweep import Crew
from allocsim.tuning.tricks import Tricks
from allocsim.tuning.tuning import Tuning
from allocsim.units import parse_size

__all__ = ["tune"]


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

    device_memory: bytes or "24GiB"; None for what the recordings tell, else without a limit.
    torch_version: None for what the first recording tells.  confs: try these and no others.
    expandable: whether expandable segments may be proposed.  find_device: rank by the smallest
    device instead of the peak.  jobs: processes; executor: any other to use, whose workers can
    read the files.  results: a JSON Lines file that outcomes go to, and come from if it is
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
        asked = Asked(
            parts,
            parts[0].rerun.release,
            _memory(device_memory, parts),
            costs or Costs(),
            tricks or Tricks(),
            find_device,
        )
        crew = stack.enter_context(Crew(jobs, executor))
        stored = None
        if results is not None:
            stored = stack.enter_context(Results(results, _question(asked)))
        search = Search(asked, crew, stored, progress)
        baseline = Setting(parts[0].rerun.recorded_conf)
        _search(search, baseline, confs, expandable=expandable)
    return _tuning(search, baseline, time.monotonic() - begin)


def _memory(device_memory: int | str | None, parts: tuple[Part, ...]) -> int | None:
    if device_memory is not None:
        try:
            return parse_size(device_memory)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    told = [part.rerun.capacity for part in parts if part.rerun.capacity is not None]
    return min(told) if told else None


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
    shown = [row for row in _front(search) if row.unrefused_device is None]
    search.confirm([row.setting for row in shown if _may_be_told(row, release)])


def _may_be_told(row: Row, release: Release) -> bool:
    """Whether a device on which nothing is refused can be proved."""
    return not row.is_baseline and row.setting.config(release).expandable_segments


def _front(search: Search) -> list[Row]:
    """The rows of the front, of equal ones the best ranked."""
    by_device = search.asked.by_device
    rows = sorted(search.rows.values(), key=lambda row: row.rank(by_device=by_device))
    points: dict[Point, Row] = {}
    for row in rows:
        point = row.device_point if by_device else row.point
        if row.survives and point is not None:
            points.setdefault(point, row)
    return [points[point] for point in front(points)]


def _tuning(search: Search, baseline: Setting, seconds: float) -> Tuning:
    asked = search.asked
    by_device = asked.by_device
    rows = sorted(search.rows.values(), key=lambda row: row.rank(by_device=by_device))
    best = rows[0] if rows[0].survives else None
    first = search.rows[baseline]
    bounds = bounds_of([part.rerun for part in asked.parts])
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
        entries=sum(len(part.rerun.trace) for part in asked.parts),
        entries_replayed=sum(row.entries for row in rows),
        entries_skipped=sum(row.skipped for row in rows),
        seconds=seconds,
        by_device=by_device,
        known=search.known,
    )


def _notes(asked: Asked) -> tuple[str, ...]:
    notes = [asked.parts[0].rerun.release_note]
    confs = {part.rerun.recorded_conf for part in asked.parts}
    if len(confs) > 1:
        notes.append("the recordings have different settings; those of the first are the baseline")
    if any(part.rerun.start for part in asked.parts):
        notes.append("segments from before the first entry stay as they are under every setting")
    if asked.device_memory is None:
        notes.append("the device's memory is not known: no limit, and no memory fraction is tried")
    return tuple(notes)
