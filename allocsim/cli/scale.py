"""`allocsim scale`: predict memory at one size, such as batch 8, from runs at others."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from allocsim.cli.options import (
    OUT_OF_MEMORY,
    Commands,
    UsageError,
    add_command,
    add_shared,
    is_there,
)
from allocsim.cli.output import ProgressBar, refuse_name, save_recording, write_report

if TYPE_CHECKING:
    from allocsim.fitting.scale import LargestSize, Scaled, ScaleFrontier, Scaling

_SUMMARY = "predict a program's memory at other sizes, from recordings"
_DESCRIPTION = """\
Reads recordings of one program at a few sizes, each followed by --at and its
sizes, finds how each request grows with them, replays the requests at the given
sizes, and reports the peak of reserved memory and if it fits.  One varying size
needs two recordings, two sizes need four; each further recording checks the
law.  A size may also be the number of repeated parts, such as layers.  --find
searches the largest size that fits a device."""
_EPILOG = """\
example: allocsim scale a.pickle --at batch=2 b.pickle --at batch=3 \\
           --find batch --gpu "RTX 4090"
         allocsim scale a.pickle --at layers=2 b.pickle --at layers=3 \\
           c.pickle --at layers=5 --to layers=80
Recordings must make the same requests in the same order from the program's
start, or repeat a part more often.  If a kernel works differently at another
size, the requests differ, and the first difference is printed."""
_USAGE = (
    "allocsim scale FILE --at NAME=N FILE --at NAME=N [FILE --at ...]\n"
    "                      (--to NAME=N | --find NAME[,NAME]) [options]"
)
_SIZE = re.compile(r"([A-Za-z_][\w.-]*)=(\d{1,12})")
_NUMBER = re.compile(r"\d{1,12}")


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands, "scale", _SUMMARY, _DESCRIPTION, run, epilog=_EPILOG, usage=_USAGE
    )
    add = parser.add_argument
    file = "a recording; each further one follows the sizes of the one before"
    add_shared(parser, "file", text=file)
    sizes = "sizes of the recording before, e.g. batch=2, then the next recording"
    add("--at", metavar="NAME=N", nargs="+", action="append", required=True, help=sizes)
    goal = parser.add_mutually_exclusive_group(required=True)
    add_to_size = "sizes to predict, e.g. batch=16"
    goal.add_argument("--to", metavar="NAME=N", nargs="+", help=add_to_size)
    largest = "size whose largest fitting value is searched; for two, e.g. batch,sequence, the "
    largest += "largest batch for several values of sequence"
    goal.add_argument("--find", metavar="NAME", action="append", help=largest)
    also = "with --find: the other varying sizes, e.g. sequence=4096; for --find with two, the "
    also += "values of the second, e.g. sequence=2048,4096 (default: the recorded ones)"
    add("--with", metavar="NAME=N", nargs="+", dest="others", default=[], help=also)
    memory = "memory of the device, e.g. 24GiB (default: unlimited)"
    add_shared(parser, "--device-memory", text=memory)
    gpu = 'name of a card instead, e.g. "RTX 4090", without the memory of its context'
    add("--gpu", metavar="NAME", help=gpu)
    conf = "PYTORCH_CUDA_ALLOC_CONF of the prediction (default: as recorded)"
    add_shared(parser, "--conf", text=conf)
    torch = "release of PyTorch, {releases} (default: detected from the recordings)"
    add_shared(parser, "--torch", text=torch)
    add_shared(parser, "--device", text="device to predict, if several are recorded")
    add("-o", "--out", metavar="FILE", help="write the predicted recording, for replay or tune")
    add_shared(parser, "--fail-on-oom", "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.fitting.scale import recording_at, scaling_of
    from allocsim.recording import load
    from allocsim.report import scale as report

    runs = _files_with_sizes(arguments.file, arguments.at)
    _refuse_confused(arguments)
    if arguments.out is not None:
        refuse_name(arguments.out, [path for path, _ in runs])
    with ProgressBar() as bar:
        scaling = scaling_of(
            [(load(path), sizes) for path, sizes in runs],
            device=arguments.device,
            torch_version=arguments.torch,
        )
        memory = _allocator_limit(arguments, scaling)
        if arguments.find is None:
            sizes = _sizes(arguments.to)
            answer: Scaled | LargestSize | ScaleFrontier = scaling.at(
                sizes, conf=arguments.conf, device_memory=memory
            )
        else:
            assert memory is not None
            answer = _find(arguments, scaling, memory, bar)
        at = _reported_prediction(answer)
        if arguments.out is not None:
            assert at is not None
            made = recording_at(scaling, at.at, conf=arguments.conf, device_memory=memory)
            save_recording(made, arguments.out)
    write_report(arguments, report, scaling, answer)
    fails = at is None or not at.fits
    return OUT_OF_MEMORY if arguments.fail_on_oom and fails else 0


def _refuse_confused(arguments: argparse.Namespace) -> None:
    find = arguments.find
    if find is not None and arguments.gpu is None and arguments.device_memory is None:
        raise UsageError("--find needs the device: --gpu NAME or --device-memory SIZE")
    if find is not None and len(find) > 1:
        names = " and ".join(find)
        raise UsageError(f"--find {names}: expected one --find, and the other sizes with --with")
    if find is not None and find[0].count(",") > 1:
        raise UsageError(f"--find {find[0]}: expected one size, or two")
    if find is None and arguments.others:
        raise UsageError("--with needs --find; with --to, give all sizes there")
    if arguments.out is not None and find is not None and "," in find[0]:
        raise UsageError("-o writes one recording; expected --find with one size")


def _reported_prediction(answer: Scaled | LargestSize | ScaleFrontier) -> Scaled | None:
    from allocsim.fitting.scale import LargestSize, ScaleFrontier

    if isinstance(answer, LargestSize):
        return answer.fitting or answer.failing
    if isinstance(answer, ScaleFrontier):
        return next((each.fitting for _, each in answer.rows if each.fitting), None)
    return answer


def _find(
    arguments: argparse.Namespace, scaling: Scaling, memory: int, bar: ProgressBar
) -> LargestSize | ScaleFrontier:
    name, _, other = arguments.find[0].partition(",")
    named = {"conf": arguments.conf, "watch": bar.trying}
    if not other:
        return scaling.largest(name, _sizes(arguments.others), memory, **named)
    values, others = _split_sizes(arguments.others, other)
    values = values or sorted({each.at[other] for each in scaling.law.samples if other in each.at})
    if not values:
        raise UsageError(f"no recording has a size {other}; give its values: --with {other}=N")
    return scaling.frontier(name, other, values, _sizes(others), memory, **named)


def _split_sizes(words: Sequence[str], name: str) -> tuple[list[int], list[str]]:
    ours = [word for word in words if word.startswith(f"{name}=")]
    values = [value for word in ours for value in word.removeprefix(f"{name}=").split(",")]
    if not all(_NUMBER.fullmatch(value) for value in values):
        raise UsageError(f"--with {ours[0]}: expected values, e.g. {name}=2048,4096")
    return list(map(int, values)), [word for word in words if word not in ours]


def _files_with_sizes(
    first: str, groups: Sequence[Sequence[str]]
) -> list[tuple[str, dict[str, int]]]:
    # Arguments are FILE --at NAME=N ... FILE --at NAME=N ...; so the last word of a group is a
    # FILE.
    found, path = [], first
    for i, words in enumerate(groups):
        is_last = i == len(groups) - 1
        sizes = words if is_last else words[:-1]
        if not sizes or (not is_last and _SIZE.fullmatch(words[-1]) and not is_there(words[-1])):
            raise UsageError(
                f"--at {' '.join(words)}: expected sizes, e.g. batch=2, and then the next recording"
            )
        found.append((path, _sizes(sizes)))
        path = words[-1]
    return found


def _sizes(words: Sequence[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for word in ",".join(words).split(","):
        match = _SIZE.fullmatch(word)
        if not match and word:
            raise UsageError(_not_a_size(word))
        if match:
            name, value = match[1], int(match[2])
            if sizes.setdefault(name, value) != value:
                raise UsageError(f"{name} is given as {sizes[name]} and as {value}")
    return sizes


def _not_a_size(word: str) -> str:
    name, equals, digits = word.partition("=")
    if equals and name and digits.isdecimal():
        most = 10**12 - 1
        return f"{name[:80]}={digits[:80]} is too large; expected a number up to {most:,}"
    return f"{word[:80]!r} is not a size; expected a name and a number, e.g. batch=2"


def _allocator_limit(arguments: argparse.Namespace, scaling: Scaling) -> int | None:
    # The predictions include a CUDA context if the recordings do.
    if arguments.gpu is None:
        memory: int | None = arguments.device_memory
        return memory
    if arguments.device_memory is not None:
        raise UsageError("--gpu and --device-memory both select the device; expected one")
    from allocsim.phantom import find_gpu

    card = find_gpu(arguments.gpu)
    return card.memory if scaling.context_memory else card.room
