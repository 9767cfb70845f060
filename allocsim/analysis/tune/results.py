"""Results file of a search: a JSON Lines file with one line for each finished trial.

The first line identifies the search by the contents of the recordings, the device memory and the
release.  A file of another search is refused.  An incomplete last line is removed from the file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TextIO

from allocsim.errors import ConfigError
from allocsim.replaying import Trial

__all__ = ["Results"]

_FORMAT = "allocsim tune 2"


class Results:
    """Results file, as a context manager.

    known: trials that the file held when it was opened, by the key of their job.

    asked: JSON object that identifies the search, written to the first line.
    Raises ConfigError if the file is not a results file, or belongs to another search.
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
                raise ConfigError(
                    f"{self.path}: line {number} is not a trial; expected a line that "
                    "`allocsim tune --results` writes"
                ) from None
        self._file: TextIO = Path(self.path).open("a", encoding="utf-8")  # noqa: SIM115
        if not lines:
            self._write(header)

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, key: str, trial: Trial) -> None:
        """Append one trial and flush the file."""
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
            raise ConfigError(f"{self.path}: cannot be used as results file ({error})") from None
        if data and not _is_ours(data):
            raise ConfigError(f"{self.path}: is not a results file; expected {_FORMAT!r} in line 1")
        return whole.splitlines()

    def _check(self, line: bytes, header: dict[str, Any]) -> None:
        found = json.loads(line)
        for key, value in json.loads(json.dumps(header)).items():
            if found.get(key) != value:
                raise ConfigError(
                    f"{self.path}: holds results for {key} {found.get(key)!r:.80}; expected "
                    f"{value!r:.80}, or another results file"
                )


def _is_ours(data: bytes) -> bool:
    return data.startswith(b'{"format": "' + _FORMAT.encode())
