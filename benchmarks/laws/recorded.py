"""Recording of many programs at a time by real PyTorch over the phantom GPU.

Rule: results are read from recordings only; a program that failed is reported with its last line.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from allocsim.fitting.scale.law import SizedProgram, program_of
from allocsim.phantom import Gpu, find_gpu, find_torch, phantom_environment
from allocsim.phantom.recorder import HOOK
from allocsim.recording import load
from allocsim.replaying import prepare
from allocsim.simulation import StepKind, Steps

__all__ = [
    "CARD", "FailedError", "Releases", "counted", "in_order", "recorded", "releases_of",
    "transformers_of", "without_repeats",
]  # fmt: skip

CARD = "A100 80GB"
_MEMORY = 1 << 40
_SOON = 0.2
"""Seconds between two looks for the next recording."""
_FORKED = Path(__file__).with_name("forked.py")
_ASK = "from importlib.metadata import version; print(version('transformers'))"


class FailedError(Exception):
    """A program that left no recording."""


class Releases(NamedTuple):
    """Releases in a Python: versions of PyTorch and transformers."""

    torch: str
    transformers: str


def releases_of(python: str) -> Releases:
    """Return the releases in the Python at the path `python`."""
    return Releases(find_torch(python).version, transformers_of(python))


def transformers_of(python: str) -> str:
    """Return the version of transformers in the Python at the path `python`."""
    done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def recorded(python: str, programs: Sequence[str], card: str = CARD) -> Iterator[SizedProgram]:
    """Run programs and yield the steps of each, on a GPU with practically unlimited memory.

    card: name of the GPU whose other properties are used.

    Raises FailedError for the first program that failed.
    """
    gpu = replace(find_gpu(card), memory=_MEMORY)
    for out in _run(python, programs, gpu):
        (prepared,) = prepare(load(out), 0)
        yield in_order(program_of(prepared))


def counted(python: str, programs: Sequence[str], gpu: Gpu) -> Iterator[dict[str, int]]:
    """Run programs on a phantom of `gpu` and yield the peaks that PyTorch counted in each.

    A dict has "allocated" and "reserved", in bytes, and "ooms", the number of memory errors.

    Raises FailedError for the first program that failed with another error.
    """
    for out in _run(python, programs, gpu, counts=True):
        found = json.loads(out.read_text())
        if found["code"] and not found["ooms"]:
            raise FailedError(_last_line(out))
        yield found


def _run(python: str, programs: Sequence[str], gpu: Gpu, *, counts: bool = False) -> Iterator[Path]:
    """Run programs on a phantom of `gpu` and yield the file that each left.

    counts: as in `forked.py`.
    """
    torch = find_torch(python)
    with TemporaryDirectory(prefix="allocsim-laws-") as place:
        folder = Path(place)
        outs = [folder / f"{number}.pickle" for number in range(len(programs))]
        jobs = [
            {"program": program, "out": str(out), "counts": counts}
            for program, out in zip(programs, outs, strict=True)
        ]
        (folder / "jobs.json").write_text(json.dumps(jobs))
        environment = {
            **os.environ,
            **phantom_environment(torch, gpu),
            "PYTHONPATH": str(HOOK),
            "ALLOCSIM_RECORD_FOLDER": place,
            "ALLOCSIM_PHANTOM_SIZES_ONLY": "1" if counts else "",
            "OMP_NUM_THREADS": "1",
        }
        command = [python, str(_FORKED), str(folder / "jobs.json")]
        with subprocess.Popen(command, env=environment) as process:
            for out in outs:
                while not out.exists() and process.poll() is None:
                    time.sleep(_SOON)
                if not out.exists():
                    raise FailedError(_last_line(out))
                yield out


def _last_line(out: Path) -> str:
    log = out.with_name(out.name + ".log").read_text("utf-8", "replace")
    return log.strip().rpartition("\n")[2]


def in_order(program: SizedProgram, *, newest_first: bool = False) -> SizedProgram:
    """Return the program with successive frees in the order of their requests.

    autocast releases its copies of the weights in the order of a hash of addresses, which differs
    between processes. The order makes no difference to the allocator.

    newest_first: True for the opposite order. With it the frees of a layer may repeat, although an
        older block is freed with those of the last layer.
    """
    is_free = program.kind == StepKind.FREE
    run = np.cumsum(np.concatenate(([False], ~is_free[1:] | ~is_free[:-1])))
    number = program.block * (-1 if newest_first else 1)
    order = np.lexsort((np.where(is_free, number, 0), run))
    steps = program.steps
    return replace(
        program,
        steps=Steps(
            steps.kind[order],
            steps.entry[order],
            steps.addr[order],
            steps.size[order],
            steps.stream[order],
        ),
        kind=program.kind[order],
        block=program.block[order],
        stream=program.stream[order],
        argument=program.argument[order],
    )


def without_repeats(program: SizedProgram) -> SizedProgram:
    """Return the program without immediate repetitions of a request that is freed at once.

    A convolution without cuDNN requests its workspace in this way for every image. The number of
    repetitions makes no difference to the allocator.
    """
    kind, block, entry = program.kind, program.block, program.steps.entry
    stack = program.prepared.trace.frames[entry]
    is_pair = np.zeros(len(kind), dtype=bool)
    is_pair[:-1] = (
        (kind[:-1] == StepKind.ALLOC) & (kind[1:] == StepKind.FREE) & (block[:-1] == block[1:])
    )
    drops = np.zeros(len(kind), dtype=bool)
    for row in np.flatnonzero(is_pair[:-2] & is_pair[2:]).tolist():
        alike = (program.steps.size[row] == program.steps.size[row + 2]) and (
            stack[row] == stack[row + 2]
        )
        drops[row : row + 2] |= alike
    kept = ~drops
    stays = kept[program.requests]
    number = np.cumsum(stays) - 1
    steps = program.steps
    of_a_block = np.isin(kind, (StepKind.ALLOC, StepKind.FREE))
    return replace(
        program,
        steps=Steps(
            steps.kind[kept],
            steps.entry[kept],
            steps.addr[kept],
            steps.size[kept],
            steps.stream[kept],
        ),
        kind=kind[kept],
        block=np.where(of_a_block, number[block], block)[kept],
        stream=program.stream[kept],
        argument=program.argument[kept],
        size=program.size[stays],
    )
