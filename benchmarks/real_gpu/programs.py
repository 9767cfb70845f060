"""Replays and what-if replays of programs that ran on a real GPU under several settings.

A folder has the recordings `programs/NAME-SETTING.npz.gz`, and `programs/stats.json` with the
`memory_stats()` of each program under each setting.  A what-if replay starts from `NAME-default`
and is compared with the statistics of the program under the other setting.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from allocsim.core import ADDRESS_POLICIES
from allocsim.errors import AllocsimError
from allocsim.recording import load
from allocsim.replaying import Prepared, prepare, replay_prepared
from allocsim.simulation import Setting
from benchmarks.real_gpu.tables import bytes_text, error_text, table

__all__ = [
    "Programs", "Replayed", "WhatIf", "program_lines", "programs_of", "what_if_lines",
    "worst_text",
]  # fmt: skip

BASE = "default"
_PEAK = "reserved_bytes.all.peak"


@dataclass(frozen=True, slots=True)
class Replayed:
    """One recording, replayed under the recorded settings.

    difference: first difference, or the error that ended the replay; "" if the replay is exact.
    """

    name: str
    entries: int
    difference: str

    @property
    def is_whole(self) -> bool:
        """True if every address, segment and entry is as recorded."""
        return not self.difference


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Peak reserved memory under another setting, in bytes.

    real: peak on the real GPU under that setting.
    predicted: peak of the what-if replay of the default recording; None if it was refused.
    low, high: lowest and highest peak over all address policies and the what-if range.
    error: error message of a refused replay.
    """

    program: str
    setting: str
    real: int
    predicted: int | None
    low: int = 0
    high: int = 0
    error: str = ""

    @property
    def cause(self) -> str:
        """Cause of the difference between `real` and `predicted`, if a replay shows it."""
        if self.predicted is None:
            return self.error
        if self.predicted == self.real:
            return ""
        if self.low == self.high:
            return "not found: every address policy gives the same peak"
        inside = "in" if self.low <= self.real <= self.high else "outside"
        return (
            "a tie-break depends on driver addresses: by policy "
            f"{self.low:,} to {self.high:,}; the card is {inside} this range"
        )


def replays(folder: Path) -> Iterator[Replayed]:
    """Replay every recording in `folder` and its subfolders, and yield the results by path."""
    for path in sorted(folder.rglob("*.npz.gz")):
        yield replayed(path)


def replayed(path: Path) -> Replayed:
    """Replay a recording under its own settings."""
    name = f"{path.parent.name}/{path.name.removesuffix('.npz.gz')}"
    recording = load(path)
    entries = sum(len(trace) for trace in recording.devices)
    try:
        run = replay_prepared(prepare(recording))
    except AllocsimError as error:
        return Replayed(name, entries, str(error).removeprefix(f"{path}: "))
    for device in run.devices:
        fidelity = device.fidelity
        if fidelity is None or fidelity.is_exact:
            continue
        first = fidelity.first_mismatch
        place = "final segments" if first is None or first.entry is None else f"entry {first.entry}"
        return Replayed(name, entries, f"differs at {place}")
    return Replayed(name, entries, "")


def what_ifs(folder: Path, only: str = "*") -> Iterator[WhatIf]:
    """Yield the what-if of each program for each setting but the default, in order of name.

    only: pattern of the names of the programs.
    """
    programs = folder / "programs"
    if not (programs / "stats.json").exists():
        return
    stats = json.loads((programs / "stats.json").read_text())
    for base in sorted(programs.glob(f"{only}-{BASE}.npz.gz")):
        program = base.name.removesuffix(f"-{BASE}.npz.gz")
        prepared = prepare(load(base))
        for path in sorted(programs.glob(f"{program}-*.npz.gz")):
            setting = path.name.removesuffix(".npz.gz").removeprefix(f"{program}-")
            known = stats.get(f"{program}-{setting}")
            if setting != BASE and known is not None:
                conf = prepare(load(path))[0].recorded.conf
                yield what_if(program, setting, prepared, conf, int(known[_PEAK]))


def what_if(
    program: str, setting: str, prepared: Sequence[Prepared], conf: str, real: int
) -> WhatIf:
    """Replay `prepared` under `conf`, and under every address policy for the range."""
    try:
        run = replay_prepared(prepared, Setting(conf))
        ends = [end for device in run.devices for end in device.peak_range]
        for policy in ADDRESS_POLICIES:
            other = replay_prepared(prepared, Setting(conf), addresses=policy)
            ends += [device.peak_reserved_bytes for device in other.devices]
    except AllocsimError as error:
        return WhatIf(program, setting, real, None, error=str(error))
    predicted = max(device.peak_reserved_bytes for device in run.devices)
    return WhatIf(program, setting, real, predicted, min(ends), max(ends))


@dataclass(frozen=True, slots=True)
class Programs:
    """Replays and what-ifs of a folder."""

    replayed: tuple[Replayed, ...]
    tried: tuple[WhatIf, ...]

    @property
    def whole(self) -> str:
        """Number of exact replays, as text."""
        n = sum(each.is_whole for each in self.replayed)
        return f"{n} of {len(self.replayed)}"

    @property
    def exact(self) -> str:
        """Number of exact peaks of what-ifs, as text."""
        n = sum(each.predicted == each.real for each in self.tried)
        return f"{n} of {len(self.tried)}"


@cache
def programs_of(folder: Path) -> Programs:
    """Replay every recording of a folder, under its own settings and under the others."""
    return Programs(tuple(replays(folder)), tuple(what_ifs(folder)))


def program_lines(found: Programs) -> list[str]:
    """Return the lines of both tables and their summaries in Markdown."""
    lines = [f"**Replay: {found.whole} recordings are whole.**", ""]
    lines += table(
        ("recording", "entries", "whole", "first difference"),
        (
            (each.name, f"{each.entries:,}", "yes" if each.is_whole else "no", each.difference)
            for each in found.replayed
        ),
    )
    lines += ["", f"**What-if: {found.exact} peaks are exact.**{worst_text(found.tried)}", ""]
    return lines + what_if_lines(found.tried)


def what_if_lines(tried: Sequence[WhatIf]) -> list[str]:
    """Return the table of what-ifs in Markdown."""
    return table(
        ("program", "setting", "real, bytes", "predicted, bytes", "error", "cause"),
        (
            (
                each.program,
                each.setting,
                bytes_text(each.real),
                bytes_text(each.predicted),
                error_text(each.real, each.predicted),
                each.cause,
            )
            for each in tried
        ),
    )


def worst_text(tried: Sequence[WhatIf]) -> str:
    """Return sentences about refused what-ifs and the worst error; "" if there are none."""
    known = [each for each in tried if each.predicted is not None]
    off = [each for each in known if each.predicted != each.real]
    refused = len(tried) - len(known)
    text = f" Refused: {refused}." if refused else ""
    if off:
        worst = max(off, key=lambda each: abs((each.predicted or 0) - each.real) / each.real)
        text += f" The worst is {worst.program} under {worst.setting}: "
        text += f"{error_text(worst.real, worst.predicted)}."
    return text
