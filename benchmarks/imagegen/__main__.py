"""Run the trainings of huggingface/peft's image-generation comparison over a phantom L40S.

    python -m benchmarks.imagegen --peft FOLDER [--python PYTHON] [--row NAME ...] [--steps N]

FOLDER is a checkout of huggingface/peft at the commit that the row ran (given in `measured.json`).
PYTHON is an interpreter with the row's releases of torch, transformers, diffusers and peft. The
comparison's own training loop runs unchanged, including evaluations; no kernel runs and nothing is
downloaded. A row takes minutes, because its Python code runs in full.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from allocsim.phantom import find_gpu, find_torch, phantom_environment
from allocsim.units import MIB
from benchmarks.imagegen.rows import Outcome, Row, read_rows

INSIDE = Path(__file__).with_name("inside.py")
SCRIPT = Path("method_comparison", "image-gen")

CONTEXT_MEMORY = 298 * MIB
"""Bytes of the card that PyTorch cannot use, at most.

A measured run (hra) reserved all but 300 MiB of the card, which include 2 MiB that the comparison
allocates before its counters start.
"""


def predict(row: Row, *, peft: Path, python: str, steps: int) -> Outcome | str:
    """Return what the phantom reserves for `row`, or the end of the output if the run failed.

    peft: checkout of huggingface/peft.
    python: interpreter that runs it.
    steps: number of training steps, 0 for all.
    """
    gpu = replace(find_gpu("L40S"), context_memory=CONTEXT_MEMORY)
    # One thread, because nothing is computed; no hub, because everything that it provides is made
    # here.
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment = os.environ | quiet | phantom_environment(find_torch(python), gpu)
    environment.pop("PYTHONPATH", None)
    with TemporaryDirectory() as folder:
        out = Path(folder, "said.json")
        script = str((peft / SCRIPT).absolute())
        command = [python, str(INSIDE), script, row.experiment, str(steps), str(out)]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=folder
        )
        if done.returncode or not out.exists():
            return f"exit code {done.returncode}: {done.stderr[-400:]}"
        return Outcome.of(row, json.loads(out.read_text()))


HEADER = f"{'experiment':32} {'steps':>5} {'predicted':>14} {'measured':>14} {'error':>12} {'%':>7}"


def line(outcome: Outcome) -> str:
    """Return a row of the table: bytes, error, and the number of means that are exact."""
    row, (equal, means) = outcome.row, outcome.equal_means
    shown = (
        f"{row.experiment:32} {outcome.steps:5} {outcome.peak_reserved:14,}"
        f" {row.peak_reserved:14,} {outcome.error:+12,} {100 * outcome.share:+7.3f}"
        f"  {equal} of {means} means"
    )
    return shown + "".join(f", {other}" for other in outcome.other_releases)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.imagegen", description=__doc__)
    parser.add_argument("--peft", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--row", nargs="*", default=[], metavar="NAME", help="such as lora")
    parser.add_argument("--steps", type=int, default=0, metavar="N", help="train at most N steps")
    given = parser.parse_args(arguments)
    rows = [row for row in read_rows() if not given.row or is_named(row, given.row)]
    if not rows:
        parser.error(f"no row is called {' or '.join(given.row)}")
    print(HEADER)
    failed = 0
    for row in rows:
        outcome = predict(row, peft=given.peft, python=given.python, steps=given.steps)
        if isinstance(outcome, str):
            failed += 1
        print(f"{row.experiment:32} {outcome}" if isinstance(outcome, str) else line(outcome))
        sys.stdout.flush()
    return 1 if failed else 0


def is_named(row: Row, names: Sequence[str]) -> bool:
    """Return whether `names` contain the name of a row or of its method."""
    return any(name in (row.experiment, row.experiment.split("/")[0]) for name in names)


if __name__ == "__main__":
    sys.exit(main())
