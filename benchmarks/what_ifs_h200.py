"""Compare what-if replays of recordings from a real GPU with recordings under that setting.

    python -m benchmarks.what_ifs_h200 [FOLDER] [--from SETTING] [--all]

FOLDER holds recordings of programs as PROGRAM-SETTING.npz.gz, `traces/h200/programs` by default.
Each one under SETTING (`default`; --all: every setting) is replayed under every other setting that
its program was recorded under.  The output is the peak reserved on the card under that setting, the
error of the what-if with ascending addresses and with those by the driver's rule, and the range if
there is one.  Takes a second.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from allocsim.errors import AllocsimError
from allocsim.recording import Recording, load
from allocsim.replaying import Prepared, prepare, replay

FOLDER = Path(__file__).parents[1] / "traces" / "h200" / "programs"
ENDING = ".npz.gz"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One recording, replayed under the setting of another recording of the program; in bytes.

    recorded, asked: setting of the recording and of the replay.
    real: peak of reserved memory on the GPU under the setting `asked`.
    in_order: peak of the what-if with ascending addresses; None if it does not complete.
    by_rule: peak with addresses by the driver's rule; None if it does not complete.
    peaks: range of the what-if by rule.
    """

    program: str
    recorded: str
    asked: str
    real: int
    in_order: int | None
    by_rule: int | None
    peaks: tuple[int, int]

    @property
    def is_exact(self) -> bool:
        """True if the what-if replay has the peak that was measured on the GPU."""
        return self.by_rule == self.real

    @property
    def is_in_range(self) -> bool:
        """True if the what-if range includes the peak that was measured on the GPU."""
        return self.peaks[0] <= self.real <= self.peaks[1]


def what_ifs(folder: Path, settings: Sequence[str] = ("default",)) -> Iterator[WhatIf]:
    """Yield what-ifs between recordings of one program, from those under `settings`."""
    recordings: dict[str, dict[str, Recording]] = {}
    for path in sorted(folder.glob(f"*{ENDING}")):
        program, _, setting = path.name.removesuffix(ENDING).partition("-")
        recordings.setdefault(program, {})[setting] = load(path)
    for program, by_setting in recordings.items():
        for recorded in (*settings,) if settings else (*by_setting,):
            for asked in by_setting:
                if asked != recorded and recorded in by_setting:
                    yield _what_if(program, recorded, asked, by_setting)


def _what_if(program: str, recorded: str, asked: str, by_setting: dict[str, Recording]) -> WhatIf:
    recording, other = by_setting[recorded], by_setting[asked]
    (real,) = prepare(other)
    conf = real.recorded.conf
    in_order, _ = _peak(recording, conf, "bump")
    by_rule, peaks = _peak(recording, conf, "recorded")
    return WhatIf(program, recorded, asked, _reserved(real), in_order, by_rule, peaks)


def _reserved(prepared: Prepared) -> int:
    return prepared.trace.most_reserved(prepared.held)


def _peak(recording: Recording, conf: str, addresses: str) -> tuple[int | None, tuple[int, int]]:
    try:
        (run,) = replay(recording, conf, addresses=addresses).devices
    except AllocsimError:
        return None, (0, 0)
    return (None if run.stopped_at is not None else run.peak_reserved_bytes), run.peak_range


def _off(found: int | None, real: int) -> str:
    if found is None:
        return "failed"
    return "exact" if found == real else f"{(found - real) / real:+.3%}"


def main() -> None:
    """Print a line for each what-if replay, and the number of exact ones."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--from", dest="setting", default="default", help="a recorded setting")
    parser.add_argument("--all", action="store_true", help="from every recorded setting")
    arguments = parser.parse_args()
    found = list(what_ifs(arguments.folder, () if arguments.all else (arguments.setting,)))
    print(f"{'':<45}{'on the card':>15}{'in order':>11}{'by rule':>11}  range")
    for row in found:
        name = f"{row.program:<20}{row.recorded:<11} -> {row.asked:<11}"
        ends = [_off(peak, row.real) for peak in row.peaks]
        shown = "" if ends[0] == ends[1] else " to ".join(ends)
        offs = f"{_off(row.in_order, row.real):>11}{_off(row.by_rule, row.real):>11}"
        print(f"{name:<45} {row.real:>14,}{offs}  {shown}".rstrip())
    in_order = sum(row.in_order == row.real for row in found)
    exact, within = sum(row.is_exact for row in found), sum(row.is_in_range for row in found)
    print(f"of {len(found)}: {in_order} exact in order, {exact} by rule, {within} in the range")


if __name__ == "__main__":
    main()
