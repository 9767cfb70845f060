"""Run the text of a program and write what PyTorch and the driver counted.

    task.py PROGRAM OUT

An out-of-memory error is written with its text, and ends the program without failure.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.on_gpu.inside.packages import installed

STATS = (
    *("allocated_bytes.all.peak", "reserved_bytes.all.peak", "reserved_bytes.all.current"),
    *("num_alloc_retries", "num_ooms"),
)


def process_mib() -> int | None:
    """Return the MiB of the card that nvidia-smi attributes to this process, None if unknown."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    found = (line.split(", ") for line in lines.stdout.splitlines())
    return next((int(mib) for pid, mib in found if int(pid) == os.getpid()), None)


def main() -> None:
    text, out = Path(sys.argv[1]).read_text(), Path(sys.argv[2])
    error = None
    try:
        exec(compile(text, "program.py", "exec"), {"__name__": "__main__"})  # noqa: S102
    except torch.OutOfMemoryError as found:
        error = str(found)
    torch.cuda.synchronize()
    counted = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    row = {
        **{name: counted.get(name, 0) for name in STATS},
        "oom_text": error,
        "free_bytes": free,
        "device_memory": total,
        "process_mib": process_mib(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": installed("transformers"),
        "peft": installed("peft"),
    }
    out.write_text(json.dumps(row))


if __name__ == "__main__":
    main()
