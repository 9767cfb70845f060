"""Writers of recordings in the formats of other tools, chosen by file name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from allocsim.analysis.top import top
from allocsim.errors import RecordingError
from allocsim.recording import Recording, dump_npz, dump_snapshot, packed_file
from allocsim.report.formats.perfetto import perfetto_events, write_perfetto
from allocsim.report.formats.rows import (
    COLUMNS,
    write_csv,
    write_jsonl,
    write_minimalloc,
    write_parquet,
)
from allocsim.report.top import speedscope_document

__all__ = [
    "COLUMNS", "FORMATS", "Format", "convert", "endings", "format_of", "perfetto_events",
    "write_as",
]  # fmt: skip

_PACKED = ".gz"


@dataclass(frozen=True, slots=True)
class Format:
    """Output format of a recording.

    name: value of --to.
    suffixes: file name endings, before .gz.
    what: description, with the name of the tool that opens such files.
    needs: optional package that `write` imports; "" if it needs none.
    """

    name: str
    suffixes: tuple[str, ...]
    what: str
    write: Callable[[Recording, BinaryIO], None]
    needs: str = ""


def write_speedscope(recording: Recording, file: BinaryIO) -> None:
    """Write the stacks that hold memory at the error, or at the peak, as a profile per device."""
    if not recording.devices:
        raise RecordingError(recording.path, "holds neither segments nor entries, and so no stacks")
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
"""Formats by name; a suffix that ends in another suffix comes first."""


def endings() -> str:
    return ", ".join(suffix for each in FORMATS.values() for suffix in each.suffixes)


def format_of(name: str, to: str | None = None) -> Format | None:
    """Return the format named `to`, or the format of a file name's ending; None if unknown."""
    if to is not None:
        return FORMATS[to]
    plain = name.lower().removesuffix(_PACKED)
    return next((each for each in FORMATS.values() if plain.endswith(each.suffixes)), None)


def convert(recording: Recording, path: str | os.PathLike[str], to: str | None = None) -> Format:
    """Write `recording` to `path` and return the format used.

    to: name of the format; None to choose it by the ending of `path`.
    Raises ValueError for an unknown file name, RecordingError if the format cannot represent the
    recording, and OSError if writing fails.
    """
    chosen = format_of(os.fspath(path), to)
    if chosen is None:
        raise ValueError(f"{os.fspath(path)} has no known ending; expected one of {endings()}")
    write_as(chosen, recording, path)
    return chosen


def write_as(chosen: Format, recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write `recording` to `path`, compressed if it ends in .gz, replacing any file there."""
    with packed_file(path) as file:
        chosen.write(recording, file)
