"""Compare predictions of `allocsim scale` for programs with more layers with real PyTorch.

    python -m benchmarks.layers --torch-python ~/torch/bin/python [--keep FOLDER] [--only llama]

Records `traces/sized/growing.py` on the phantom GPU with 2, 3 and 4 layers (steps, tokens) and with
more, predicts the latter from the former, and prints the table of benchmarks/results/layers.md.
--keep stores the recordings; stored ones are not recorded again.

Rule: a prediction is exact if the recording that `scale` writes has every recorded entry: the same
action with the same bytes at the same address.
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
from allocsim.fitting.scale import Scaling, recording_at, scaling_of
from allocsim.recording import Action, Recording

HOME = Path(__file__).parents[1]
PROGRAMS = (
    *("llama", "qwen2_fused", "llama_checkpointing", "llama_lora", "llama_clipped"),
    *("llama_autocast", "gpt2_adamw", "gpt2_unfused", "mixtral", "bert_sgd", "vit"),
    *("encoder", "t5", "sequential_sgd", "sequential_adamw", "decode", "decode_static"),
    *("generate", "gpt2_serving"),
)
OTHER_SIZES = {
    "llama_steps": ("llama", "steps"),
    "decode_tokens": ("decode", "decode"),
    "generate_tokens": ("generate", "decode"),
}
"""Programs that do not grow by layers: the program and its option."""

CASES = (*PROGRAMS, *OTHER_SIZES)

RECORDED = ((2, 3), (3, 4))
"""Numbers of layers to fit laws to; each pair is checked against the next number."""

PREDICTED = (5, 12, 24, 80)
"""Default for --to."""


class Recordings:
    """Folder with a recording of each program for each number of layers."""

    def __init__(self, folder: Path, python: Path) -> None:
        self._folder, self._python = folder, python

    def of(self, case: str, number: int) -> Recording:
        """Return the recording of program `case` with `number` layers; make it if not stored."""
        path = self._folder / f"{case}-{number}.pickle"
        if not path.exists():
            program, size = OTHER_SIZES.get(case, (case, "layers"))
            self._record(path, program, f"--{size}", str(number))
        return load(path)

    def _record(self, path: Path, *arguments: str) -> None:
        script = HOME / "traces" / "sized" / "growing.py"
        command = [sys.executable, "-m", "allocsim", "record", "--gpu", "A100 80GB"]
        command += ["-o", str(path), "--", "python", str(script), *arguments]
        environment = os.environ | {"PATH": f"{self._python.parent}:{os.environ['PATH']}"}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def row_of(case: str, numbers: Sequence[int], recordings: Recordings) -> Iterator[str]:
    """Yield the cells of a table row: the fitted numbers of layers, and each prediction."""
    yield f"`{case}`"
    refused = ""
    for first, second in RECORDED:
        try:
            scaling = scaling_of(
                [(recordings.of(case, n), {"layers": n}) for n in (first, second, second + 1)]
            )
        except AllocsimError as error:
            print(f"{case}: {error}", file=sys.stderr)
            refused = f"{first}, {second} are refused"
            continue
        yield f"{first}, {second}" + f" ({refused})" * bool(refused)
        for number in numbers:
            yield prediction_of(scaling, number, recordings.of(case, number))
        return
    yield refused


def prediction_of(scaling: Scaling, number: int, real: Recording) -> str:
    """Return the predicted peak in bytes as text, with the number of entries that differ.

    real: recording of the program with `number` layers.
    """
    made, trace = recording_at(scaling, {"layers": number}).devices[0], real.devices[0]
    peak = scaling.at({"layers": number}).peak_reserved_bytes
    kept = trace.action != Action.SNAPSHOT
    if len(made) != np.count_nonzero(kept):
        return f"{peak:,}: {len(made):,} entries of {np.count_nonzero(kept):,}"
    columns = ("action", "addr", "size", "stream")
    other = [getattr(made, each) != getattr(trace, each)[kept] for each in columns]
    misses = np.count_nonzero(np.any(other, axis=0))
    return f"{peak:,}" if not misses else f"{peak:,}: {misses:,} entries differ"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--torch-python", type=Path, required=True, help="a Python with torch")
    parser.add_argument("--keep", type=Path, help="folder for the recordings")
    parser.add_argument("--only", choices=CASES, action="append", help="this case only")
    parser.add_argument("--to", type=int, nargs="+", default=PREDICTED, help="numbers to predict")
    options = parser.parse_args(argv)

    columns = ["program", "recorded", *(f"{number} layers" for number in options.to)]
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    with tempfile.TemporaryDirectory() as folder:
        recordings = Recordings(options.keep or Path(folder), options.torch_python)
        for case in options.only or CASES:
            print("| " + " | ".join(row_of(case, options.to, recordings)) + " |", flush=True)


if __name__ == "__main__":
    main()
