"""Compare the estimated with the recorded time of driver calls, for recordings of a real GPU.

    python -m benchmarks.driver_times [FOLDER]      recordings in `traces/h200` if none is given

PyTorch stamps `segment_alloc`, `segment_map` and `segment_unmap` after the driver call and
`segment_free` before it, as a phantom with sleeping driver calls shows.  The recorded time of a
call is therefore

- `segment_alloc`, `segment_map`: the gap to the previous entry, less the median of this gap at
  `alloc` entries with the same stack and without a driver call; at least three are required;
- `segment_free`: the gap to the next entry, if that is a `segment_free` too, because the
  allocator does nothing else between them;
- `segment_unmap`: the gap to the previous entry, if that is a `segment_unmap` too.

These gaps also contain first uses of kernels and libraries, which makes totals exceed medians.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from allocsim.core import LARGE_BUFFER, SMALL_BUFFER
from allocsim.recommend import Costs, driver_time
from allocsim.recording import Action, Trace, load

ROOT = Path(__file__).parents[1]
H200 = ROOT / "traces" / "h200"
KINDS = ("segment_alloc", "segment_map", "segment_free", "segment_unmap")
_LEAST_ALIKE = 3
_BUSY = 10.0
"""Ratio of recorded to estimated time above which other processes must have used the GPU."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Driver calls of one kind in one recording.

    name: name of the recording.
    kind: action of the entries.
    n_all: number of all calls of the kind.
    recorded, estimated: microseconds of each call whose time the recording shows.
    """

    name: str
    kind: str
    n_all: int
    recorded: NDArray[np.float64]
    estimated: NDArray[np.float64]

    @property
    def ratio(self) -> float:
        """Median of recorded time divided by estimated time."""
        return float(np.median(self.recorded / self.estimated))

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a table row: medians in microseconds, totals in milliseconds."""
        medians = (np.median(self.estimated), np.median(self.recorded))
        totals = (self.estimated.sum() / 1000, self.recorded.sum() / 1000)
        error = 100 * (totals[0] / totals[1] - 1) if totals[1] > 0 else float("nan")
        return (
            self.name,
            self.kind,
            f"{len(self.recorded)} of {self.n_all}",
            *(f"{each:,.0f}" for each in medians),
            f"{self.ratio:.2f}",
            *(f"{each:,.1f}" for each in totals),
            f"{error:+.0f} %",
        )


HEAD = (
    *("recording", "entries", "read", "estimated, us", "recorded, us", "ratio"),
    *("estimated, ms", "recorded, ms", "error"),
)


def times_of(folder: Path) -> list[Timed]:
    """Return the calls of every recording below `folder`, in order of path.

    A capture at an error is left out, because the capture at the exit has the same entries.
    """
    found: list[Timed] = []
    for path in sorted(folder.rglob("*.npz.gz")):
        name = f"{path.parent.name}/{path.name.removesuffix('.npz.gz')}"
        if not name.endswith("-oom"):
            for trace in load(path).devices:
                found += timed(name, trace)
    return found


def timed(name: str, trace: Trace) -> Iterator[Timed]:
    """Yield the calls of each kind, if the recording shows the time of any call of the kind."""
    if trace.time_us is None or len(trace) < 2:
        return
    before = np.diff(trace.time_us, prepend=trace.time_us[0]).astype(np.float64)
    host = _host_times(trace, before)
    for kind in KINDS:
        action = int(Action[kind.upper()])
        rows = np.flatnonzero(trace.action == action)
        if kind in ("segment_alloc", "segment_map"):
            here = [
                (k, before[k] - host[int(trace.frames[k])])
                for k in rows.tolist()
                if k > 0 and int(trace.frames[k]) in host
            ]
        elif kind == "segment_free":
            follows = [k for k in rows.tolist() if k + 1 < len(trace)]
            here = [(k, before[k + 1]) for k in follows if trace.action[k + 1] == action]
        else:
            here = [(k, before[k]) for k in rows.tolist() if k and trace.action[k - 1] == action]
        if here:
            sizes = [int(trace.size[k]) for k, _ in here]
            yield Timed(
                name,
                kind,
                len(rows),
                np.array([time for _, time in here]),
                np.array([estimated(kind, size, len(rows)) for size in sizes]),
            )


def _host_times(trace: Trace, before: NDArray[np.float64]) -> dict[int, float]:
    """Return the median gap in microseconds before an `alloc` without a driver call, by stack."""
    takes = np.isin(trace.action, [int(Action.SEGMENT_ALLOC), int(Action.SEGMENT_MAP)])
    is_plain = trace.action == int(Action.ALLOC)
    is_plain[1:] &= ~takes[:-1]
    gaps: dict[int, list[float]] = defaultdict(list)
    for k in np.flatnonzero(is_plain)[1:].tolist():
        gaps[int(trace.frames[k])].append(before[k])
    return {
        stack: float(np.median(each)) for stack, each in gaps.items() if len(each) >= _LEAST_ALIKE
    }


def estimated(kind: str, size: int, n_calls: int) -> float:
    """Return the microseconds of the driver calls behind one entry of `size` bytes.

    n_calls: number of entries of the kind; at a call, half of them are assumed to be allocated.
    """
    costs = Costs()
    if kind == "segment_alloc":
        return costs.of_call("malloc", size, n_calls / 2)
    if kind == "segment_free":
        return costs.of_call("free", size)
    handle = SMALL_BUFFER if size % LARGE_BUFFER else LARGE_BUFFER
    if kind == "segment_map":
        return driver_time((("create", handle, size // handle), ("map", size, 1)), costs)
    return driver_time((("unmap", handle, size // handle),), costs)


def quartiles(found: Sequence[Timed]) -> tuple[float, float, float]:
    """Return first quartile, median and third quartile of `ratio` over recordings and kinds."""
    low, middle, high = np.percentile([each.ratio for each in found], [25, 50, 75])
    return float(low), float(middle), float(high)


def lines_of(found: Sequence[Timed]) -> list[str]:
    """Return the table in Markdown, with a summary."""
    lines = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    lines += [f"| {' | '.join(each.cells())} |" for each in found]
    low, middle, high = quartiles(found)
    busy = [each for each in found if each.ratio > _BUSY]
    lines += [
        "",
        f"Median ratio by row: {middle:.1f}, quartiles {low:.1f} and {high:.1f}, "
        f"lowest {min(each.ratio for each in found):.1f}. "
        f"{len(busy)} of {len(found)} rows are above {_BUSY:.0f}, up to "
        f"{max(each.ratio for each in found):.0f}.",
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", nargs="?", type=Path, default=H200)
    print("\n".join(lines_of(times_of(parser.parse_args().folder))))


if __name__ == "__main__":
    main()
