"""What `allocsim scale` says of programs with more layers, against what real PyTorch does.

    python -m benchmarks.layers --torch-python ~/torch/bin/python [--keep FOLDER] [--only llama]

Records `traces/sized/growing.py` over the GPU that is not there with 2, 3 and 4 layers and with
more, predicts the latter from the former, and prints a table for docs/scale.md.  --keep holds the
recordings; those that are there are not made again.

Rule: a prediction is exact if the recording that `scale` writes has every entry that was recorded:
the same action of the same bytes at the same address.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from allocsim import load
from allocsim.errors import AllocsimError
from allocsim.questions.scale import Scaling, recording_at, scaling_of
from allocsim.trace import Action, Recording

HOME = Path(__file__).parents[1]
PROGRAMS = (
    *("llama", "qwen2_fused", "llama_checkpointing", "llama_lora", "llama_clipped"),
    *("llama_autocast", "gpt2_adamw", "gpt2_unfused", "mixtral", "bert_sgd", "vit"),
    *("encoder", "sequential_sgd", "sequential_adamw", "decode", "decode_static", "gpt2_serving"),
)
RECORDED = ((2, 3), (3, 4))
"""Numbers of layers to tell a law by, each pair with the next as its check."""

PREDICTED = (5, 12, 24, 80)


class Recordings:
    """A folder with a recording of each program at each number of layers."""

    def __init__(self, folder: Path, python: Path) -> None:
        self._folder, self._python = folder, python

    def of(self, program: str, layers: int) -> Recording:
        """The recording, made now unless it is there."""
        path = self._folder / f"{program}-{layers}.pickle"
        if not path.exists():
            self._record(path, program, layers)
        return load(path)

    def _record(self, path: Path, program: str, layers: int) -> None:
        script = HOME / "traces" / "sized" / "growing.py"
        command = [sys.executable, "-m", "allocsim", "record", "--gpu", "A100 80GB"]
        command += ["-o", str(path), "--", "python", str(script), program, "--layers", str(layers)]
        environment = os.environ | {"PATH": f"{self._python.parent}:{os.environ['PATH']}"}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def row_of(program: str, recordings: Recordings) -> Iterator[str]:
    """The cells of a program: what it was told by, and each prediction."""
    yield f"`{program}`"
    refused = ""
    for first, second in RECORDED:
        runs = [
            (recordings.of(program, layers), {"layers": layers})
            for layers in (first, second, second + 1)
        ]
        try:
            scaling = scaling_of(runs)
        except AllocsimError as error:
            refused = f"{first}, {second} are refused"
            print(f"{program}: {error}", file=sys.stderr)
            continue
        yield f"{first}, {second}" + f" ({refused})" * bool(refused)
        for layers in PREDICTED:
            yield told(scaling, layers, recordings.of(program, layers))
        return
    yield refused


def told(scaling: Scaling, layers: int, real: Recording) -> str:
    """The prediction, against the recording."""
    made, trace = recording_at(scaling, {"layers": layers}).devices[0], real.devices[0]
    peak = scaling.at({"layers": layers}).peak_reserved_bytes
    kept = trace.action != Action.SNAPSHOT
    if len(made) != np.count_nonzero(kept):
        return f"{peak:,}: {len(made):,} entries of {np.count_nonzero(kept):,}"
    columns = ("action", "addr", "size", "stream")
    other = sum(getattr(made, each) != getattr(trace, each)[kept] for each in columns)
    misses = np.count_nonzero(other)
    return f"{peak:,}" if not misses else f"{peak:,}: {misses:,} entries are others"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--torch-python", type=Path, required=True, help="a Python with torch")
    parser.add_argument("--keep", type=Path, help="a folder for the recordings")
    parser.add_argument("--only", choices=PROGRAMS, action="append", help="this program only")
    options = parser.parse_args(argv)

    columns = ["program", "recorded", *(f"{layers} layers" for layers in PREDICTED)]
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    with tempfile.TemporaryDirectory() as folder:
        recordings = Recordings(options.keep or Path(folder), options.torch_python)
        for program in options.only or PROGRAMS:
            print("| " + " | ".join(row_of(program, recordings)) + " |", flush=True)


if __name__ == "__main__":
    main()
