"""Reader of a safetensors file's header: names, types, shapes and bytes, without the data.

Rule: every value is checked against the file's length, the type and the shape before use. No header
is larger than `MOST_HEADER`, which limits memory. Source: README.md of `huggingface/safetensors`: 8
bytes of length, little-endian, then JSON of that length, then the data without gaps. For several
files in a folder, transformers writes the index `model.safetensors.index.json`, whose weight_map
gives the file of each tensor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from allocsim.errors import RecordingError

MOST_HEADER = 16 << 20
"""Largest header in bytes; published models have at most a few megabytes."""

INDEX = "model.safetensors.index.json"
_MOST_SHARDS = 1024
_MOST_DIMENSIONS = 16
_BITS = {
    **{"F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32},
    **{"F16": 16, "BF16": 16, "I16": 16, "U16": 16, "I8": 8, "U8": 8, "BOOL": 8},
    **{"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8},
    **{"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4},
}
"""Bits of one element, by name of its type in the file."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Type, shape and bytes of a tensor in a file of weights.

    kind: name of its type in the file.
    dims: sizes of the dimensions, rows first.
    size: bytes of its elements.
    """

    name: str
    kind: str
    dims: tuple[int, ...]
    size: int


def read_safetensors(place: Path) -> tuple[StoredTensor, ...]:
    """Return the tensors of a file, or of all files in a folder or index.

    place: a .safetensors file, a folder of such files, or an index of transformers.

    Raises RecordingError, with the tensor and what was expected, if a file is not a safetensors
    file.
    """
    if not place.is_dir():
        return _in_file(place)
    index = place / INDEX
    if index.is_file():
        return tuple(tensor for file in _shards(index) for tensor in _in_file(file))
    files = sorted(place.glob("*.safetensors"))[: _MOST_SHARDS + 1]
    if not 0 < len(files) <= _MOST_SHARDS:
        raise RecordingError(str(place), "has no safetensors file; expected one, or an index")
    return tuple(tensor for file in files for tensor in _in_file(file))


def _shards(index: Path) -> list[Path]:
    """Return the files in an index, which must be in the same folder."""
    try:
        with index.open("rb") as file:
            data = file.read(MOST_HEADER + 1)
    except OSError as error:
        raise RecordingError(str(index), f"cannot be read ({error.strerror})") from None
    if len(data) > MOST_HEADER:
        raise RecordingError(str(index), f"is larger than {MOST_HEADER:,} bytes")
    names = _json(index, data).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise RecordingError(str(index), "has no weight_map; expected the file of each tensor")
    found = sorted({name for name in names.values() if isinstance(name, str)})
    is_whole = all(isinstance(name, str) for name in names.values())
    if not is_whole or len(found) > _MOST_SHARDS:
        raise RecordingError(
            str(index), "weight_map is not possible; expected 1 to 1,024 file names"
        )
    for name in found:
        if Path(name).name != name or name in (".", "..") or "\0" in name:
            raise RecordingError(str(index), f"{name!r:.80} is not a file beside the index")
    return [index.parent / name for name in found]


def _in_file(path: Path) -> tuple[StoredTensor, ...]:
    try:
        with path.open("rb") as file:
            length = path.stat().st_size
            start = file.read(8)
            size = int.from_bytes(start, "little")
            if len(start) < 8 or not 2 <= size <= min(length - 8, MOST_HEADER):
                most = max(min(length - 8, MOST_HEADER), 0)
                raise RecordingError(
                    str(path), f"byte 0: a header of {size:,} bytes; expected 2 to {most:,}"
                )
            data = file.read(size)
    except OSError as error:
        raise RecordingError(str(path), f"cannot be read ({error.strerror})") from None
    header = _json(path, data)
    header.pop("__metadata__", None)
    return tuple(_tensors(path, header, length - 8 - size))


def _json(path: Path, data: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise RecordingError(str(path), "a name occurs twice in its header")
        return found

    try:
        header = json.loads(data, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise RecordingError(str(path), "byte 8: its header is not JSON in UTF-8") from None
    if not isinstance(header, dict):
        raise RecordingError(str(path), "byte 8: its header is not a JSON object")
    return header


def _tensors(path: Path, header: Mapping[str, Any], room: int) -> list[StoredTensor]:
    """Return the tensors after checking that they fill the `room` bytes of data without gaps."""
    found: list[tuple[int, StoredTensor]] = []
    for name, row in header.items():
        tensor, begin = _tensor(path, name, row)
        found.append((begin, tensor))
    # The format has no gaps, so each tensor must begin where the one before ends.
    end = 0
    for begin, tensor in sorted(found, key=lambda each: (each[0], each[1].size)):
        if begin != end:
            raise RecordingError(
                str(path), f"{tensor.name!r:.80} begins at byte {begin:,}; expected {end:,}"
            )
        end += tensor.size
    if end != room:
        raise RecordingError(str(path), f"has {room:,} bytes of data; its header describes {end:,}")
    return [tensor for _, tensor in found]


def _tensor(path: Path, name: str, row: Any) -> tuple[StoredTensor, int]:
    def refused(what: str) -> RecordingError:
        return RecordingError(str(path), f"tensor {name!r:.80}: {what}")

    if not isinstance(row, dict):
        raise refused("is not an object; expected dtype, shape and data_offsets")
    kind, dims, offsets = row.get("dtype"), row.get("shape"), row.get("data_offsets")
    if not isinstance(kind, str) or kind not in _BITS:
        raise refused(f"dtype {kind!r:.40}; expected one of {', '.join(_BITS)}")
    if not _are_counts(dims) or len(dims) > _MOST_DIMENSIONS:
        raise refused(f"shape {dims!r:.80}; expected whole numbers, {_MOST_DIMENSIONS} at most")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise refused(f"data_offsets {offsets!r:.80}; expected two whole numbers")
    bits = math.prod(dims) * _BITS[kind]
    if bits % 8 or offsets[1] - offsets[0] != bits // 8:
        raise refused(
            f"data_offsets {offsets!r:.80}; expected {bits / 8:,.0f} bytes for {kind} {dims!r:.80}"
        )
    return StoredTensor(name, kind, tuple(dims), bits // 8), offsets[0]


def _are_counts(values: object) -> TypeGuard[list[int]]:
    if not isinstance(values, list):
        return False
    return all(type(value) is int and 0 <= value < 1 << 48 for value in values)
