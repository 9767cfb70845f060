"""Outcomes in a JSON Lines file, one line each as soon as it is known.

Rule: the first line says what was asked (recordings by content, device memory, release); a file
that was written for something else is refused, never mixed with.  A last line that was cut off
is dropped, and the file is cut back to the end of the line before.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TextIO

from allocsim.engine import Trial
from allocsim.errors import ConfigError

__all__ = ["Results"]

_FORMAT = "allocsim tune 2"


class Results:
    """The file as a context manager; `known`: the trials that it held when opened.

    asked: what the trials depend on besides their key.
    Raises ConfigError for a file that is no such file, or of another question.
    """

    def __init__(self, path: str | os.PathLike[str], asked: dict[str, Any]) -> None:
        self.path = os.fspath(path)
        self.known: dict[str, Trial] = {}
        header = {"format": _FORMAT, **asked}
        lines = self._read()
        if lines:
            self._check(lines[0], header)
        for number, line in enumerate(lines[1:], start=2):
            try:
                plain = json.loads(line)
                key = plain.pop("key")
                self.known[key] = Trial.from_plain(key.split("|", 4)[-1], plain)
            except (ValueError, TypeError, KeyError, AttributeError):
                raise ConfigError(f"{self.path}: line {number} is no outcome") from None
        self._file: TextIO = Path(self.path).open("a", encoding="utf-8")  # noqa: SIM115
        if not lines:
            self._write(header)

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, key: str, trial: Trial) -> None:
        """Write one trial; it is in the file when this returns."""
        self._write({"key": key, **trial.plain()})

    def _write(self, document: dict[str, Any]) -> None:
        self._file.write(json.dumps(document) + "\n")
        self._file.flush()

    def _read(self) -> list[bytes]:
        path = Path(self.path)
        try:
            if not path.exists():
                path.touch()
                return []
            data = path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if len(whole) < len(data) and (not whole or _is_ours(whole)):
                os.truncate(path, len(whole))
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be used for results ({error})") from None
        if data and not _is_ours(data):
            raise ConfigError(f"{self.path}: is no file of results; expected {_FORMAT!r} in line 1")
        return whole.splitlines()

    def _check(self, line: bytes, header: dict[str, Any]) -> None:
        found = json.loads(line)
        for key, value in json.loads(json.dumps(header)).items():
            if found.get(key) != value:
                raise ConfigError(
                    f"{self.path}: holds results of another {key} ({found.get(key)!r:.80}, asked "
                    f"now: {value!r:.80}); give another file"
                )


def _is_ours(data: bytes) -> bool:
    return data.startswith(b'{"format": "' + _FORMAT.encode())
