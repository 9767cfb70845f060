"""Compare memory that others measured on real GPUs with predictions.

    python -m benchmarks.measured [--python PATH] [ROW ...]
    python -m benchmarks.measured --docs

Rule: no number is omitted. `rows.csv` has every number of allocated or reserved memory, with its
source. A row without a program gives the reason, and so does a row whose program does not run here.

The Python at PATH runs the programs of the given rows (default: all rows with a program), and their
results are stored in `results.csv`. --docs writes all rows with the stored results into
docs/fit-measured.md.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from allocsim.errors import AllocsimError
from allocsim.fitting import Ran, run_program
from allocsim.phantom import find_gpu
from allocsim.simulation import DeviceRun
from tests.reference import between_marks

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
ROWS, RESULTS = HERE / "rows.csv", HERE / "results.csv"
PAGE = HERE.parent / "results" / "measured.md"
OOM = "out of memory"
_LIBRARIES = [
    "torch",
    "transformers",
    "peft",
    "bitsandbytes",
    "lightning",
    "litgpt",
    "torchtitan",
    "torchtune",
    "torchao",
    "timm",
]
_VERSIONS = f"""
from importlib.metadata import PackageNotFoundError, version
for name in {_LIBRARIES}:
    try:
        print(name, version(name))
    except PackageNotFoundError:
        pass
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number.

    row: name of the run, shared by its numbers.
    figure: kind of number: "allocated" and "reserved" are peaks, "loaded" is the memory allocated
        after loading the model, "active" is a peak of active memory, "peak" is a peak of a kind
        that the source does not name.
    measured_bytes: the number; None if the run ended out of memory.
    rounding: possible rounding error of the printed number in bytes; 0 for exact bytes.
    program: program with its arguments, or "".
    card: phantom card for the program.
    why: reason for a missing program, or difference between the program and the measured one.
    """

    row: str
    model: str
    setting: str
    gpu: str
    release: str
    figure: str
    measured_bytes: int | None
    rounding: int
    source: str
    program: str
    card: str
    why: str


@dataclass(frozen=True, slots=True)
class Result:
    """Prediction for one measured number.

    predicted_bytes: the prediction; None if the program ended out of memory or with `error`.
    ran_with: releases of PyTorch and the libraries.
    """

    row: str
    figure: str
    predicted_bytes: int | None
    ran_with: str
    error: str


def figures() -> list[Figure]:
    """Return every measured number, in the order of `rows.csv`."""
    with ROWS.open(newline="") as file:
        return [_figure(each) for each in csv.DictReader(file)]


def _figure(each: dict[str, str]) -> Figure:
    measured = each.pop("bytes")
    return Figure(
        measured_bytes=None if measured == OOM else int(measured),
        rounding=int(each.pop("rounding") or 0),
        **each,
    )


def results() -> dict[tuple[str, str], Result]:
    """Return the stored results, by row and kind of number."""
    if not RESULTS.exists():
        return {}
    with RESULTS.open(newline="") as file:
        kept = [
            Result(row, figure, int(predicted) if predicted else None, ran_with, error)
            for row, figure, predicted, ran_with, error in list(csv.reader(file))[1:]
        ]
    return {(each.row, each.figure): each for each in kept}


def keep(found: Iterable[Result]) -> None:
    """Add new results to the stored results."""
    kept = results() | {(each.row, each.figure): each for each in found}
    order = {(each.row, each.figure): at for at, each in enumerate(figures()) if each.program}
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["row", "figure", "predicted", "ran_with", "error"])
        for name in sorted(kept.keys() & order.keys(), key=order.__getitem__):
            each = kept[name]
            predicted = "" if each.predicted_bytes is None else each.predicted_bytes
            writer.writerow([each.row, each.figure, predicted, each.ran_with, each.error])


def run_row(asked: list[Figure], python: str, ran_with: str) -> list[Result]:
    """Run the program of one row and return the predictions for its numbers."""
    first = asked[0]
    program, *arguments = shlex.split(first.program)
    command = (python, str(PROGRAMS / program), *arguments)
    try:
        ran = run_program(command, find_gpu(first.card))
    except AllocsimError as error:
        return [Result(each.row, each.figure, None, ran_with, str(error)) for each in asked]
    return [
        Result(each.row, each.figure, _predicted(each.figure, ran), ran_with, "") for each in asked
    ]


def _predicted(figure: str, ran: Ran) -> int | None:
    if figure == "loaded":
        return _loaded(ran.device_run, ran.entry)
    if ran.is_out_of_memory:
        return None
    if figure == "active":
        return ran.device_run.stats["active_bytes.all.peak"]
    return ran.peak_reserved_bytes if figure == "reserved" else ran.peak_allocated_bytes


def _loaded(device_run: DeviceRun, entry: int) -> int:
    """Return the bytes allocated when the program resets its peaks after loading the model."""
    timeline = device_run.timeline
    before = timeline.entry < entry
    return int(timeline.allocated[before][-1]) if before.any() else 0


def versions(python: str) -> str:
    """Return the releases of PyTorch and the libraries in the Python at the path `python`."""
    done = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True, check=True)
    return ", ".join(done.stdout.splitlines())


def error_percent(figure: Figure, result: Result | None) -> float | None:
    """Return the prediction minus the measured number in percent, or None without both numbers."""
    if result is None or result.predicted_bytes is None or figure.measured_bytes is None:
        return None
    return 100 * (result.predicted_bytes / figure.measured_bytes - 1)


def cells_of(figure: Figure, result: Result) -> tuple[str, ...]:
    """Return the cells of a table row: measured, predicted, error, releases, differences."""
    predicted = OOM if result.predicted_bytes is None else f"{result.predicted_bytes:,}"
    off = error_percent(figure, result)
    return (
        *_name(figure),
        "" if result.error else predicted,
        "" if off is None else f"{off:+.2f} %",
        figure.release,
        result.ran_with,
        "; ".join(filter(None, (result.error, figure.why))),
    )


def _name(figure: Figure) -> tuple[str, str, str, str]:
    measured = OOM if figure.measured_bytes is None else f"{figure.measured_bytes:,}"
    if figure.rounding:
        measured += f" ± {figure.rounding:,}"
    return figure.row, f"{figure.model}: {figure.setting}, {figure.gpu}", figure.figure, measured


def _why_not(figure: Figure) -> str:
    """Return the reason why a measured number has no prediction."""
    return "has a program that has not been run" if figure.program else figure.why


_RUN = ("row", "what", "figure", "measured", "predicted", "error", "with", "run with", "differs")
_NOT_RUN = ("row", "what", "figure", "measured", "why there is no prediction")


def table(asked: list[Figure]) -> Iterator[str]:
    """Yield the Markdown tables of the numbers with and without a prediction."""
    found = _with_results(asked)
    yield summary(asked)
    yield ""
    yield from _markdown(_RUN, [cells_of(each, result) for each, result in found if result])
    yield ""
    others = [(*_name(each), _why_not(each)) for each, result in found if not result]
    yield from _markdown(_NOT_RUN, others)


def page(text: str) -> str:
    """Return the page `text` with new tables."""
    made = "\n".join(table(figures()))
    return between_marks(text, "figures", "python -m benchmarks.measured --docs", made)


def _markdown(heads: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for cells in lines:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def summary(asked: list[Figure]) -> str:
    """Return the errors of the predictions, summarized in a sentence."""
    pairs = _with_results(asked)
    sizes = sorted(abs(off) for pair in pairs if (off := error_percent(*pair)) is not None)
    if not sizes:
        return f"0 of {len(asked)} figures predicted."
    same, _ = as_printed(asked)
    return (
        f"{len(sizes)} of {len(asked)} figures predicted: {same} as they were printed, "
        f"{sum(each < 1 for each in sizes)} less than 1 % off, "
        f"{sum(each < 10 for each in sizes)} less than 10 %; "
        f"median {median(sizes):.2f} %, worst {sizes[-1]:.1f} %. "
        f"{sum(_is_oom_too(*pair) for pair in pairs)} more ran out of memory in both."
    )


def as_printed(asked: list[Figure]) -> tuple[int, int]:
    """Return the number of predictions that equal the measured number, and of all predictions."""
    predicted = [pair for pair in _with_results(asked) if error_percent(*pair) is not None]
    return sum(_is_same(*pair) for pair in predicted), len(predicted)


def _with_results(asked: list[Figure]) -> list[tuple[Figure, Result | None]]:
    """Return each measured number with its stored result."""
    kept = results()
    return [(each, kept.get((each.row, each.figure))) for each in asked]


def _is_oom_too(figure: Figure, result: Result | None) -> bool:
    """Return whether a run ended out of memory both on the real GPU and here."""
    if result is None or result.error:
        return False
    return figure.measured_bytes is None and result.predicted_bytes is None


def _is_same(figure: Figure, result: Result | None) -> bool:
    """Return whether a prediction, rounded as the measured number was, equals it."""
    assert result is not None and result.predicted_bytes is not None
    assert figure.measured_bytes is not None
    return abs(result.predicted_bytes - figure.measured_bytes) <= figure.rounding


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="a row, or a group by its letter")
    parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch")
    parser.add_argument("--docs", action="store_true", help=f"write {PAGE.name}, and run nothing")
    given = parser.parse_args()
    every = figures()
    if given.docs:
        PAGE.write_text(page(PAGE.read_text()))
        return 0
    try:
        ran_with = versions(given.python)
    except (OSError, subprocess.CalledProcessError) as error:
        parser.error(f"--python {given.python} is no Python that runs: {error}")
    for row in dict.fromkeys(each.row for each in every if _is_asked(each.row, given.rows)):
        of_it = [each for each in every if each.row == row]
        to_run = [each for each in of_it if each.program]
        found = run_row(to_run, given.python, ran_with) if to_run else []
        keep(found)
        by_figure = {each.figure: each for each in found}
        for each in of_it:
            result = by_figure.get(each.figure)
            cells = cells_of(each, result) if result else (*_name(each), each.why)
            print("  ".join(cells), flush=True)
    print(summary(every))
    return 0


def _is_asked(row: str, asked: list[str]) -> bool:
    return not asked or row in asked or row[0] in asked


if __name__ == "__main__":
    raise SystemExit(main())
