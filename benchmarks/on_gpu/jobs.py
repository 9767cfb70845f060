"""Jobs of each part.  A job is one process that writes one file of the layout of `traces/h200`."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from allocsim.errors import AllocsimError
from allocsim.fitting import estimate, program_of
from allocsim.phantom import find_gpu
from allocsim.recording import FrameTable, Recording, load, write_npz
from allocsim.units import GIB
from benchmarks.on_gpu.machine import INSIDE, FailedError, Machine
from benchmarks.on_gpu.tasks import LIMITS, TASKS, edit_name, edited_programs
from benchmarks.recent import Case

__all__ = ["PARTS", "Job", "cases", "jobs"]

ROOT = Path(__file__).parents[2]
H200 = ROOT / "traces" / "h200"
PARTS = (
    *("properties", "context", "driver", "kernels", "graphs", "cases", "tasks", "edits"),
    *("programs", "limits", "crosscheck"),
)
"""Parts in the order of execution."""

SETTINGS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "roundup": "roundup_power2_divisions:4",
    "max-split": "max_split_size_mb:64",
    "gc": "garbage_collection_threshold:0.6,per_process_memory_fraction:{fraction:.2f}",
}
_GC_LIMIT = 16.776 * GIB
"""Bytes that the programs may use under "gc": 0.12 of an H200."""

PROGRAMS = {
    "two_streams": ("torch",),
    "cuda_graphs": ("torch",),
    "resnet_training": ("torchvision",),
    "gpt2_training": ("transformers",),
    "greedy_decoding": ("transformers",),
    "llama_checkpointing": ("transformers",),
    "lora_finetuning": ("transformers", "peft"),
    "unet_diffusion_step": ("diffusers",),
}
"""Programs of `traces/programs`, with the packages that they import."""

_WHOLE = 80.0
"""GiB of a job that needs the whole card."""
_IMAGES = 16.0
"""GiB that suffice for each task with images."""

_OF_THE_TASK = (
    *("id", "kind", "model", "dtype", "optimizer", "batch", "seq", "gc", "attn", "image"),
    *("channels_last", "lora", "lora_targets", "prompt", "decode", "hf_config"),
)
_ONE_TABLE = Lock()
"""Lock for adding a row, because several cases may end at once."""


@dataclass(frozen=True)
class Job:
    """One process that writes one file.

    name: name of the job, unique in its part.
    output: file that shows that the job is done.
    make: function that runs the process, given a limit in seconds, and writes `output` at the end.
    needs: Python packages without which the job is skipped.
    limit: longest duration in seconds.
    gib: memory of the card that the job needs, at most.
    """

    part: str
    name: str
    output: Path
    make: Callable[[float], None]
    needs: tuple[str, ...] = ("torch",)
    limit: float = 120.0
    gib: float = 12.0

    @property
    def is_done(self) -> bool:
        """True if an earlier run wrote the output."""
        return self.output.exists()


def jobs(machine: Machine, out: Path, *, ops: int, only: str = "") -> Iterator[Job]:
    """Yield the jobs of every part, in order.

    ops: operations of the cross-check.
    only: text that names of programs and cases must contain.
    """
    bench = _Bench(machine, out)
    for name in ("properties", "context", "driver", "graphs"):
        target = out / f"{name}.json"
        yield Job(name, name, target, partial(bench.script, target, ()))
    target, shapes = out / "kernels.json", str(H200 / "kernels.json")
    yield Job("kernels", "kernels", target, partial(bench.script, target, (shapes,)), limit=180)
    for row in cases():
        if only in row["id"]:
            target = out / "cases" / f"{row['id']}.npz.gz"
            needs: tuple[str, ...]
            needs = ("torch", "torchvision" if "image" in row else "transformers")
            needs += ("peft",) * bool(row.get("lora"))
            yield Job("cases", row["id"], target, partial(bench.case, row, target), needs)
    yield from _tasks(bench, "tasks", TASKS, only)
    for program, edit in edited_programs():
        name = edit_name(program, edit)
        if only in name:
            target = out / "edits" / f"{name}.npz.gz"
            edited = ("benchmarks/edits/programs.py", program, *filter(None, (edit,)))
            yield Job("edits", name, target, partial(bench.edited, edited, target))
    for name, setting, arguments, needs in _programs():
        if only in name:
            target = out / "programs" / f"{name}.npz.gz"
            command = (f"traces/programs/{name.split('-')[0]}.py", *arguments)
            make = partial(bench.program, command, setting, target)
            yield Job("programs", name, target, make, needs)
    yield from _tasks(bench, "limits", LIMITS, only)
    target = out / "crosscheck.json"
    make = partial(bench.crosscheck, ops, target)
    yield Job("crosscheck", "crosscheck", target, make, limit=240)


def _tasks(bench: _Bench, part: str, tasks: Iterable[Case], only: str) -> Iterator[Job]:
    for each in tasks:
        if only in each.id:
            target = bench.out / part / f"{each.id}.npz.gz"
            library = "torchvision" if each.task.model.sees else "transformers"
            needs = ("torch", library, *("peft",) * bool(each.task.lora))
            gib = _WHOLE if part == "limits" else _most_gib(each)
            yield Job(part, each.id, target, partial(bench.task, each, target), needs, gib=gib)


def _most_gib(case: Case) -> float:
    """Return the memory that a task needs at most, by formula."""
    if case.task.model.sees:
        return _IMAGES
    try:
        found = estimate(case.task, find_gpu(case.card))
    except AllocsimError:
        return _WHOLE
    return found.process_bytes[1] / GIB


def _programs() -> Iterator[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    """Yield (name, setting, arguments, needed packages) of each program and setting."""
    for program, needs in PROGRAMS.items():
        for setting in SETTINGS:
            yield f"{program}-{setting}", setting, (), needs
    yield "qwen2_decoding-prompt-3000", "default", ("--prompt", "3000"), ("transformers",)


def cases() -> list[dict[str, Any]]:
    """Return the rows of the twenty cases of `traces/h200`."""
    lines = (H200 / "cases" / "cases.jsonl").read_text().splitlines()
    return sorted((json.loads(line) for line in lines), key=_id)


@dataclass(frozen=True)
class _Bench:
    """Machine and output folder.  Each method makes one output within `limit` seconds."""

    machine: Machine
    out: Path

    def script(self, target: Path, arguments: tuple[str, ...], limit: float) -> None:
        """Run the script of `inside` that has the name of `target`."""
        name = target.stem
        raw = _fresh(self.out / "work" / name) / "out.json"
        command = self.machine.script(f"{name}.py", *arguments, str(raw))
        self.machine.run(command, limit, log=self.log(name), add=self.machine.environment)
        _whole(target, raw.read_bytes())
        shutil.rmtree(raw.parent)

    def program(self, program: tuple[str, ...], setting: str, target: Path, limit: float) -> None:
        """Record a program of `traces/programs`, and store its statistics."""
        name = target.name.removesuffix(".npz.gz")
        raw = _fresh(self.out / "work" / name)
        memory = int(json.loads((self.out / "properties.json").read_text())["total_memory"])
        conf = SETTINGS[setting].format(fraction=min(_GC_LIMIT / memory, 0.9))
        command = self.machine.recorded(program, raw)
        add = {"PYTORCH_CUDA_ALLOC_CONF": conf}
        output = self.machine.run(command, limit, log=self.log(name), add=add)
        _keep(raw, target)
        stats = json.loads(output.strip().splitlines()[-1])
        _merge(self.out / "programs" / "stats.json", name, stats)

    def case(self, row: dict[str, Any], target: Path, limit: float) -> None:
        """Record the training or serving task of a row, and store its statistics as a row."""
        raw = _fresh(self.out / "work" / row["id"])
        asked, said = raw / "row.json", raw / "said.json"
        asked.write_text(json.dumps({key: row[key] for key in _OF_THE_TASK if key in row}))
        self._counted({}, (str(INSIDE / "case.py"), str(asked), str(said)), target, limit)

    def task(self, case: Case, target: Path, limit: float) -> None:
        """Record the program of `allocsim fit` for a task, and store its statistics as a row."""
        raw = _fresh(self.out / "work" / case.id)
        text, said = raw / "program.py", raw / "said.json"
        text.write_text(program_of(case.task))
        about = {"id": case.id, "task": case.task.text}
        self._counted(about, (str(INSIDE / "task.py"), str(text), str(said)), target, limit)

    def _counted(
        self, about: dict[str, Any], program: tuple[str, ...], target: Path, limit: float
    ) -> None:
        """Record a program, and store the JSON that it writes to its last argument as a row."""
        said = Path(program[-1])
        name = target.name.removesuffix(".npz.gz")
        self.machine.run(self.machine.recorded(program, said.parent), limit, log=self.log(name))
        found = about | json.loads(said.read_text())
        _keep(said.parent, target)
        with _ONE_TABLE:
            _add_row(target.parent / f"{target.parent.name}.jsonl", found)

    def edited(self, program: tuple[str, ...], target: Path, limit: float) -> None:
        """Record a program of `benchmarks.edits`."""
        name = target.name.removesuffix(".npz.gz")
        raw = _fresh(self.out / "work" / name)
        self.machine.run(self.machine.recorded(program, raw), limit, log=self.log(name))
        _keep(raw, target)

    def crosscheck(self, ops: int, target: Path, limit: float) -> None:
        """Run `allocsim crosscheck` with `ops` operations, and store its JSON."""
        place = "--gpu" if self.machine.phantom is None else "--phantom"
        command = [sys.executable, "-m", "allocsim", "crosscheck", place]
        command += ["--python", self.machine.python, "--ops", str(ops), "--jobs", "2", "--json"]
        output = self.machine.run(command, limit, log=self.log("crosscheck"), fine=(0, 1))
        _whole(target, output.replace(self.machine.python, "python").encode())

    def log(self, name: str) -> Path:
        """Return the file for the errors of a job."""
        return self.out / "logs" / f"{name}.txt"


def _fresh(folder: Path) -> Path:
    """Delete the contents of `folder`, create it if needed, and return it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _merge(path: Path, name: str, value: object) -> None:
    """Set the key `name` of the JSON file at `path` to `value`."""
    known = json.loads(path.read_text()) if path.exists() else {}
    merged = dict(sorted({**known, name: value}.items()))
    _whole(path, (json.dumps(merged, indent=0) + "\n").encode())


