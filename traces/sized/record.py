"""Records training.py at several sizes on the phantom GPU, with the peaks of each run.

    python -m traces.sized.record --torch-python ~/torch2.15/bin/python [--only "--batch 2"]

Rule: the recordings and peaks.json contain results of real PyTorch, never of allocsim.  Recordings
are kept for sizes that others are predicted from; for the others only the peaks.
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
PEAKS = FOLDER / "peaks.json"
KEPT = (
    *("--batch 2", "--batch 3", "--batch 8", "--batch 2 --sequence 2560"),
    *("--batch 3 --sequence 2560", "--batch 2 --sequence 1600", "--batch 1 --sequence 512"),
    *("--batch 2 --checkpointing", "--batch 3 --checkpointing"),
    *("--layers 2", "--layers 3", "--layers 5"),
    *("--layers 2 --batch 3", "--layers 3 --batch 3"),
)
OTHERS = (
    *("--batch 4", "--batch 6", "--batch 12", "--batch 16", "--batch 17", "--batch 18"),
    *("--batch 8 --checkpointing", "--batch 16 --checkpointing", "--batch 4 --sequence 2560"),
    *("--batch 2 --sequence 2304", "--batch 6 --sequence 3072"),
    *("--layers 12", "--layers 24", "--layers 80"),
)
TIGHT = ("--batch 17", "--batch 18")
"""Sizes to run again with 24 GiB, where only the first fits."""

_CARD = ("--gpu", "A100 80GB")
_TIGHT = (*_CARD, "--device-memory", "24GiB", "--context-memory", "512MiB")


def name_of(options: str) -> str:
    """Return the name of a run, such as batch2, batch2-sequence2560, batch2-checkpointing."""
    return options.replace(" --", "-").replace("--", "").replace(" ", "")


def run(
    options: str, python: Path, card: tuple[str, ...] = _CARD, *, keeps: bool = False
) -> dict[str, int] | None:
    """Run the program at one size and return its peaks; None if it ran out of memory.

    Keeps the recording if requested.
    """
    environment = os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder:
        snapshot, plain = Path(folder) / "snapshot.pickle", Path(folder) / "compact.npz"
        done = subprocess.run(  # noqa: S603
            [
                *(sys.executable, "-m", "allocsim", "record", *card),
                *("-o", str(snapshot), "--", "python", str(FOLDER / "training.py")),
                *options.split(),
            ],
            env=environment, stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        recording = load(snapshot)
        assert recording.provenance is not None
        if recording.provenance.oom_text:
            return None
        if keeps:
            write_npz(compact(recording), plain)
            packed = gzip.compress(plain.read_bytes(), 9, mtime=0)
            (FOLDER / f"{name_of(options)}.npz.gz").write_bytes(packed)
    stats = json.loads(done.stdout.splitlines()[-1])
    return {key: stats[key] for key in ("reserved_bytes.all.peak", "allocated_bytes.all.peak")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch-python", type=Path, required=True, help="a Python with torch")
    parser.add_argument("--only", choices=(*KEPT, *OTHERS), help="this size only")
    options = parser.parse_args()

    known: dict[str, object] = json.loads(PEAKS.read_text()) if PEAKS.exists() else {}
    known["torch"] = find_torch(str(options.torch_python)).version
    for each in (*KEPT, *OTHERS):
        if options.only not in (None, each):
            continue
        known[name_of(each)] = run(each, options.torch_python, keeps=each in KEPT)
        print(each, known[name_of(each)], flush=True)
        write(known)
    for each in TIGHT:
        if options.only is None:
            known[f"{name_of(each)}-24GiB"] = run(each, options.torch_python, _TIGHT)
            write(known)


def write(known: dict[str, object]) -> None:
    """Write the results of the runs."""
    rows = [f"{json.dumps(name)}: {json.dumps(peaks)}" for name, peaks in known.items()]
    PEAKS.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
