"""Run every change that `fit` proposes, with real PyTorch over the phantom.

    python -m benchmarks.advice --python PATH [--new] [-o FILE] [NUMBER ...]

Ten trainings that do not fit are answered by law, without PyTorch.  Each proposed change is then
run as a program on its card beside the largest CUDA context, and must complete.  --new keeps the
runs of results/advice.md whose change has the same options and peak.  Half an hour of two
cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from allocsim.errors import AllocsimError
from allocsim.fitting import Change, Fit, Task, advise, fit, model_of, run_program
from allocsim.phantom import context_range
from allocsim.units import GIB

CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("Llama-3-8B", "RTX 4090", {"lora": 16}),
    ("Llama-3.2-1B", "RTX 4090", {"dtype": "autocast-bf16"}),
    ("Llama-3.2-1B", "RTX 4090", {"batch": 8}),
    ("Llama-3.2-1B", "RTX 3060", {}),
    ("Qwen2.5-0.5B", "RTX 4090", {"batch": 8, "seq": 1024}),
    ("Qwen2.5-1.5B", "RTX 4090", {"batch": 4}),
    ("Qwen2.5-7B", "A100 40GB", {"lora": 16, "batch": 4}),
    ("gpt2", "RTX 4060", {"batch": 8}),
    ("gpt2", "RTX 3080", {"batch": 16, "dtype": "fp32"}),
    ("Qwen2.5-1.5B", "RTX 3090", {"seq": 4096}),
)
"""Model, card and options of each training."""
_HEAD = ("case", "training", "needs GiB", "change", "peak GiB", "by a run", "completes")


PAGE = Path(__file__).parent / "results" / "advice.md"


def runs_on_page() -> dict[tuple[str, ...], tuple[str, str]]:
    """Return the runs on the page: peak and end, by case, change and peak of the change."""
    found, case = dict[tuple[str, ...], tuple[str, str]](), ""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == len(_HEAD) and cells[-1] in ("yes", "no"):
            case = cells[0] or case
            found[case, cells[3], cells[4]] = cells[5], cells[6]
    return found


def rows(number: int, python: str, is_new: bool = False) -> Iterator[tuple[str, ...]]:
    """Yield a row of the table for each change of one case; only the first names the case."""
    known = runs_on_page() if is_new else {}
    name, gpu, more = CASES[number]
    found = fit(Task(model=model_of(name), **more), gpu, engine="laws")
    assert isinstance(found, Fit)
    assert found.task is not None
    case = (
        f"{number + 1}",
        f"{found.task.text.split(' of ')[1]} on {gpu}",
        f"{(found.needed_bytes or 0) / GIB:.2f}",
    )
    for i, change in enumerate(advise(found).changes):
        options = f"`{change.options}`"
        by = " (formula)" * (change.engine == "formula")
        peak = f"{change.peak_reserved_bytes / GIB:.2f}{by}"
        ran = known.get((case[0], options, peak)) or _confirmed(change, python)
        yield (*(case if i == 0 else [""] * len(case)), options, peak, *ran)


def _confirmed(change: Change, python: str) -> tuple[str, str]:
    """Return the peak of a run with the change, and whether it completes."""
    tight = replace(change.gpu, context_memory=context_range(change.gpu)[1])
    try:
        ran = run_program(change.task, tight, python=python)
    except AllocsimError as error:
        return "", f"not run: {error}"[:80]
    peak = f"{ran.peak_reserved_bytes / GIB:.2f}"
    return peak, "no" if ran.is_out_of_memory else "yes"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--python", required=True, help="interpreter with PyTorch")
    parser.add_argument("--new", action="store_true", help="keep runs that are on the page")
    parser.add_argument("-o", "--out", type=Path, help="file of the table")
    parser.add_argument("numbers", nargs="*", type=int, help="numbers of cases (default: all)")
    arguments = parser.parse_args()
    numbers = [number - 1 for number in arguments.numbers] or range(len(CASES))
    lines = [f"| {' | '.join(_HEAD)} |", "|---:|---|---:|---|---:|---:|---|"]
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(
            lambda number: list(rows(number, arguments.python, arguments.new)), numbers
        ):
            lines += [f"| {' | '.join(row)} |" for row in found]
            print("\n".join(lines[-len(found) :] if found else []), flush=True)
    if arguments.out is not None:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