def _keep(raw: Path, target: Path) -> None:
    """Write the recording in the folder `raw` to `target` as a column file, and remove `raw`."""
    found = sorted(raw.glob("*.pickle*"))
    if not found:
        raise FailedError("the program wrote no recording")
    plain = raw / "compact.npz"
    write_npz(_without_folders(load(found[-1])), plain)
    _whole(target, gzip.compress(plain.read_bytes(), 9, mtime=0))
    shutil.rmtree(raw)


def _without_folders(recording: Recording) -> Recording:
    """Cut file names in stack frames to their last part."""
    table = recording.frame_table
    frames = tuple(replace(f, filename=f.filename.rpartition("/")[2]) for f in table.frames)
    return replace(recording, frame_table=FrameTable(frames, table.flat, table.offsets))


def _add_row(table: Path, row: dict[str, Any]) -> None:
    """Add a row to a file of JSON lines, and remove an older row with the same id."""
    rows = [json.loads(line) for line in table.read_text().splitlines()] if table.exists() else []
    rows = sorted([each for each in rows if each["id"] != row["id"]] + [row], key=_id)
    _whole(table, "".join(json.dumps(each) + "\n" for each in rows).encode())


def _id(row: dict[str, Any]) -> str:
    return str(row["id"])


def _whole(target: Path, data: bytes) -> None:
    """Write a file so that it is complete or not changed at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    part.write_bytes(data)
    part.replace(target)
