"""Results of a search: one row for each setting, and the file with the result of each replay.

Each number of a row is the worst over all devices of all recordings.  A results file (--results) is
a JSON Lines file with one line for each replay; its first line identifies the search.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from allocsim.errors import ConfigError
from allocsim.recommend import Cost, front
from allocsim.replaying import Point, Trial
from allocsim.simulation import Setting


@dataclass(frozen=True, slots=True)
class SettingRow:
    """Results of one setting; each number is the worst over all devices of all recordings.

    memory_fraction: memory fraction of the setting; None without one.
    parts: result of the replay on each device of each recording.
    cost: estimated time of all driver calls.
    same_as: equivalent setting that was replayed instead; None if `setting` itself was replayed.
    """

    setting: Setting
    memory_fraction: float | None
    parts: tuple[Trial, ...]
    cost: Cost
    same_as: Setting | None = None
    is_baseline: bool = False

    @property
    def conf(self) -> str:
        return self.setting.conf

    @property
    def is_as_recorded(self) -> bool:
        return all(part.was_compared for part in self.parts)

    @property
    def error(self) -> str | None:
        return next((part.error for part in self.parts if part.error is not None), None)

    @property
    def dropped_at(self) -> int | None:
        """Entry at which the search ended the replay early; None if the replay is complete."""
        return next((p.dropped_at for p in self.parts if p.dropped_at is not None), None)

    @property
    def is_whole(self) -> bool:
        return all(part.is_whole for part in self.parts)

    @property
    def survives(self) -> bool:
        return self.is_whole and self.num_ooms == 0

    @property
    def peak_reserved_bytes(self) -> int:
        return max(part.peak_reserved_bytes for part in self.parts)

    @property
    def peak_range(self) -> tuple[int, int] | None:
        """Lowest and highest possible peak reserved bytes; None if the peak is certain.

        It is uncertain if blocks were live before the first entry.
        """
        if all(part.peak_range is None for part in self.parts):
            return None
        ends = [part.peak_range or (part.peak_reserved_bytes,) * 2 for part in self.parts]
        return max(low for low, _ in ends), max(high for _, high in ends)

    @property
    def peak_allocated_bytes(self) -> int:
        return max(part.peak_allocated_bytes for part in self.parts)

    @property
    def min_device_memory_bytes(self) -> int | None:
        # If the smallest device was not searched, a device on which the driver refuses no call may
        # be known; it suffices too.
        return _highest([part.min_device_memory for part in self.parts]) or self.unrefused_device

    @property
    def unrefused_device(self) -> int | None:
        return _highest([part.unrefused_device for part in self.parts])

    @property
    def num_alloc_retries(self) -> int:
        return max(part.num_alloc_retries for part in self.parts)

    @property
    def num_device_alloc(self) -> int:
        return max(part.num_device_alloc for part in self.parts)

    @property
    def num_device_free(self) -> int:
        return max(part.num_device_free for part in self.parts)

    @property
    def fails_at(self) -> int | None:
        return min((p.oom_entry for p in self.parts if p.oom_entry is not None), default=None)

    @property
    def num_ooms(self) -> int:
        return max(part.num_ooms for part in self.parts)

    @property
    def point(self) -> Point:
        """Peak reserved bytes, driver calls and retries, to find the Pareto front."""
        calls = self.num_device_alloc + self.num_device_free
        return Point(self.peak_reserved_bytes, calls, self.num_alloc_retries)

    @property
    def device_point(self) -> Point | None:
        at = [part.at_min for part in self.parts if part.at_min is not None]
        memory = _highest([part.min_device_memory for part in self.parts])
        if memory is None or len(at) < len(self.parts):
            return None
        calls = max(allocs + frees for _, allocs, frees in at)
        return Point(memory, calls, max(retries for retries, _, _ in at))

    def rank(self, *, by_device: bool = False) -> tuple[object, ...]:
        """Return a sort key: rows are ordered by errors, thrashing, retries and memory, best first.

        A setting thrashes if it keeps calling the driver instead of reusing memory.
        by_device: True to order by errors and the smallest sufficient device.
        """
        point = self.point
        if by_device:
            found = self.device_point
            memory = (found is None, found or point)
            return (not self.survives, *memory, *self.setting.simplicity)
        return (
            not self.survives,
            not self.is_whole,
            -self.fails_at if self.fails_at is not None else 0,
            self.cost.is_thrashing,
            point.retries,
            point.memory,
            point.calls,
            *self.setting.simplicity,
        )


def _highest(sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return max(known) if len(known) == len(sizes) else None


_FORMAT = "allocsim tune 2"


class Results:
    """Results file of a search, as a context manager that opens and closes it.

    known: dictionary from `Job.key` to the result of each replay that the file had when opened.
    asked: JSON object that describes the search; it is the first line of the file.
    Raises ConfigError for a file that belongs to another search.
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
                # The conf is the last of the five parts of a key (`Search._jobs`).
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
    """Results of one setting, read from a results file.

    is_whole: False if the search ended its replay early because another setting was better.
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
        return Point(self.peak_reserved_bytes, self.driver_calls, self.num_alloc_retries)


@dataclass(frozen=True, slots=True)
class SavedTrials:
    """All settings in a results file, and the settings on the Pareto front."""

    path: str
    settings: tuple[TriedSetting, ...]
    front: tuple[TriedSetting, ...]


def read_tried(path: str) -> SavedTrials:
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
