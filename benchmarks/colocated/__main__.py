"""Compare `allocsim colocate` with real PyTorch programs that share one phantom card.

    python -m benchmarks.colocated TORCH_PYTHON [OUT]

Each program is recorded alone.  Then programs run together on one card, in the order of the phases,
and the peak of the card and the failing phase are compared with the prediction.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from allocsim.analysis.colocate import Colocation, colocate
from allocsim.phantom import Gpu, find_torch, phantom_environment
from allocsim.units import GIB, MIB

PROGRAM = Path(__file__).with_name("program.py")
CONTEXT = 512 * MIB
CARD = 80 * GIB


@dataclass(frozen=True, slots=True)
class Case:
    """Programs on one card, and the order of their phases.

    kinds: programs, named A, B and so on.
    turns: number of a program and number of its parts, for each phase.
    confs: allocator setting of each program.
    memory: bytes of the card.
    cache: True to call empty_cache after each phase.
    exits: letters of programs that end after their last phase.
    threads: the programs are in one process.
    workspaces: False to run cuBLAS without the workspaces that PyTorch requests once per process.
    at_once: the programs run at the same time, and the prediction is from recordings of that run.
    """

    name: str
    kinds: tuple[str, ...]
    turns: tuple[tuple[int, int], ...]
    confs: tuple[str, ...] = ("", "")
    memory: int = CARD
    cache: bool = False
    exits: str = ""
    threads: bool = False
    at_once: bool = False
    workspaces: bool = True


RL = ((1, 3), (0, 3), (1, 3), (0, 3))
"""Rollout and training in turns, twice."""
FINE = tuple((n % 2, 1) for n in range(16))
"""One part of each program in turn."""
EXPANDABLE = "expandable_segments:True"
CASES = (
    Case("train + serve, in phases", ("train", "serve"), RL),
    Case("the same with empty_cache", ("train", "serve"), RL, cache=True),
    Case("the same on 7 GiB", ("train", "serve"), RL, memory=7 * GIB),
    Case("the same on 7 GiB with empty_cache", ("train", "serve"), RL, memory=7 * GIB, cache=True),
    Case("the same, expandable", ("train", "serve"), RL, (EXPANDABLE, EXPANDABLE)),
    Case("train, then serve; train exits", ("train", "serve"), ((0, 6), (1, 6)), exits="A"),
    Case("convolve + serve, in turns", ("convolve", "serve"), FINE),
    Case("the same on 6 GiB", ("convolve", "serve"), FINE, memory=6 * GIB),
    Case("convolve expandable + serve", ("convolve", "serve"), FINE, (EXPANDABLE, "")),
    Case("train + serve in one process", ("train", "serve"), RL, threads=True),
    Case("convolve + serve in one process", ("convolve", "serve"), FINE, threads=True),
    Case("train + serve, no workspaces", ("train", "serve"), RL, threads=True, workspaces=False),
    Case(
        "convolve + serve, no workspaces",
        ("convolve", "serve"),
        FINE,
        threads=True,
        workspaces=False,
    ),
    Case("train + serve at once", ("train", "serve"), ((0, 6), (1, 6)), at_once=True),
    Case("convolve + serve at once", ("convolve", "serve"), ((0, 8), (1, 8)), at_once=True),
)


class Running:
    """Process of programs that runs one part at a time."""

    def __init__(self, python: str, kinds: Sequence[str], env: dict[str, str], *more: str) -> None:
        self.process = subprocess.Popen(
            [python, "-W", "ignore", str(PROGRAM), *kinds, *more],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, line: str) -> dict[str, Any]:
        """Run one part, and return the state of the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def end(self) -> None:
        self.process.communicate()


