"""Writers of recordings in the formats of other tools, chosen by file name.

Tables (CSV, JSON Lines and Parquet) are written here.  A column is named after PyTorch's key, such
as `addr`.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, BinaryIO

from allocsim.analysis.top import top
from allocsim.errors import RecordingError
from allocsim.metrics import code_names, lifetimes_of
from allocsim.recording import (
    Action,
    FrameTable,
    Recording,
    Trace,
    dump_npz,
    dump_snapshot,
    packed_file,
)
from allocsim.report.formats.perfetto import write_perfetto
from allocsim.report.top import speedscope_document

__all__ = ["COLUMNS", "FORMATS", "Format", "convert", "endings", "format_of", "write_as"]

COLUMNS = (
    "device", "entry", "action", "addr", "size", "stream", "time_us", "pool_id", "device_free",
    "compile_context", "user_metadata", "stack", "name",
)  # fmt: skip
"""Columns of a table, in order; docs/reference/formats.md describes them."""

_FORMULAS = "=+-@\t\r"
"""Characters with which a spreadsheet formula begins."""
_Row = tuple[Any, ...]


def write_csv(recording: Recording, file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    _refuse_empty(recording)
    names = [_escape_formula(name) for name in _names(recording.frame_table)]
    for trace in recording.devices:
        texts = tuple(str(_escape_formula(each)) for each in trace.texts)
        table.writerows(_rows(replace(trace, texts=texts), names))
    text.flush()
    text.detach()


def write_jsonl(recording: Recording, file: BinaryIO) -> None:
    _refuse_empty(recording)
    names = _names(recording.frame_table)
    for trace in recording.devices:
        for row in _rows(trace, names):
            values = zip(COLUMNS, row, strict=True)
            known = {name: value for name, value in values if value is not None}
            file.write(json.dumps(known, separators=(",", ":")).encode() + b"\n")


def write_parquet(recording: Recording, file: BinaryIO) -> None:
    import pyarrow  # noqa: PLC0415
    import pyarrow.parquet  # noqa: PLC0415

    _refuse_empty(recording)
    word = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    types = {
        "device": pyarrow.int32(),
        "stack": pyarrow.int32(),
        "addr": pyarrow.uint64(),
        "stream": pyarrow.uint64(),
        **dict.fromkeys(("action", "pool_id", "name"), word),
        **dict.fromkeys(("compile_context", "user_metadata", "frames"), word),
    }
    columns = (*COLUMNS, "frames")
    schema = pyarrow.schema([(name, types.get(name, pyarrow.int64())) for name in columns])
    names, stacks = _names(recording.frame_table), _stacks(recording.frame_table)
    with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for trace in recording.devices:
            values = list(zip(*_rows(trace, names), strict=True)) or [()] * len(COLUMNS)
            values.append(tuple(stacks[number] for number in trace.frames.tolist()))
            arrays = [
                pyarrow.array(value, type=field.type)
                for value, field in zip(values, schema, strict=True)
            ]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


def _refuse_empty(recording: Recording) -> None:
    if not any(map(len, recording.devices)):
        raise RecordingError(recording.path, "holds no entries, and so no rows of a table")


def _escape_formula(text: str | None) -> str | None:
    return f"'{text}" if text and text[0] in _FORMULAS else text


def _rows(trace: Trace, names: Sequence[str | None]) -> Iterator[_Row]:
    actions = {int(action): action.text for action in Action}
    pools = [*(f"{first}:{second}" for first, second in trace.pool_ids), None]
    texts = [*map(_escape_surrogates, trace.texts), None]
    size, stack = trace.size.tolist(), trace.frames.tolist()
    is_oom = (trace.action == Action.OOM).tolist()
    address = trace.addr.tolist()

    def text_or_none(column: Any) -> Iterator[str | None]:
        return repeat(None) if column is None else (texts[n] for n in column.tolist())

    return zip(
        repeat(trace.device),
        range(len(trace)),
        (actions[code] for code in trace.action.tolist()),
        (None if oom else addr for oom, addr in zip(is_oom, address, strict=True)),
        size,
        trace.stream.tolist(),
        repeat(None) if trace.time_us is None else trace.time_us.tolist(),
        (pools[number] for number in trace.pool_id.tolist()),
        (addr if oom else None for oom, addr in zip(is_oom, address, strict=True)),
        text_or_none(trace.compile_context),
        text_or_none(trace.user_metadata),
        (None if number < 0 else number for number in stack),
        (names[number] for number in stack),
        strict=False,
    )


def _names(table: FrameTable) -> list[str | None]:
    return [None if name is None else _escape_surrogates(name) for name in code_names(table)]


def _stacks(table: FrameTable) -> list[str | None]:
    lines = (
        "\n".join(f"{frame.filename}:{frame.line} {frame.name}" for frame in table.stack(number))
        for number in range(len(table))
    )
    return [*map(_escape_surrogates, lines), None]  # stack -1, of entries without a stack


def _escape_surrogates(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def write_minimalloc(recording: Recording, file: BinaryIO) -> None:
    """Write the blocks of a device as a problem for MiniMalloc, in CSV: id, lower, upper, size.

    A buffer is live in [lower, upper).  Times are entry numbers plus 1; blocks from before the
    first entry begin at 0.
    """
    trace = recording.only_device()
    if not len(trace):
        raise RecordingError(recording.path, "holds no entries, and so no lives to pack")
    lives = lifetimes_of(trace)
    text = io.StringIO()
    text.write("id,lower,upper,size\n")
    rows = zip(lives.start.tolist(), lives.end.tolist(), lives.size.tolist(), strict=True)
    for number, (start, end, size) in enumerate(sorted(rows)):
        name = start if start >= 0 else f"before-{number}"
        text.write(f"{name},{start + 1},{end + 1},{size}\n")
    file.write(text.getvalue().encode())


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
"""Dictionary from a name to its format.

The first format with a matching file name ending is used, so ".minimalloc.csv" is before ".csv".
"""


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
