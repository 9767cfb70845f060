"""Read the settings of a search from the output of `allocsim tune --json` or a --results file.

If a setting has several lines, for several recordings or devices, the worst number of each column
is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allocsim.errors import ConfigError
from allocsim.recommend import front
from allocsim.replaying import Point

__all__ = ["Tried", "TriedSetting", "read_tried"]


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
class Tried:
    """All settings in a file, and the settings on the Pareto front."""

    path: str
    settings: tuple[TriedSetting, ...]
    front: tuple[TriedSetting, ...]


def read_tried(path: str) -> Tried:
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
    return Tried(path, settings, tuple(best[point] for point in front(best)))


def _rows(text: str) -> Iterable[dict[str, Any]]:
    """Yield the rows of a JSON document or a JSON Lines file, each with its `conf`."""
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
