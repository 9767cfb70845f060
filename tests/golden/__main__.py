"""Run the golden cases and print a table: `python -m tests.golden --model core --select all`.

A result that the model does not produce, because it refuses the option or stops, is a failure.  The
exit code is 1 unless every result exists and agrees.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.golden import cases, runner

__all__ = ["main"]

MODELS = {
    "core": ("allocsim", "CachingAllocator"),
    "naive": ("tests.naive.model", "NaiveAllocator"),
}
Found = tuple[str, str, str, list[str]]  # family, case, release, differences


def factory(model: str) -> runner.Factory:
    """Return the class of a model; imported late, so that one model runs without the other."""
    module, name = MODELS[model]
    made: runner.Factory = getattr(importlib.import_module(module), name)
    return made


def run_family(model: str, family: str, select: str, only: str) -> list[Found]:
    """Run all selected results of one family."""
    make = factory(model)
    found = []
    for case in cases.load(family):
        if only not in case["name"] or (select == "basic" and not cases.is_basic(case)):
            continue
        for release, result in cases.results(case):
            differences = runner.compare(case, release, result, make)
            found.append((family, case["name"], release, differences))
    return found


def report(found: list[Found], show: int) -> bool:
    """Print the table and the first differences; return True if there are none."""
    ran = Counter(family for family, *_ in found)
    good = Counter(family for family, _, _, differences in found if not differences)
    for family in ran:
        print(f"{family:<12}{good[family]:>5} of {ran[family]:>5}")
    bad = [row for row in found if row[3]]
    for _, name, release, differences in bad[:show]:
        print(f"\n{name} on {release}:")
        for line in differences[:6]:
            print(f"  {line[:400]}")
    if len(bad) > show:
        print(f"\nand {len(bad) - show} more")
    print(f"{good.total()}/{ran.total()} results")
    return not bad


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden")
    parser.add_argument("--model", choices=list(MODELS), default="core")
    parser.add_argument("--select", choices=["basic", "all"], default="basic")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--show", type=int, default=5, help="failing results to describe")
    options = parser.parse_args()
    begun = time.perf_counter()
    work = [(options.model, family, options.select, options.only) for family in cases.names()]
    if options.jobs == 1:
        rows = [run_family(*job) for job in work]
    else:
        with ProcessPoolExecutor(options.jobs) as pool:
            rows = list(pool.map(run_family, *zip(*work, strict=True)))
    found = [row for part in rows for row in part]
    fine = report(found, options.show)
    expected = cases.BASIC if options.select == "basic" else cases.ALL
    if not options.only and len(found) != expected:
        print(f"the data is not whole: expected {expected} results")
        fine = False
    print(f"{time.perf_counter() - begun:.1f} s")
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
