"""Records program.py under the profiler on the phantom GPU, and keeps the small parts.

    python -m traces.profiled.record --torch-python ~/torch/bin/python

Rule: the files are PyTorch's output without the events that do not concern memory (kernels, shapes,
names of temporary files).  stats.json has the run's own `memory_stats()`, the reference for replays
of the trace.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import shutil
import tempfile
from pathlib import Path
from typing import Any

from allocsim.phantom.gpu import find_gpu
from allocsim.phantom.installs import find_torch
from allocsim.phantom.recorder import RecordedProgram, record

FOLDER = Path(__file__).parent
PROGRAM = FOLDER / "program.py"
_CALLS = ("cpu_op", "python_function")
_KEPT = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "s")


def profiled(python: str, folder: Path) -> Path:
    """Run the program on a phantom card; return its output folder."""
    out = folder / "written"
    program = RecordedProgram(
        (python, str(PROGRAM), str(out)),
        folder / "recorded.pickle",
        find_gpu("RTX 4090"),
        output_to_stderr=True,
    )
    exit_code = record(program).exit_code
    if exit_code:
        raise SystemExit(f"the program failed with exit code {exit_code}")
    return out


def reduced(trace: dict[str, Any]) -> dict[str, Any]:
    """Return the trace without events that do not concern memory."""
    events = []
    for event in trace["traceEvents"]:
        if event["name"] == "[memory]":
            events.append(event)
        elif event.get("cat") in _CALLS:
            events.append({name: event[name] for name in _KEPT if name in event})
    kept: dict[str, Any] = {
        name: trace[name] for name in ("schemaVersion", "deviceProperties") if name in trace
    }
    return {**kept, "traceEvents": events}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch-python", required=True, help="a Python with torch")
    options = parser.parse_args()
    torch = ".".join(find_torch(options.torch_python).version.split(".")[:2])
    with tempfile.TemporaryDirectory() as folder:
        out = profiled(options.torch_python, Path(folder))
        trace = json.dumps(reduced(json.loads((out / "trace.json").read_text()))).encode()
        rows = gzip.decompress((out / "timeline.raw.json.gz").read_bytes())
        for name, plain in (("trace", trace), ("timeline", rows)):
            (FOLDER / f"{name}-torch{torch}.json.xz").write_bytes(lzma.compress(plain, preset=9))
        for name, suffix in (("summary", "txt"), ("stats", "json")):
            shutil.copy(out / f"{name}.{suffix}", FOLDER / f"{name}-torch{torch}.{suffix}")
    print(f"trace-torch{torch}.json.xz")


if __name__ == "__main__":
    main()
