"""Compare predicted edits with the edited programs, which real PyTorch runs on a phantom GPU.

    python -m benchmarks.edits --python PYTHON [PROGRAM ...] [--keep FOLDER] [--docs]

Each program of programs.py is recorded once without an edit.  Each edit is then predicted from that
recording, and the program is run with the edit in its source.  The output is the peak reserved
memory of the edited program and the error of the prediction.  It takes some seconds for each run.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from allocsim.editing import edit_devices
from allocsim.errors import AllocsimError
from allocsim.phantom import RecordedProgram, find_gpu, record
from allocsim.recording import Recording, load
from allocsim.replaying import prepare, replay_prepared
from benchmarks.output import machine_and_month

PROGRAMS = ("perceptron", "encoder", "convolutions", "vocabulary", "accumulation", "prefetch")
EDITS = (
    "empty-cache after step 3",
    "empty-cache every 2 steps",
    "empty-cache before phase backward",
    "preallocate 3000MiB",
    "largest step first",
    "drop step 1",
    "drop step 4",
    "repeat steps 2..3 x 3",
    "one stream",
    "free early",
)
_OF_STREAMS = ("one stream", "free early")
_HERE = Path(__file__).parent


def edits_of(program: str) -> tuple[str, ...]:
    """Return the edits of `EDITS` that change `program`; only "prefetch" has two streams."""
    return tuple(edit for edit in EDITS if edit not in _OF_STREAMS or program == "prefetch")


def recorded(program: str, edits: tuple[str, ...], python: str, folder: Path) -> Recording:
    """Return a recording of the program with the edits in its source."""
    out = folder / f"{'-'.join((program, *edits)).replace(' ', '_').replace('..', '-')}.pickle"
    if not out.exists():
        command = (python, str(_HERE / "programs.py"), program, *edits)
        gpu = find_gpu("H100")
        found = record(
            RecordedProgram(command, out, gpu, by_column=True, sizes_only=True,
                            log=out.with_suffix(".log"))
        )  # fmt: skip
        if found.exit_code:
            raise SystemExit(f"{program} {edits} ended with {found.exit_code}; see {out}")
    return load(out)


def main() -> None:
    """Print a row for each program and edit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", default=PROGRAMS)
    parser.add_argument("--python", required=True, help="interpreter with PyTorch")
    parser.add_argument("--keep", type=Path, help="folder for the recordings")
    arguments = parser.parse_args()
    print(f"{machine_and_month()}\n")
    print("| program | recorded | edit | edited program | predicted |")
    print("|---|---|---|---|---|")
    n_exact = n_all = 0
    with TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        folder.mkdir(exist_ok=True)
        for program in arguments.programs:
            devices = prepare(recorded(program, (), arguments.python, folder))
            before = replay_prepared(devices).devices[0].peak_reserved_bytes
            begin = f"| {program} | {before:,} |"
            for edit in edits_of(program):
                real = _peak(recorded(program, (edit,), arguments.python, folder))
                try:
                    run = replay_prepared(edit_devices(devices, [edit])).devices[0]
                except AllocsimError as error:
                    print(f"{begin} {edit} | {real:,} | refused: {error} |")
                    begin = "| | |"
                    continue
                off = (run.peak_reserved_bytes - real) / real
                shown = "exact" if not off else f"{run.peak_reserved_bytes:,} ({off:+.2%})"
                n_exact, n_all = n_exact + (not off), n_all + 1
                print(f"{begin} {edit} | {real:,} | {shown} |", flush=True)
                begin = "| | |"
    print(f"\n{n_exact} of {n_all} exact")


def _peak(recording: Recording) -> int:
    return replay_prepared(prepare(recording)).devices[0].peak_reserved_bytes


if __name__ == "__main__":
    main()