@dataclass(slots=True)
class Lab:
    """Recordings of programs alone, and runs together.

    recorded: file and number of entries after each part, by program, parts and setting.
    """

    python: str
    folder: Path
    recorded: dict[tuple[str, int, str, bool], tuple[str, list[int]]] = field(default_factory=dict)

    def environment(
        self, conf: str, memory: int, card: Path | None, *, workspaces: bool = True
    ) -> dict[str, str]:
        gpu = Gpu("NVIDIA A100", memory, context_memory=CONTEXT)
        torch = find_torch(self.python)
        env = os.environ | phantom_environment(torch, gpu, address_policy="bump")
        env |= {"PYTORCH_CUDA_ALLOC_CONF": conf}
        if not workspaces:
            env |= {"CUBLAS_WORKSPACE_CONFIG": ":0:0", "CUBLASLT_WORKSPACE_SIZE": "0"}
        return env if card is None else env | {"ALLOCSIM_PHANTOM_SHARED": str(card)}

    def record(
        self, kind: str, parts: int, conf: str, *, workspaces: bool
    ) -> tuple[str, list[int]]:
        """Run a program alone, and return its recording and its entries after each part."""
        key = kind, parts, conf, workspaces
        if key not in self.recorded:
            file = self.folder / f"{kind}-{parts}-{len(self.recorded)}.pickle"
            env = self.environment(conf, CARD, None, workspaces=workspaces)
            running = Running(self.python, [kind], env, "--record", str(file))
            entries = [running.say("0")["entries"] for _ in range(parts)]
            running.end()
            self.recorded[key] = str(file), entries
        return self.recorded[key]

    def run(self, case: Case) -> tuple[int, int | None]:
        """Run the programs together; return the card's peak, and the phase that fails or None."""
        card = self.folder / "card"
        card.unlink(missing_ok=True)
        env = [
            self.environment(conf, case.memory, card, workspaces=case.workspaces)
            for conf in case.confs
        ]
        if case.threads:
            processes = [Running(self.python, case.kinds, env[0])] * len(case.kinds)
        else:
            processes = [
                Running(self.python, [kind], each)
                for kind, each in zip(case.kinds, env, strict=True)
            ]
        failed = None
        for phase, (number, parts) in enumerate(case.turns):
            word = str(number) if case.threads else "0"
            if any(processes[number].say(word)["is_oom"] for _ in range(parts)):
                failed = phase
                break
            if case.cache:
                processes[number].say("c")
            if "AB"[number] in case.exits:
                processes[number].end()
        peak: int = struct.unpack("QQ", card.read_bytes())[1]
        for process in {id(each): each for each in processes}.values():
            if process.process.returncode is None:
                process.end()
        return peak, failed

    def run_at_once(self, case: Case) -> tuple[int, Colocation]:
        """Run the programs at the same time; return the card's peak, and its prediction."""
        card = self.folder / "card"
        card.unlink(missing_ok=True)
        env = self.environment("", case.memory, card)
        files = [str(self.folder / f"at-once-{kind}.pickle") for kind in case.kinds]
        processes = [
            Running(self.python, [kind], env, "--record", file)
            for kind, file in zip(case.kinds, files, strict=True)
        ]

        def play(number: int, parts: int) -> None:
            for _ in range(parts):
                processes[number].say("0")

        with ThreadPoolExecutor() as pool:
            list(pool.map(play, *zip(*case.turns, strict=True)))
        for process in processes:
            process.end()
        peak: int = struct.unpack("QQ", card.read_bytes())[1]
        found = colocate(
            files,
            device_memory=case.memory,
            by_time=True,
            context=CONTEXT,
            torch_version=find_torch(self.python).release,
            smallest=False,
        )
        return peak, found

    def smallest(self, case: Case) -> int:
        """Return the bytes of the smallest card, as predicted."""
        found = self.predict(case, smallest=True).smallest
        assert found is not None
        return found

    def predict(self, case: Case, *, smallest: bool = False) -> Colocation:
        """Return the prediction from the recordings of the programs alone."""
        parts = [sum(n for who, n in case.turns if who == index) for index in range(2)]
        found = [
            self.record(kind, n, conf, workspaces=case.workspaces)
            for kind, n, conf in zip(case.kinds, parts, case.confs, strict=True)
        ]
        phases, reached = [], [0, 0]
        for phase, (index, n) in enumerate(case.turns):
            reached[index] += n
            entries = found[index][1]
            end = "" if reached[index] == parts[index] else f"@{entries[reached[index] - 1]}"
            phases.append(f"{phase}:{'AB'[index]}{end}")
        sleep = ["cache"] * case.cache + [f"{letter}:exit" for letter in case.exits]
        return colocate(
            [file for file, _ in found],
            device_memory=case.memory,
            phases=",".join(phases),
            threads=case.threads,
            sleep=sleep,
            context=CONTEXT,
            torch_version=find_torch(self.python).release,
            smallest=smallest,
        )


def _cases(lab: Lab, only: str) -> Iterator[Case]:
    """Yield the cases whose name has `only`, and cases on the smallest cards as predicted."""
    yield from (case for case in CASES if only in case.name)
    for case in (CASES[0], CASES[6]):
        name = f"{case.name.partition(',')[0]}, smallest card"
        if only in name:
            size = lab.smallest(case)
            yield replace(case, name=name, memory=size)
            yield replace(case, name=f"{name} - 2 MiB", memory=size - 2 * MIB)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python")
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    lines = [f"{'case':38} {'real peak':>14} {'predicted':>14} {'fails':>6} {'predicted':>9}"]
    print(lines[0])
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(options.python, Path(folder))
        for case in _cases(lab, options.only):
            failed = None
            if case.at_once:
                peak, predicted = lab.run_at_once(case)
            else:
                predicted, (peak, failed) = lab.predict(case), lab.run(case)
            failure = predicted.run.failure
            expected = None if failure is None else failure.phase
            line = (
                f"{case.name:38} {peak:14,} {predicted.run.peak:14,} {failed!s:>6} {expected!s:>9}"
            )
            print(line, flush=True)
            lines.append(line)
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
