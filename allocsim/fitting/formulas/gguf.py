"""Reader of a GGUF file's header: metadata, and each tensor's name, type, shape and bytes.

The data of the tensors are not read.  Before memory is allocated for a value, its length is checked
against a fixed limit and the rest of the file.
"""

# Source: docs/gguf.md of `ggml-org/ggml`: magic, version, two counts, metadata and tensor rows, all
# little-endian, then the data, with each tensor at a multiple of the alignment.

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from allocsim.errors import RecordingError
from allocsim.fitting.formulas.ggml import BLOCKS, NUMBERS, bytes_in
from allocsim.fitting.formulas.sizes import ModelSizes
from allocsim.fitting.formulas.stored import StoredTensor

_VERSIONS = range(2, 4)
_MOST_KEYS = 1 << 16
_MOST_TENSORS = 1 << 17
_MOST_NAME = 1 << 16
_MOST_TEXT = 1 << 24
_KEPT_TEXT = 256
_MOST_DIMENSIONS = 4
_DEEPEST = 4
_MOST_LAYERS = 4096
_MOST_PARTS = 1024
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_STRING, _ARRAY = 8, 9
_SCALARS = {
    **{0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"},
}
"""Dictionary from a type number of metadata in GGUF to the format character of Python's struct."""
_KEPT_VALUES = 4096
"""Largest length of metadata arrays that are read; arrays of interest have one number per layer."""

Value = int | float | bool | str | tuple[int | float | bool, ...]


@dataclass(frozen=True, slots=True)
class Gguf:
    """Header of a GGUF file.

    metadata: values keyed by GGUF key.  Texts are cut to 256 characters.  A short array of numbers
        is a tuple; any other array is replaced by its length.
    tensors: tensors of the file, or of all files of a divided model.
    """

    metadata: Mapping[str, Value]
    tensors: tuple[StoredTensor, ...]


def read_gguf(path: Path) -> Gguf:
    """Return the header of a GGUF file.

    If the model is divided into several files, such as "m-00001-of-00003.gguf", the result has the
    tensors of all files.
    """
    found = _PART.fullmatch(path.name)
    if found is None or not 1 < int(found[3]) <= _MOST_PARTS:
        return _in_file(path)
    count = int(found[3])
    names = (f"{found[1]}-{part:05}-of-{count:05}.gguf" for part in range(1, count + 1))
    files = [_in_file(path.with_name(name)) for name in names]
    return Gguf(files[0].metadata, tuple(tensor for file in files for tensor in file.tensors))


def _in_file(path: Path) -> Gguf:
    try:
        with path.open("rb") as file:
            return _Reader(path, file, path.stat().st_size).header()
    except OSError as error:
        raise RecordingError(str(path), f"cannot be read ({error.strerror})") from None


class _Reader:
    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path, self.file, self.size = path, file, size
        self.at = 0

    def refused(self, what: str) -> RecordingError:
        return RecordingError(str(self.path), f"byte {self.at:,}: {what}")

    def take(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise self.refused(f"{count:,} bytes expected; the file has {self.left:,} more")
        data = self.file.read(count)
        if len(data) != count:
            raise self.refused(f"the file ended while it was read; expected {count:,} bytes")
        self.at += count
        return data

    @property
    def left(self) -> int:
        return self.size - self.at

    def skip(self, count: int) -> None:
        if count > self.left:
            raise self.refused(f"{count:,} bytes expected; the file has {self.left:,} more")
        self.file.seek(count, 1)
        self.at += count

    def number(self, letter: str) -> int:
        value = struct.unpack(f"<{letter}", self.take(struct.calcsize(f"<{letter}")))[0]
        return int(value)

    def count(self, what: str, most: int, letter: str = "Q") -> int:
        value = self.number(letter)
        if value > most:
            raise self.refused(f"{value:,} {what}; expected {most:,} or fewer")
        return value

    def text(self, what: str, most: int) -> str:
        data = self.take(self.count(f"bytes of {what}", min(most, self.left)))
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.refused(f"a {what} that is not UTF-8") from None

    def header(self) -> Gguf:
        if self.take(4) != b"GGUF":
            self.at = 0
            raise self.refused("not a GGUF file; expected the letters GGUF")
        version = self.number("I")
        if version not in _VERSIONS:
            raise self.refused(f"version {version:,}; expected 2 or 3, little-endian")
        # The shortest possible description of a tensor has 24 bytes, and that of a key has 12.
        n_tensors = self.count("tensors", min(_MOST_TENSORS, self.left // 24))
        n_keys = self.count("keys of metadata", min(_MOST_KEYS, self.left // 12))
        metadata: dict[str, Value] = {}
        for _ in range(n_keys):
            key = self.text("key", _MOST_NAME)
            if key in metadata:
                raise self.refused(f"the key {key!r:.80} occurs twice")
            metadata[key] = self.value(self.number("I"), 0)
        rows = [self.row() for _ in range(n_tensors)]
        self.check_places(rows, metadata)
        return Gguf(metadata, tuple(tensor for tensor, _ in rows))

    def value(self, kind: int, depth: int) -> Value:
        if kind in _SCALARS:
            size = struct.calcsize(f"<{_SCALARS[kind]}")
            found: int | float | bool = struct.unpack(f"<{_SCALARS[kind]}", self.take(size))[0]
            return found
        if kind == _STRING:
            length = self.count("bytes of text", min(_MOST_TEXT, self.left))
            kept = self.take(min(length, _KEPT_TEXT))
            self.skip(length - len(kept))
            return kept.decode(errors="replace")
        if kind != _ARRAY:
            raise self.refused(f"a value of type {kind:,}; expected 0 to 12")
        if depth == _DEEPEST:
            raise self.refused(f"arrays in arrays; expected {_DEEPEST} of them at most")
        return self.array(depth)

    def array(self, depth: int) -> Value:
        kind = self.number("I")
        if kind in _SCALARS:
            size = struct.calcsize(f"<{_SCALARS[kind]}")
            count = self.count("values of an array", self.left // size)
            if count > _KEPT_VALUES:
                self.skip(count * size)
                return count
            return struct.unpack(f"<{count}{_SCALARS[kind]}", self.take(count * size))
        least = 8 if kind == _STRING else 12
        count = self.count("values of an array", self.left // least)
        for _ in range(count):
            if kind == _STRING:
                self.skip(self.count("bytes of text", min(_MOST_TEXT, self.left)))
            else:
                self.value(kind, depth + 1)
        return count

    def row(self) -> tuple[StoredTensor, int]:
        name = self.text("tensor name", _MOST_NAME)
        n_dimensions = self.count("dimensions", _MOST_DIMENSIONS, "I")
        dims = tuple(self.number("Q") for _ in range(n_dimensions))
        number = self.number("I")
        kind = NUMBERS.get(number)
        if kind is None:
            raise self.refused(
                f"tensor {name!r:.80} has type {number:,}, which ggml does not define"
            )
        weights = math.prod(dims)
        if weights >= 1 << 48 or (dims and dims[0] % BLOCKS[kind].weights):
            raise self.refused(f"tensor {name!r:.80} of {dims} has no rows of {kind}")
        if not dims and BLOCKS[kind].weights > 1:
            raise self.refused(f"tensor {name!r:.80} of one number cannot be {kind}")
        return StoredTensor(name, kind, dims[::-1], bytes_in(kind, weights)), self.number("Q")

    def check_places(
        self, rows: list[tuple[StoredTensor, int]], metadata: Mapping[str, Value]
    ) -> None:
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment % 8:
            raise self.refused(f"general.alignment is {alignment!r:.40}; expected 8, 16, 32, ...")
        if len({tensor.name for tensor, _ in rows}) != len(rows):
            raise self.refused("a tensor's name occurs twice")
        start = -(-self.at // alignment) * alignment
        end = 0
        for tensor, place in sorted(rows, key=lambda row: (row[1], row[0].size)):
            if place < end or place % alignment or start + place + tensor.size > self.size:
                raise self.refused(
                    f"tensor {tensor.name!r:.80}: {tensor.size:,} bytes at {place:,} of the data; "
                    f"expected a multiple of {alignment} from {end:,} on, within the file"
                )
            end = place + tensor.size


def gguf_sizes(path: Path, file: Gguf) -> ModelSizes:
    """Return the sizes of the model that a GGUF header describes.

    path: name of the file, for errors.
    """
    family = file.metadata.get("general.architecture")
    if not isinstance(family, str):
        raise RecordingError(str(path), "has no general.architecture; expected a model")

    def size(key: str, default: int | None = None, most: int = 1 << 31) -> int:
        value = file.metadata.get(f"{family}.{key}", default)
        if isinstance(value, tuple):  # a value for each layer
            value = max(value, default=0)
        if type(value) is not int or not 0 < value <= most:
            raise RecordingError(
                str(path), f"{family}.{key} is {value!r:.40}; expected 1 to {most:,}"
            )
        return value

    layers, width = size("block_count", most=_MOST_LAYERS), size("embedding_length")
    heads = size("attention.head_count")
    names = {tensor.name: tensor for tensor in file.tensors}
    embedding = names.get("token_embd.weight")
    if embedding is None or len(embedding.dims) != 2:
        raise RecordingError(str(path), "has no token_embd.weight of two dimensions")
    window = file.metadata.get(f"{family}.attention.sliding_window", 0)
    has_window = type(window) is int and 0 < window < 1 << 31
    return ModelSizes(
        family=family,
        layers=layers,
        width=width,
        inner=size("feed_forward_length", 4 * width),
        heads=heads,
        kv_heads=size("attention.head_count_kv", heads),
        head=size("attention.key_length", max(width // heads, 1)),
        vocabulary=max(embedding.dims[0], 1),
        tied="output.weight" not in names,
        longest=size("context_length", 1) if f"{family}.context_length" in file.metadata else 0,
        window=window if has_window and isinstance(window, int) else 0,
        windowed=layers if has_window else 0,
    )
