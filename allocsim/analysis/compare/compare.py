"""Compare two recordings, or one recording under two settings.

The difference of the peaks is divided among owners (lines of code, stacks, modules, …), and the
differences of the owners add up to it exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allocsim._repr import Shown
from allocsim.analysis.compare.matched import Change, changes_of
from allocsim.analysis.compare.side import Parts, Side, side_of_run, side_of_state
from allocsim.errors import RecordingError
from allocsim.ownership import BY
from allocsim.recording import Action, Recording
from allocsim.replaying import Prepared, prepare, replay_prepared
from allocsim.simulation import Progress, Setting
from allocsim.units import format_change, format_size

_SHOWN = 10
"""Number of rows in the table of a notebook."""


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """Comparison of run A with run B.

    a, b: the two runs.
    by: grouping of owners: "line", "stack", "module", "category", "stream" or "pool".
    changes: change of each owner, largest first, including owners without a change.
    """

    a: Side
    b: Side
    by: str
    changes: tuple[Change, ...]

    @property
    def reserved_change(self) -> int:
        """Peak reserved bytes of B minus those of A."""
        return self.b.reserved.reserved - self.a.reserved.reserved

    @property
    def allocated_change(self) -> int:
        """Allocated bytes of B minus those of A, at the compared moments."""
        return self.b.allocated_bytes - self.a.allocated_bytes

    @property
    def parts(self) -> Parts:
        """Parts of B's peak reserved memory minus those of A; they may be negative."""
        a, b = self.a.reserved, self.b.reserved
        return Parts(
            requested=b.requested - a.requested,
            rounding=b.rounding - a.rounding,
            unused=b.unused - a.unused,
        )

    def headline(self) -> str:
        """Return both peaks and the owner with the largest change in one line."""
        sizes = [format_size(side.reserved.reserved) for side in (self.a, self.b)]
        said = f"{sizes[0]} reserved at the peak, then {sizes[1]}"
        first = next((each for each in self.changes if each.bytes), None)
        if first is None:
            return f"{said}; every {self.by} holds the same"
        return f"{said}; most by {first.owner}: {format_change(first.bytes)}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """Yield (owner, change as text) of the largest changes."""
        changed = [each for each in self.changes if each.bytes]
        for each in changed[:_SHOWN]:
            yield each.owner, format_change(each.bytes)
        rest = changed[_SHOWN:]
        if rest:
            yield f"{len(rest):,} more", format_change(sum(each.bytes for each in rest))


def compare(
    a: Recording,
    b: Recording,
    *,
    at: str | int | None = None,
    by: str = "line",
    device: int | None = None,
    torch_version: str | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two recordings, each replayed under its recorded settings.

    at: moment of both recordings at which owners are compared: "peak" for peak allocated memory,
        "oom" for the last out-of-memory error, "end", or an entry number.  None means "peak".  A
        recording without entries has only "end".
    by: grouping of owners: "line", "stack", "module", "category", "stream" or "pool".
    device: device number in both; None if only one device is recorded.
    torch_version: release to model; None to choose it from each recording.
    progress: callback for the progress of the replays.
    Raises RecordingError for an unknown device or moment, and ValueError for an unknown `by`.
    """
    sides = []
    for recording in (a, b):
        trace = recording.only_device(device)
        if not trace.count(Action.ALLOC):
            sides.append(side_of_state(recording, trace, at))
            continue
        (prepared,) = prepare(recording, trace.device, torch_version)
        sides.append(_side(prepared, None, at, progress))
    return _compared(sides[0], sides[1], by)


def compare_settings(
    recording: Recording,
    confs: tuple[str | None, str],
    *,
    at: str | int | None = None,
    by: str = "line",
    device: int | None = None,
    torch_version: str | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare `recording` under two settings.

    confs: PYTORCH_CUDA_ALLOC_CONF of A and of B; None for the recorded value.
    at, by, device, torch_version, progress: see `compare`.
    Raises the errors of `compare`.  Also raises RecordingError for a recording without
    entries, and ConfigError for a setting that the release refuses.
    """
    trace = recording.only_device(device)
    if not trace.count(Action.ALLOC):
        what = "holds only a state, which cannot be replayed under other settings"
        raise RecordingError(recording.path, what)
    (prepared,) = prepare(recording, trace.device, torch_version)
    first, second = (_side(prepared, conf, at, progress) for conf in confs)
    return _compared(first, second, by)


def _side(
    prepared: Prepared, conf: str | None, at: str | int | None, progress: Progress | None
) -> Side:
    run = replay_prepared((prepared,), None if conf is None else Setting(conf), progress=progress)
    return side_of_run(prepared, run.devices[0], run.conf, at)


def _compared(a: Side, b: Side, by: str) -> Comparison:
    if by not in BY:
        raise ValueError(f"by={by!r} is not one of {', '.join(BY)}")
    return Comparison(a, b, by, changes_of(a.held, b.held, by))
