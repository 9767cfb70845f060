"""What is fuzzed: a function for each reader, from bytes to an answer or a refusal.

Rule: a refusal is a RecordingError of one line that a terminal can show, or a ConfigError.  What
else a target raises is a fault, and so is a recording that is not the same when it is read straight
from the bytes and when it is read as objects.
"""

from __future__ import annotations

import importlib
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allocsim.core import RELEASES
from allocsim.core.option_string import parse
from allocsim.errors import ConfigError, RecordingError
from allocsim.estimate import figures_in
from allocsim.estimate.gguf import read_gguf
from allocsim.estimate.safetensors import read_safetensors
from allocsim.questions.explain.message import find_messages
from allocsim.trace import lint, load, read_log, read_snapshot, straight, window
from allocsim.trace.straight import read_straight
from allocsim.trace.window import OtherForm
from tests.trace.alike import assert_alike

__all__ = ["TARGETS", "Target"]

LONGEST = 800
"""Characters of a sentence that refuses a file."""

Target = Callable[[bytes], bool]
"""Whether the input was taken; False: refused, in a sentence."""

_LOAD: Any = importlib.import_module("allocsim.trace.load")
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
        return False  # in PyTorch's words, which quote the string; the command line escapes them
    except RecordingError as error:
        sentence = str(error)
        assert sentence.isprintable(), f"not for a terminal: {sentence!r}"
        assert len(sentence) < LONGEST, f"{len(sentence)} characters"
        return False
    return True


def recording(data: bytes) -> bool:
    """A file for `load`, read as large and small ones are."""
    path = _file(data, ".recording")

    def read() -> None:
        found = load(path)
        lint(found)
        str(found)

    with window_of(96), large_from(1 << 60):
        taken = _taken(read)
    if data[:1] == b"\x80":
        assert_same(data, path, taken=taken)
    return taken


def assert_same(data: bytes, path: Path, *, taken: bool) -> None:
    """What is read straight from the bytes is what the objects are."""
    with window_of(256):
        try:
            mine = read_snapshot(str(path), read_straight(io.BytesIO(data), _SHIELD), len(data))
        except (OtherForm, RecordingError):
            return
    assert taken, "read straight from the bytes, and refused as objects"
    with large_from(1 << 60):
        assert_alike(mine, load(path))


class window_of:  # noqa: N801  (a context, used like a function)
    """Windows of so many bytes, and runs of any length, so that small inputs meet every border."""

    def __init__(self, size: int) -> None:
        self._new = size, size // 2, 1
        self._old = window._STRETCH, window._RESERVE, straight._SHORTEST_RUN

    def __enter__(self) -> None:
        window._STRETCH, window._RESERVE, straight._SHORTEST_RUN = self._new

    def __exit__(self, *_: object) -> None:
        window._STRETCH, window._RESERVE, straight._SHORTEST_RUN = self._old


class large_from:  # noqa: N801  (as above)
    """From how many bytes on a file is a large one."""

    def __init__(self, size: int) -> None:
        self._new, self._old = size, _LOAD._LARGE

    def __enter__(self) -> None:
        _LOAD._LARGE = self._new

    def __exit__(self, *_: object) -> None:
        _LOAD._LARGE = self._old


def header(data: bytes) -> bool:
    """A file of weights: GGUF or safetensors, told by its beginning."""
    if data.startswith(b"GGUF"):
        path = _file(data, ".gguf")
        return _taken(lambda: read_gguf(path))
    path = _file(data, ".safetensors")
    return _taken(lambda: read_safetensors(path))


def message(data: bytes) -> bool:
    """A log, packed or not, in which `explain` looks for out-of-memory errors and for figures."""
    path = _file(data, ".log")
    found: list[object] = []

    def read() -> None:
        text = read_log(str(path))
        if text is not None:
            found.append(find_messages(text) or figures_in(text))

    return _taken(read) and any(found)


def option_string(data: bytes) -> bool:
    """An option string, in the release that its first byte chooses."""
    releases = list(RELEASES.values())
    text = data[1:].decode("utf-8", "replace")
    return _taken(lambda: str(parse(text, releases[data[0] % len(releases) if data else -1])))


TARGETS: dict[str, Target] = {
    "recording": recording,
    "header": header,
    "message": message,
    "option_string": option_string,
}
