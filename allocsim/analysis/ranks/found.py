"""Find the recordings of a job and the rank of each.

The rank is the one stored in the file.  Otherwise it is taken from the name of the file or of a
parent folder, as launchers write them ("rank3", "rank_3", "r3"), or from the only number that
differs between the names.  If none of these is known, files are numbered in the order of their
names, with a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from allocsim.errors import RecordingError
from allocsim.recording import ENDINGS, recordings_in

__all__ = ["Found", "found_in", "rank_in_name"]

_NAMED = re.compile(r"(?:^|[^a-z])(?:global[_-]?)?rank[_\-. =]?(\d+)", re.IGNORECASE)
_SHORT = re.compile(r"(?:^|[_\-./])r(\d+)(?=$|[_\-./])")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Found:
    """File of one rank; `rank` is None if the name of the file does not contain it."""

    path: str
    rank: int | None


def found_in(names: Iterable[str]) -> tuple[Found, ...]:
    """Find the recordings of a job.

    names: paths of files, and of folders with recordings.
    Raises RecordingError if a folder holds no recording.
    """
    paths: list[str] = []
    for name in names:
        place = Path(name)
        if not place.is_dir():
            paths.append(name)
            continue
        inside = list(map(str, recordings_in(place)))
        if not inside:
            expected = ", ".join(ENDINGS)
            raise RecordingError(name, f"the folder holds no recording; expected {expected} files")
        paths += inside
    paths = list(dict.fromkeys(paths))
    ranks = [rank_in_name(path) for path in paths]
    if None in ranks:
        ranks = _by_difference(paths) or ranks
    return tuple(Found(path, rank) for path, rank in zip(paths, ranks, strict=True))


def rank_in_name(path: str) -> int | None:
    """Return the rank that the name of a file or of a parent folder contains, or None."""
    for part in reversed(Path(path).parts):
        named = _NAMED.search(part) or _SHORT.search(part.partition(".")[0])
        if named is not None:
            return int(named[1])
    return None


def _by_difference(paths: Sequence[str]) -> list[int | None] | None:
    """Return the only number that differs between paths; None if the paths differ otherwise."""
    numbers = [[int(each) for each in _NUMBER.findall(path)] for path in paths]
    if len(paths) == 1 or len({_NUMBER.sub("#", path) for path in paths}) > 1:
        return None
    differing = [column for column in zip(*numbers, strict=True) if len(set(column)) > 1]
    if len(differing) != 1 or len(set(differing[0])) < len(paths):
        return None
    return list(differing[0])
