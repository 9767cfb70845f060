"""Records every program of traces/programs under every setting on the phantom GPU.

    python -m traces.record_all --torch-python ~/torch2.15/bin/python [--only gpt2_training]

Needs a Python with a CUDA build of torch, and transformers, peft, torchvision and diffusers.
Recordings and figures go to traces/recordings; figures of other releases stay unchanged.
Rule: all results are real PyTorch's: its history, and the statistics that each program prints at
its end.  File names in frames are cut to their last part, and times are dropped.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from allocsim.phantom.installs import find_torch
from allocsim.recording import Action, FrameTable, Recording, load, write_npz

ROOT = Path(__file__).parents[1]
RECORDINGS = ROOT / "traces" / "recordings"
FIGURES = RECORDINGS / "figures.json"
CARD = ("--device-memory", "24GiB")

TIGHT_MIB = {
    "gpt2_training": 9100,
    "llama_checkpointing": 5030,
    "lora_finetuning": 5720,
    "resnet_training": 3900,
    "unet_diffusion_step": 1925,
    "greedy_decoding": 1000,
    "two_streams": 4400,
    "cuda_graphs": 2340,
}
"""Programs, and the smallest memory in MiB that each runs in by releasing cached memory."""

SETTINGS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "max-split": "max_split_size_mb:64",
    "roundup": "roundup_power2_divisions:4",
}


@dataclass(frozen=True, slots=True)
class Job:
    """One program under one setting; device: options of `allocsim record`."""

    program: str
    setting: str
    conf: str = ""
    device: tuple[str, ...] = CARD
    arguments: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """Return the arguments of `allocsim`, without the output file."""
        conf = ["--conf", self.conf] if self.conf else []
        program = ["python", f"traces/programs/{self.program}.py", *self.arguments]
        return ["record", *self.device, *conf, "--", *program]


def jobs(torch: str) -> list[Job]:
    """Return every job for a release."""
    found = []
    for program, mib in TIGHT_MIB.items():
        found += [Job(program, name, conf) for name, conf in SETTINGS.items()]
        found.append(Job(program, "tight", device=("--device-memory", f"{mib}MiB")))
        if torch != "2.6":  # in 2.6 a limit is set by a call, not by an option
            share = f"per_process_memory_fraction:{mib / (24 << 10):.4f}"
            found.append(Job(program, "gc", f"garbage_collection_threshold:0.6,{share}"))
    for prompt in (16, 3000, 10000):
        prompts = ("--prompt", str(prompt))
        hopper = ("--gpu", "H100", "--device-memory", "24GiB")
        found.append(Job("qwen2_decoding", f"prompt-{prompt}", "", hopper, prompts))
    if torch != "2.6":  # entries of 2.6 do not name their pool
        found.append(Job("cuda_graphs", "drop", arguments=("--drop",)))
    for name, conf, mib in (
        ("oom", "", 8500),
        ("expandable-oom", SETTINGS["expandable"], 7500),
    ):
        found.append(Job("gpt2_training", name, conf, ("--device-memory", f"{mib}MiB")))
    return found


def run(job: Job, python: Path, torch: str) -> dict[str, Any]:
    """Record, keep the recording in its compact form, and return the run's figures."""
    name = f"{job.program}-{job.setting}-torch{torch}"
    environment = os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    environment["PYTHONWARNINGS"] = "ignore"
    with tempfile.TemporaryDirectory() as folder:
        snapshot = Path(folder) / "snapshot.pickle"
        command = job.command()
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-m", "allocsim", "record", "-o", str(snapshot), *command[1:]],
            env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        recording = compact(load(snapshot))
        plain = Path(folder) / "compact.npz"
        write_npz(recording, plain)
        packed = gzip.compress(plain.read_bytes(), 9, mtime=0)
    (RECORDINGS / f"{name}.npz.gz").write_bytes(packed)
    [trace] = recording.devices
    made = recording.provenance
    assert made is not None
    return asdict(job) | {
        "name": name,
        "torch": torch,
        "command": " ".join(["allocsim", *command]),
        "device_memory": made.device_memory,
        "context_memory": made.context_memory,
        "entries": len(trace),
        "allocations": trace.count(Action.ALLOC),
        "exit_code": done.returncode,
        "oom_text": made.oom_text,
        "stats": json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None,
    }


def compact(recording: Recording) -> Recording:
    """Return the recording without times and with file names cut to their last part."""
    table = recording.frame_table
    frames = tuple(replace(f, filename=f.filename.rpartition("/")[2]) for f in table.frames)
    return replace(
        recording,
        frame_table=FrameTable(frames, table.flat, table.offsets),
        devices=tuple(replace(trace, time_us=None) for trace in recording.devices),
    )


def readme(figures: list[dict[str, Any]]) -> str:
    """Return the page with the provenance of every recording."""
    lines = [_README]
    for row in figures:
        stats = row["stats"] or {}
        peak = f"{stats['reserved_bytes.all.peak']:,}" if stats else "out of memory"
        lines.append(
            f"| {row['program']} | {row['torch']} | {row['setting']} "
            f"| {row['device_memory'] >> 20:,} | {row['entries']:,} | {peak} "
            f"| `{row['command']}` |\n"
        )
    return "".join(lines)


_README = """\
# Recorded programs

`traces/record_all.py` writes the recordings and this page.  Real PyTorch 2.15.0 and 2.6.0 ran the
programs of `traces/programs` over a CUDA driver that only does bookkeeping: every decision is
PyTorch's own, no GPU was involved, and allocsim computed none of the numbers.  The recordings were
made for this project.

`PROGRAM-SETTING-torchRELEASE.npz.gz` is a recording in allocsim's column form, without times and
with file names in stack frames cut to their last part.  `figures.json` has the `memory_stats()`
that each run printed, or the text of its out-of-memory error.  *Device* is the device's memory in
MiB; *tight* is the smallest device that a program runs in, or one just below it.

| program | release | setting | device | entries | peak reserved, bytes | command |
|---|---|---|---|---|---|---|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch-python", type=Path, required=True, help="a Python with torch")
    parser.add_argument("--only", default="", help="programs or names that contain this")
    options = parser.parse_args()

    torch = ".".join(find_torch(str(options.torch_python)).version.split(".")[:2])
    RECORDINGS.mkdir(exist_ok=True)
    for job in jobs(torch):
        if options.only not in f"{job.program}-{job.setting}-torch{torch}":
            continue
        figures = run(job, options.torch_python, torch)
        known = json.loads(FIGURES.read_text()) if FIGURES.exists() else []
        kept = {row["name"]: row for row in (*known, figures)}
        rows = [json.dumps(kept[name], sort_keys=True) for name in sorted(kept)]
        FIGURES.write_text("[\n" + ",\n".join(rows) + "\n]\n")
        (RECORDINGS / "README.md").write_text(readme([kept[name] for name in sorted(kept)]))
        peak = figures["stats"] and figures["stats"]["reserved_bytes.all.peak"]
        print(figures["name"], figures["entries"], "entries, peak reserved", peak, flush=True)


if __name__ == "__main__":
    main()
