"""Records the programs of programs.py on the phantom GPU, with their own counts of memory.

    python -m traces.counted.record --torch-python ~/torch2.15/bin/python [--only gpt2]

Rule: the recordings and counted.json contain results of real PyTorch, never of allocsim.  File
names in frames are cut to their last part, and times are dropped.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from allocsim.phantom.installs import find_torch
from allocsim.recording import load, write_npz
from traces.record_all import compact

FOLDER = Path(__file__).parent
COUNTED = FOLDER / "counted.json"
PROGRAMS = (
    *("gpt2", "llama", "lora", "resnet", "unet", "bert", "fsdp2", "server", "accumulation"),
    *("compiled", "function", "warm_start"),
)


def run(program: str, python: Path, torch: str) -> None:
    """Record one program; keep its recording and its counts."""
    environment = os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder:
        snapshot, plain = Path(folder) / "snapshot.pickle", Path(folder) / "compact.npz"
        done = subprocess.run(  # noqa: S603
            [
                *(sys.executable, "-m", "allocsim", "record", "--device-memory", "24GiB"),
                *("-o", str(snapshot), "--", "python", str(FOLDER / "programs.py"), program),
            ],
            env=environment, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        write_npz(compact(load(snapshot)), plain)
        packed = gzip.compress(plain.read_bytes(), 9, mtime=0)
    (FOLDER / f"{program}-torch{torch}.npz.gz").write_bytes(packed)
    known = json.loads(COUNTED.read_text()) if COUNTED.exists() else {}
    known[f"{program}-torch{torch}"] = json.loads(done.stdout.splitlines()[-1])
    rows = [f"{json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known)]
    COUNTED.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch-python", type=Path, required=True, help="a Python with torch")
    parser.add_argument("--only", choices=PROGRAMS, help="this program only")
    options = parser.parse_args()

    torch = ".".join(find_torch(str(options.torch_python)).version.split(".")[:2])
    for program in PROGRAMS:
        if options.only in (None, program):
            run(program, options.torch_python, torch)
            print(program, flush=True)


if __name__ == "__main__":
    main()
