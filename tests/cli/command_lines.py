"""Example command lines for every command.

`{file}` is replaced by a recording, `{folder}` by its folder, and `{out}` by an output name without
its ending.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["COMMAND_LINES", "READS_A_RECORDING", "words_of"]

READS_A_RECORDING = (
    "replay {file}",
    "replay {file} --conf expandable_segments:True",
    "replay {file} -v",
    "replay {file} --json",
    "explain {file}",
    "explain {file} -v",
    "explain {file} --json",
    "top {file}",
    "top {file} --by category --json",
    "top {file} --format speedscope",
    "top {file} --format collapsed",
    "compare {file} {file}",
    "compare {file} {file} -o {out}.html",
    "compare {file} {file} -o {out}.svg",
    "gate {file} --max-reserved 1GiB",
    "gate {file} --max-fragmentation 10% --json",
    "ranks {file} {file}",
    "ranks {folder} --json",
    "colocate {file} {file} --threads",
    "colocate {file} {file} --device-memory 1GiB --sleep cache --no-smallest --json",
    "ranks {file} {file} --smallest -o {out}.html",
    "tune {file} --try max_split_size_mb:128",
    "tune {file} --try max_split_size_mb:128 --json",
    "risk {file}",
    "risk {file} --json",
    "scale {file} --at n=2 {file} --at n=3 --to n=4",
    "report {file} -o {out}.html",
    "plot memory {file} -o {out}.svg",
    "plot address-map {file} -o {out}.svg",
    "plot segments {file} -o {out}.svg",
    "plot sizes {file} -o {out}.svg",
    "plot flame {file} -o {out}.svg",
    "step {file}",
    "step {file} --count 3 --json",
    "lint {file}",
    "lint {file} --json",
    "stats {file}",
    "stats {file} --json",
    "watch {folder} --once --interval 0.1",
    "convert {file} {out}.pickle",
    "convert {file} {out}.npz",
    "convert {file} {out}.perfetto.json",
    "convert {file} {out}.speedscope.json",
    "convert {file} {out}.minimalloc.csv",
    "convert {file} {out}.csv",
    "convert {file} {out}.jsonl",
    "convert {file} {out}.pickle --conf expandable_segments:True",
)
"""Lines of every command that reads a recording, with options that change the output."""

COMMAND_LINES = (
    *READS_A_RECORDING,
    "fit Llama-3.2-1B --gpu 4090 --engine formula",
    "record -o {out}.pickle -- no-such-program",
    "synth oom -o {out}.pickle",
    "crosscheck --python no-such-program",
)
"""Names of all commands."""


def words_of(line: str, file: Path, out: Path) -> list[str]:
    """Return the arguments of a line for the recording `file` and the output folder `out`."""
    return [word.format(file=file, folder=file.parent, out=out / "made") for word in line.split()]
