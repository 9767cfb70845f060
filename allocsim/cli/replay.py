"""`allocsim replay`: a recording through the model, and what came of it.

Rule: the whole answer is made before its first character is printed, so that an error leaves
standard output empty.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from allocsim.cli.progress import ProgressBar
from allocsim.cli.usage import Parser, UsageError, count, memory_size

if TYPE_CHECKING:
    from allocsim.analysis import Shortage
    from allocsim.engine import Progress, Run
    from allocsim.trace import Recording
    from allocsim.tuning import Cure

    _Shortages = dict[int, tuple[Shortage, ...]]

__all__ = ["add_to", "run"]

_SUMMARY = "replay a recording, prove it, and say what happened"
_DESCRIPTION = """\
Replays FILE, a recording of torch.cuda.memory._record_memory_history().
Under its own settings every address, segment and entry is compared with the
recorded one; under others (--conf, --device-memory) it tells what would have
happened.  If the run ended out of memory, or wasted much, a few settings are
replayed as well, and the best that is proved to help is printed to paste."""
_STRICT, _OUT_OF_MEMORY = 1, 3


def add_to(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "replay",
        help=_SUMMARY,
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("file", metavar="FILE", help="a snapshot: pickle, JSON or .npz, plain or gzip")
    add("--conf", metavar="CONF", help="PYTORCH_CUDA_ALLOC_CONF to replay under; '' for none")
    add(
        "--device-memory",
        metavar="SIZE",
        type=memory_size,
        help="memory of the device, as 24GiB (default: what the recording tells)",
    )
    add("--torch", metavar="VERSION", help="PyTorch's release, 2.1 to 2.15 (default: likewise)")
    add("--device", metavar="N", type=count, help="this device only (default: every one)")
    add("--strict", action="store_true", help="exit 1 unless all is exactly as recorded")
    add("--fail-on-oom", action="store_true", help="exit 3 if the device runs out of memory")
    add(
        "--check-every",
        metavar="N",
        type=count,
        default=0,
        help="walk the model's own invariants every N entries (slow; default: never)",
    )
    add(
        "--cure",
        action=argparse.BooleanOptionalAction,
        help="search for a setting that helps (default: unless --conf or --json is given)",
    )
    add("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry the command out; returns its exit code."""
    from allocsim.analysis import OomWatch, shortages_of  # noqa: PLC0415
    from allocsim.engine import replay  # noqa: PLC0415
    from allocsim.trace import load  # noqa: PLC0415

    watch = OomWatch()
    with ProgressBar() as bar:
        recording = load(arguments.file)
        result = replay(
            recording,
            arguments.conf,
            device_memory=arguments.device_memory,
            torch_version=arguments.torch,
            device=arguments.device,
            check_every=arguments.check_every,
            progress=bar.stage("replaying"),
            observer=watch,
        )
        shortages = {device.device: shortages_of(device, watch=watch) for device in result.devices}
        if arguments.strict:
            _refuse_nothing_to_compare(result)
        wants_cure = arguments.cure
        if wants_cure is None:
            wants_cure = arguments.conf is None and not arguments.json
        cures = _cures(recording, result, bar) if wants_cure else ()
    text = (_as_json if arguments.json else _as_text)(result, shortages, cures)
    _print(text)
    if arguments.strict and not all(d.fidelity and d.fidelity.is_exact for d in result.devices):
        return _STRICT
    if arguments.fail_on_oom and any(device.ooms for device in result.devices):
        return _OUT_OF_MEMORY
    return 0


def _refuse_nothing_to_compare(result: Run) -> None:
    for device in result.devices:
        if device.fidelity is None:
            raise UsageError(
                f"--strict compares a replay with its recording, but device {device.device} was "
                "replayed under other settings or another device memory; leave --conf and "
                "--device-memory out"
            )


def _cures(recording: Recording, result: Run, bar: ProgressBar) -> tuple[Cure, ...]:
    from allocsim.tuning import find_cure, is_worth_a_search  # noqa: PLC0415

    def watch(conf: str) -> Progress | None:
        return bar.stage(f"trying {conf[:32] or 'the defaults'} (--no-cure skips)")

    return tuple(
        find_cure(recording, result, device, watch)
        for device in result.devices
        if is_worth_a_search(device)
    )


def _as_text(result: Run, shortages: _Shortages, cures: tuple[Cure, ...]) -> str:
    from allocsim.report import replay_text  # noqa: PLC0415

    return replay_text(result, shortages, {cure.device: cure for cure in cures})


def _as_json(result: Run, shortages: _Shortages, cures: tuple[Cure, ...]) -> str:
    import json  # noqa: PLC0415

    from allocsim.report import replay_document  # noqa: PLC0415

    by_device = {cure.device: cure for cure in cures}
    return json.dumps(replay_document(result, shortages, by_device), indent=2) + "\n"


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
