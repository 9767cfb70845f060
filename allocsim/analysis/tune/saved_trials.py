"""Trials of a search in files: the results file, and reading the output of `allocsim tune --json`.

A results file (--results) is a JSON Lines file with one line for each finished trial.  The first
line identifies the search by the contents of the recordings, the device memory and the release.  A
file of another search is refused.  An incomplete last line is removed from the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from allocsim.errors import ConfigError
from allocsim.recommend import front
from allocsim.replaying import Point, Trial

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


@dataclass(frozen=True, slots=True)
class TriedSetting:
    """Results of one setting.

    is_whole: True if it was replayed to the end; False if the search ended its replay early because
        another setting was better.
    survives: True if it was replayed to the end and every request was served.
    """

    conf: str
    peak_reserved_bytes: int
    num_alloc_retries: int
    driver_calls: int
    is_whole: bool
    survives: bool

    @property
    def point(self) -> Point:
        """Numbers that the Pareto front compares."""
        return Point(self.peak_reserved_bytes, self.driver_calls, self.num_alloc_retries)


@dataclass(frozen=True, slots=True)
class SavedTrials:
    """All settings in a file, and the settings on the Pareto front."""

    path: str
    settings: tuple[TriedSetting, ...]
    front: tuple[TriedSetting, ...]


def read_tried(path: str) -> SavedTrials:
    """Read the settings in the file at `path`.  Raises ConfigError if the file holds none."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    try:
        rows = list(_rows(text))
        settings = tuple(_worst(conf, lines) for conf, lines in _by_conf(rows).items())
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        settings = ()
    if not settings:
        raise ConfigError(
            f"{path}: holds no settings; expected the output of `allocsim tune --json`, or its "
            "--results file"
        )
    best: dict[Point, TriedSetting] = {}
    for each in settings:
        if each.survives:
            best.setdefault(each.point, each)
    return SavedTrials(path, settings, tuple(best[point] for point in front(best)))


def _rows(text: str) -> Iterable[dict[str, Any]]:
    """Yield the results of each setting, from a JSON document or a JSON Lines file."""
    try:
        document = json.loads(text)
    except ValueError:
        for line in [json.loads(line) for line in text.splitlines() if line.strip()]:
            if "key" in line:
                yield {"conf": line["key"].split("|", 4)[4], **line}
            elif "conf" in line:
                yield line
        return
    yield from document.get("rows", [document])


def _by_conf(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        fraction = row.get("memory_fraction")
        by_call = fraction is not None and "per_process_memory_fraction" not in row["conf"]
        conf = row["conf"] + (f" (fraction {fraction})" if by_call else "")
        if not row.get("error") and not row.get("same_as"):
            found.setdefault(conf, []).append(row)
    return found


def _worst(conf: str, rows: list[dict[str, Any]]) -> TriedSetting:
    def most(name: str) -> int:
        return max(int(row.get(name) or 0) for row in rows)

    is_whole = all(row.get("dropped_at") is None for row in rows)
    return TriedSetting(
        conf=conf,
        peak_reserved_bytes=most("peak_reserved_bytes"),
        num_alloc_retries=most("num_alloc_retries"),
        driver_calls=most("num_device_alloc") + most("num_device_free"),
        is_whole=is_whole,
        survives=is_whole and not most("num_ooms"),
    )
