"""What a recording can be written as: a row for each format, and how one is chosen by a name.

Rule: a name that says nothing is refused, nothing is guessed.  Every file is written whole or not
at all, and the same recording gives the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from allocsim.questions.top import top
from allocsim.report.formats.minimalloc import write_minimalloc
from allocsim.report.formats.perfetto import write_perfetto
from allocsim.report.formats.rows import write_csv, write_jsonl, write_parquet
from allocsim.report.top import speedscope_document
from allocsim.trace import Recording, dump_npz, dump_snapshot, packed_file

__all__ = ["FORMATS", "Format", "convert", "endings", "format_of", "write_as"]

_PACKED = ".gz"


@dataclass(frozen=True, slots=True)
class Format:
    """name: as --to takes it.  suffixes: what a file of it may end in, before .gz.

    what: what it is, and what opens it.  write: puts a recording into an open file.  needs: the
    package that it cannot be written without, "" for none.
    """

    name: str
    suffixes: tuple[str, ...]
    what: str
    write: Callable[[Recording, BinaryIO], None]
    needs: str = ""


def write_speedscope(recording: Recording, file: BinaryIO) -> None:
    """Who held the memory at the error, or else at the peak, a profile for each device."""
    tops = [top(recording, device=trace.device) for trace in recording.devices]
    file.write(json.dumps(speedscope_document(*tops)).encode())


_ROWS = (
    Format("snapshot", (".pickle", ".pkl"), "a snapshot, for PyTorch's viewer", dump_snapshot),
    Format("columns", (".npz",), "columns, which allocsim loads fastest", dump_npz),
    Format("perfetto", (".perfetto.json", ".trace.json"), "a trace for Perfetto", write_perfetto),
    Format("speedscope", (".speedscope.json",), "a profile for speedscope", write_speedscope),
    Format("minimalloc", (".minimalloc.csv",), "a problem for MiniMalloc", write_minimalloc),
    Format("csv", (".csv",), "a table of entries, as CSV", write_csv),
    Format("jsonl", (".jsonl", ".ndjson"), "a table of entries, as JSON Lines", write_jsonl),
    Format("parquet", (".parquet",), "a table of entries, as Parquet", write_parquet, "pyarrow"),
)

FORMATS = {each.name: each for each in _ROWS}
"""Every format by its name; where one suffix ends in another, the longer one stands first."""


def endings() -> str:
    """Every ending that tells a format, for a sentence."""
    return ", ".join(suffix for each in FORMATS.values() for suffix in each.suffixes)


def format_of(name: str, to: str | None = None) -> Format | None:
    """The format of a file of that name; `to` says it where the name need not.  None: unknown."""
    if to is not None:
        return FORMATS[to]
    plain = name.lower().removesuffix(_PACKED)
    return next((each for each in FORMATS.values() if plain.endswith(each.suffixes)), None)


def convert(recording: Recording, path: str | os.PathLike[str], to: str | None = None) -> Format:
    """Write `recording` in the format that the file's name tells, or in the one called `to`.

    The format that was chosen.  Raises ValueError for a name that tells none, RecordingError for
    what the format cannot hold, OSError as the system does.
    """
    chosen = format_of(os.fspath(path), to)
    if chosen is None:
        raise ValueError(f"{os.fspath(path)} ends in none of {endings()}")
    write_as(chosen, recording, path)
    return chosen


def write_as(chosen: Format, recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write `recording` to `path`, packed if its name ends in .gz, in place of any file there.

    Raises OSError as the system does, RecordingError for what the format cannot hold.
    """
    with packed_file(path) as file:
        chosen.write(recording, file)
