"""Comparison of a profiler's traces, as allocsim reads them, with PyTorch's figures of that run.

    python -m traces.profiled.compare ~/torch-2.5/bin/python ~/torch-2.9/bin/python

Rule: the reference is always PyTorch's own snapshot of the run and its memory_stats().  The output
is a table of counts with a row per release.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allocsim import replay
from allocsim.errors import RecordingError
from allocsim.phantom.installs import find_torch
from allocsim.recording import Action, Recording, load
from traces.profiled.record import PROGRAM, profiled

__all__ = ["Compared", "compared"]

_MOVES = (Action.ALLOC, Action.FREE_COMPLETED)
_PEAKS = ("allocated_bytes.all.peak", "reserved_bytes.all.peak")

_Peaks = tuple[int, int]
_Row = tuple[int, int, int]
"""(action, address, bytes)"""


@dataclass(frozen=True, slots=True)
class Compared:
    """Traces of one release's run.

    events, alike: number of requests and frees in the trace, and of those that equal the snapshot's
        in order, action, address and size.
    late_events, late_alike: the same for a trace that begins in the middle of the run.
    peaks, late_peak: allocated and reserved bytes of the replays; for the late trace only allocated
        bytes, because blocks from before it have no addresses.
    torch_peaks, torch_late_peak: the run's own counts.
    names: keys of an event's `args`.
    cpu: error for a trace of the CPU only.
    """

    torch: str
    cuda: str
    names: tuple[str, ...]
    events: int
    alike: int
    peaks: _Peaks
    torch_peaks: _Peaks
    late_events: int
    late_alike: int
    late_peak: int
    torch_late_peak: int
    cpu: str


def compared(python: str, folder: Path) -> Compared:
    """Run the program with an interpreter, on a phantom card and on the CPU.

    folder: parent of the output folders, `written` for the card and `cpu` for the CPU.
    """
    torch = find_torch(python)
    out = profiled(python, folder)
    subprocess.run([python, PROGRAM, folder / "cpu", "cpu"], check=True)  # noqa: S603
    whole, late = load(out / "trace.json"), load(out / "late.json")
    events, alike = _alike(whole, out / "trace.json", out / "snapshot.pickle")
    late_events, late_alike = _alike(late, out / "late.json", out / "late.pickle")
    return Compared(
        torch=torch.version,
        cuda=torch.cuda,
        names=tuple(_gpu_events(out / "trace.json")[0]),
        events=events,
        alike=alike,
        peaks=_replayed(whole),
        torch_peaks=_counted(out / "stats.json"),
        late_events=late_events,
        late_alike=late_alike,
        late_peak=_replayed(late)[0],
        torch_late_peak=_counted(out / "late-stats.json")[0],
        cpu=_sentence(folder / "cpu" / "trace.json"),
    )


def _gpu_events(path: Path) -> list[dict[str, Any]]:
    """Return `args` of the trace's [memory] events of GPUs, parsed as plain JSON."""
    events = json.loads(path.read_text())["traceEvents"]
    memory = [event["args"] for event in events if event["name"] == "[memory]"]
    return [args for args in memory if args["Device Type"] == 1]


def _alike(recording: Recording, path: Path, snapshot: Path) -> tuple[int, int]:
    """Return the number of events in the trace, and of those that equal the snapshot's last rows.

    Rows for blocks from before the trace precede the trace's own rows.
    """
    count = len(_gpu_events(path))
    found = _rows(recording)[-count:]
    recorded = _rows(load(snapshot))[-count:]
    return count, sum(map(_is_alike, found, recorded))


def _rows(recording: Recording) -> list[_Row]:
    (trace,) = recording.devices
    rows = zip(trace.action.tolist(), trace.addr.tolist(), trace.size.tolist(), strict=True)
    return [row for row in rows if row[0] in _MOVES]


def _is_alike(found: _Row, recorded: _Row) -> bool:
    """Compare the bytes of a block, in a trace, with those of a request, in a snapshot.

    A block has the request rounded up to 512 bytes; in this run no larger block is left unsplit.
    """
    return found == (*recorded[:2], -(-recorded[2] // 512) * 512)


def _replayed(recording: Recording) -> _Peaks:
    run = replay(recording).devices[0]
    return run.peak_allocated_bytes, run.peak_reserved_bytes


def _counted(path: Path) -> _Peaks:
    stats = json.loads(path.read_text())
    allocated, reserved = (stats[name] for name in _PEAKS)
    return allocated, reserved


def _sentence(path: Path) -> str:
    try:
        load(path)
    except RecordingError as error:
        return str(error).partition(": ")[2]
    return ""


def main() -> None:
    print(
        "| PyTorch | events | as in the snapshot | peaks of the replay | mid-run trace | its peak |"
    )
    print("|---|---|---|---|---|---|")
    for python in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            found = compared(python, Path(folder))
        print(_line(found))
        print(f"{found.torch}: {', '.join(found.names)}; {found.cpu}", file=sys.stderr)


def _line(found: Compared) -> str:
    peaks = zip(found.peaks, found.torch_peaks, strict=True)
    both = ", ".join(f"{mine:,} of {its:,}" for mine, its in peaks)
    cells = (
        f"{found.torch}, CUDA {found.cuda}",
        f"{found.events:,}",
        f"{found.alike:,}",
        both,
        f"{found.late_alike:,} of {found.late_events:,}",
        f"{found.late_peak:,} of {found.torch_late_peak:,}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
