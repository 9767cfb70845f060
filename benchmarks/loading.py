"""Measure time and memory to load a large snapshot.

    python -m benchmarks.loading [--entries 1000000] [--runs 3] [--keep FOLDER]

Makes two snapshots in the form of PyTorch 2.15 (`pickle`, protocol 4).  In one the entries share
their stacks.  In the other 65 % of the entries have a separate list, thirty frames deep, with 240
different values, as in recordings of real programs.  Each is loaded in separate processes by
`allocsim.load` and by `pickle.load`, alternately.

Rule: wall time and processor time are those of the call alone.  Memory is the process's peak minus
its memory before the call, without pages of the file (`RssAnon`, sampled every 5 ms).  Columns are
those of the recording, including frames.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.output import where_and_when

BARS = {"shared": 2.0, "own": 4.0}
"""Target in seconds for a million entries, on an idle machine."""

_STACKS, _DEPTH, _FRAMES, _OWN = 240, 30, 1500, 0.65
_BASE = 0x7F0000000000

_CALLS = {
    "allocsim": "from allocsim import load; call = load",
    "pickle": "import pickle; call = lambda path: pickle.load(open(path, 'rb'))",
}
_PROGRAM = """
import gc, json, sys, time
{setup}
print("ready", flush=True)
sys.stdin.readline()
begin, used = time.perf_counter(), time.process_time()
gc.disable()
value = call(sys.argv[1])
wall, cpu = time.perf_counter() - begin, time.process_time() - used
size = 0
if hasattr(value, "devices"):
    table = value.frame_table
    size = table.flat.nbytes + table.offsets.nbytes
    size += sum(c.nbytes for trace in value.devices for c in trace.columns().values())
print(json.dumps(dict(wall=wall, cpu=cpu, columns=size)), flush=True)
sys.stdin.readline()
"""


def snapshot(entries: int, kind: str) -> dict[str, Any]:
    """Return a snapshot with `entries` entries on device 0.

    kind: "shared" if entries share their stacks, "own" if most have a separate list.
    """
    source = random.Random(entries)
    frames = [
        {"filename": f"/opt/site-packages/torch/nn/{i % 97}.py", "name": f"forward_{i}", "line": i}
        for i in range(_FRAMES)
    ]
    stacks = [source.sample(frames, _DEPTH) for _ in range(_STACKS)]
    rows: list[dict[str, Any]] = []
    live: list[tuple[int, int, list[Any]]] = []
    for index in range(entries):
        if len(live) < 400 or (len(live) < 800 and source.random() < 0.5):
            stack = source.choice(stacks)
            address = _BASE + 512 * source.randrange(1 << 24)
            live.append((address, 512 * source.randint(1, 4096), stack))
            action, (address, size, stack) = "alloc", live[-1]
        elif rows and rows[-1]["action"] == "free_requested":
            address, size, stack = live.pop()
            action = "free_completed"
        else:
            at = source.randrange(len(live))
            live[at], live[-1] = live[-1], live[at]
            action, (address, size, stack) = "free_requested", live[-1]
        if kind == "own" and source.random() < _OWN:
            stack = list(stack)
        rows.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": 1_795_208_763_463_012 + index,
                "compile_context": "N/A",
                "user_metadata": "",
                "pool_id": tuple([0, 0]),  # noqa: C409  (PyTorch makes a new one each time; (0, 0) is shared)
                "frames": stack,
            }
        )
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1}
    segments = [_segment(stacks)]
    return {"segments": segments, "device_traces": [rows], "allocator_settings": settings}


def _segment(stacks: list[list[Any]]) -> dict[str, Any]:
    """Return a segment with a block per stack, so that frames precede entries as in real files."""
    size = 2 << 20
    blocks = [
        {
            "address": _BASE + index * size,
            "size": size,
            "requested_size": size,
            "state": "active_allocated",
            "frames": stack,
        }
        for index, stack in enumerate(stacks)
    ]
    return {
        "device": 0,
        "address": _BASE,
        "total_size": size * len(blocks),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": stacks[0],
        "blocks": blocks,
    }


def measured(path: Path, reader: str) -> dict[str, float]:
    """Return seconds and bytes of one load in a new process, without cached columns."""
    command = [sys.executable, "-c", _PROGRAM.format(setup=_CALLS[reader]), str(path)]
    environment = os.environ | {"ALLOCSIM_NO_CACHE": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = most = _anonymous(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        # Poll without blocking on the answer, so that memory is sampled during the call.
        while not _is_waiting(process.stdout):
            most = max(most, _anonymous(process.pid))
            time.sleep(0.005)
        most = max(most, _anonymous(process.pid))
        answer: dict[str, float] = json.loads(process.stdout.readline())
        process.stdin.write("\n")
    return answer | {"memory": float(most - before)}


def _is_waiting(stream: Any) -> bool:
    return bool(select.select([stream], [], [], 0)[0])


def _anonymous(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("RssAnon:")[2].split()[0]) << 10


def lines(folder: Path, entries: int, runs: int) -> Iterator[str]:
    """Yield the lines of the table."""
    yield (f"{where_and_when()}; {entries:,} entries, {runs} runs, median")
    yield ""
    yield (
        "| file | MB | load, s | of the processor, s | pickle.load, s | of the processor, s "
        "| ratio | memory, MB | of pickle.load, MB | columns, MB | bar, s |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for kind, bar in BARS.items():
        path = folder / f"{kind}-{entries}.pickle"
        if not path.exists():
            path.write_bytes(pickle.dumps(snapshot(entries, kind), protocol=4))
        found: dict[str, list[dict[str, float]]] = {reader: [] for reader in _CALLS}
        for _ in range(runs):
            for reader, rows in found.items():
                rows.append(measured(path, reader))
        mine, theirs = (
            {key: median(row[key] for row in rows) for key in rows[0]} for rows in found.values()
        )
        yield (
            f"| {kind} | {path.stat().st_size / 1e6:.0f} | {mine['wall']:.2f} | {mine['cpu']:.2f} "
            f"| {theirs['wall']:.2f} | {theirs['cpu']:.2f} | {mine['cpu'] / theirs['cpu']:.2f} "
            f"| {mine['memory'] / 1e6:.0f} | {theirs['memory'] / 1e6:.0f} "
            f"| {mine['columns'] / 1e6:.0f} | {bar:g} |"
        )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loading", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="folder for the snapshots")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        for line in lines(folder, arguments.entries, arguments.runs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
