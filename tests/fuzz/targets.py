"""Fuzz targets: for each reader a function from bytes to acceptance or refusal.

Rule: a refusal is a RecordingError of one printable line, or a ConfigError.  Any other exception is
a fault, and so is a recording that differs between the two ways to read it: directly from the bytes
and as objects.
"""

from __future__ import annotations

import importlib
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allocsim.analysis.explain.message_search import find_messages
from allocsim.core import RELEASES
from allocsim.core.option_string import parse
from allocsim.errors import ConfigError, RecordingError
from allocsim.fitting.formulas.gguf import read_gguf
from allocsim.fitting.formulas.stored import read_safetensors
from allocsim.recording import (
    figures_in,
    find_defects,
    load,
    pickle_rows,
    read_log,
    read_snapshot,
    straight,
)
from allocsim.recording.pickle_rows import OtherForm
from allocsim.recording.straight import read_straight
from tests.recording.alike import assert_alike

__all__ = ["TARGETS", "Target"]

LONGEST = 800
"""Largest number of characters of a refusal."""

Target = Callable[[bytes], bool]
"""Function that returns True if an input is accepted, False if it is refused with a sentence."""

_LOAD: Any = importlib.import_module("allocsim.recording.files")
_MEMORY = Path("/dev/shm")  # noqa: S108  (a file there is written a million times)
_SHIELD = 10**6


def _file(data: bytes, suffix: str) -> Path:
    folder = _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())
    path = folder / f"allocsim-fuzz-{os.getpid()}{suffix}"
    path.write_bytes(data)
    return path


def _taken(read: Callable[[], object]) -> bool:
    try:
        read()
    except ConfigError:
        return False  # PyTorch's text quotes the string; the command line escapes it
    except RecordingError as error:
        sentence = str(error)
        assert sentence.isprintable(), f"not printable: {sentence!r}"
        assert len(sentence) < LONGEST, f"{len(sentence)} characters"
        return False
    return True


def recording(data: bytes) -> bool:
    """Load a file in the ways for large and for small files."""
    path = _file(data, ".recording")

    def read() -> None:
        found = load(path)
        find_defects(found)
        str(found)

    with window_of(96), large_from(1 << 60):
        taken = _taken(read)
    if data[:1] == b"\x80":
        assert_same(data, path, taken=taken)
    return taken


def assert_same(data: bytes, path: Path, *, taken: bool) -> None:
    """Assert that reading from the bytes gives the same as reading as objects."""
    with window_of(256):
        try:
            mine = read_snapshot(str(path), read_straight(io.BytesIO(data), _SHIELD), len(data))
        except (OtherForm, RecordingError):
            return
    assert taken, "accepted from the bytes, and refused as objects"
    with large_from(1 << 60):
        assert_alike(mine, load(path))


class window_of:  # noqa: N801  (a context, used like a function)
    """Context with windows of `size` bytes and runs of any length, to reach every border."""

    def __init__(self, size: int) -> None:
        self._new = size, size // 2, 1
        self._old = pickle_rows._STRETCH, pickle_rows._RESERVE, straight._SHORTEST_RUN

    def __enter__(self) -> None:
        pickle_rows._STRETCH, pickle_rows._RESERVE, straight._SHORTEST_RUN = self._new

    def __exit__(self, *_: object) -> None:
        pickle_rows._STRETCH, pickle_rows._RESERVE, straight._SHORTEST_RUN = self._old


class large_from:  # noqa: N801  (as above)
    """Context where files of at least `size` bytes count as large."""

    def __init__(self, size: int) -> None:
        self._new, self._old = size, _LOAD._LARGE

    def __enter__(self) -> None:
        _LOAD._LARGE = self._new

    def __exit__(self, *_: object) -> None:
        _LOAD._LARGE = self._old


def header(data: bytes) -> bool:
    """Read the header of a file of weights: GGUF or safetensors, by its first bytes."""
    if data.startswith(b"GGUF"):
        path = _file(data, ".gguf")
        return _taken(lambda: read_gguf(path))
    path = _file(data, ".safetensors")
    return _taken(lambda: read_safetensors(path))


def message(data: bytes) -> bool:
    """Search a log, packed or not, for out-of-memory errors and figures, as `explain` does."""
    path = _file(data, ".log")
    found: list[object] = []

    def read() -> None:
        text = read_log(str(path))
        if text is not None:
            found.append(find_messages(text) or figures_in(text))

    return _taken(read) and any(found)


def option_string(data: bytes) -> bool:
    """Parse an option string for the release that its first byte selects."""
    releases = list(RELEASES.values())
    text = data[1:].decode("utf-8", "replace")
    return _taken(lambda: str(parse(text, releases[data[0] % len(releases) if data else -1])))


TARGETS: dict[str, Target] = {
    "recording": recording,
    "header": header,
    "message": message,
    "option_string": option_string,
}
