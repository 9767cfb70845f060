"""`allocsim synth`: a recording of a program that never ran.

Rule: the options of a kind are the parameters of its function in allocsim.workload, under the
same names and with the same defaults; they are written here once more so that --help needs no
NumPy, and a test compares the two.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from allocsim.cli.options import Commands, add_command
from allocsim.cli.output import refuse_name, save_recording, write
from allocsim.cli.usage import Parser, count, memory_size

__all__ = ["SYNTH_KINDS", "add_to", "run"]

_SUMMARY = "write a synthetic recording: training, server, fragmentation, streams, graphs"
_DESCRIPTION = """\
Plays a program that never ran on the model and writes FILE, a recording as
PyTorch would have made it: .pickle and .pickle.gz open in PyTorch's own viewer,
.npz loads fastest.  It replays (--strict), lints and steps like any other.
`allocsim synth KIND --help` says what a kind shows and has its options."""

Option = tuple[str, object, str]
"""(name, default, help); the default's type says what is read."""

_ENTRIES: Option = ("entries", None, "go on for as many entries instead")


@dataclass(frozen=True, slots=True)
class SynthKind:
    """A kind of recording.

    summary: one line.
    shows: what can be seen in it, as --help prints it.
    options: those of this kind alone.
    """

    summary: str
    shows: str
    options: tuple[Option, ...]


SYNTH_KINDS = {
    "training": SynthKind(
        "a training loop, regular or ragged",
        "Forward, backward and Adam of a transformer.  Regular, it settles: after\n"
        "the first steps the driver is hardly asked again.  --ragged gives each\n"
        "step a sequence length of its own: blocks cut for one do not fit the\n"
        "next, and reserved memory grows past what any step needs.",
        (
            ("steps", 10, "training steps"),
            ("layers", 12, "of the model"),
            ("hidden", 768, "width of the model"),
            ("batch", 4, "sequences in a step"),
            ("sequence", 512, "tokens in a sequence, at most"),
            ("ragged", False, "a sequence length of its own for each step"),
            _ENTRIES,
        ),
    ),
    "server": SynthKind(
        "growing caches of a language model's server",
        "Each answer's cache grows by making a longer one and freeing the old.  The\n"
        "holes left are always a little too short for the caches still growing.",
        (
            ("requests", 100, "answered in all"),
            ("concurrent", 8, "answered at the same time"),
            ("prompt", 512, "tokens of a prompt, at most"),
            ("answer", 256, "tokens of an answer, at most"),
            ("growth", 32, "tokens that a cache is made longer by"),
            ("cache_size", "72KiB", "cache of one token"),
            ("weights", "2GiB", "of the model"),
            _ENTRIES,
        ),
    ),
    "fragments": SynthKind(
        "interleaved lifetimes that fragment",
        "Blocks that die young lie between blocks that stay.  The holes are a little\n"
        "too small for the next round, and segments pile up half empty.",
        (
            ("rounds", 20, "of pairs, short-lived and long-lived"),
            ("blocks", 40, "pairs in a round"),
            ("life", 3, "rounds that the long-lived ones stay for"),
            ("block_size", "2MiB", "of the first short-lived ones, about"),
            ("growth", 5, "percent by which they grow with each round"),
            _ENTRIES,
        ),
    ),
    "oom": SynthKind(
        "out of memory with memory free, in ten calls",
        "Six blocks of 9 MiB, every other one freed, then 12 MiB: 33 MiB of 60 are\n"
        "idle, the largest idle piece has 9 MiB, and the request fails.",
        (),
    ),
    "streams": SynthKind(
        "two streams and record_stream",
        "What the default stream makes a side stream copies.  A block freed\n"
        "meanwhile is pending until the side stream has caught up; the loop takes\n"
        "several times the memory that it needs at once.",
        (
            ("steps", 30, "of the loop"),
            ("buffers", 4, "made in a step"),
            ("buffer_size", "16MiB", "of a buffer, at most"),
            ("lag", 3, "steps after which the side stream has caught up"),
            _ENTRIES,
        ),
    ),
    "graphs": SynthKind(
        "private pools of CUDA graphs",
        "Each graph is captured into a pool of its own.  What is free there serves\n"
        "nothing outside and survives empty_cache until the graph is dropped.",
        (
            ("pools", 4, "graphs, each with a pool"),
            ("tensors", 12, "made in a capture"),
            ("tensor_size", "8MiB", "of a tensor, at most"),
            ("rounds", 20, "of ordinary work after the captures"),
            _ENTRIES,
        ),
    ),
}
_MEMORY = {"oom": "60MiB"}


def add_to(commands: Commands[Parser]) -> None:
    """Add the command, and a command below it for each kind."""
    parser = add_command(commands, "synth", _SUMMARY, _DESCRIPTION, run)
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    for name, kind in SYNTH_KINDS.items():
        description = f"{kind.summary[0].upper()}{kind.summary[1:]}.\n\n{kind.shows}"
        below = add_command(kinds, name, kind.summary, description, run)
        _add_options(below, name, kind)
        below.set_defaults(kind=name)


def _add_options(parser: Parser, name: str, kind: SynthKind) -> None:
    add = parser.add_argument
    add("-o", "--output", metavar="FILE", required=True, help=".pickle, .pickle.gz or .npz")
    seed: tuple[Option, ...] = (("seed", 0, "of what is drawn"),) if kind.options else ()
    memory: Option = ("device_memory", _MEMORY.get(name, "24GiB"), "of the device")
    conf: Option = ("conf", "", "PYTORCH_CUDA_ALLOC_CONF of the program")
    for option, default, text in (*kind.options, *seed, memory, conf):
        flag = f"--{option.replace('_', '-')}"
        if isinstance(default, bool):
            add(flag, action="store_true", default=argparse.SUPPRESS, help=text)
            continue
        is_size = option.endswith("_size") or option in ("weights", "device_memory")
        add(
            flag,
            metavar="SIZE" if is_size else "CONF" if option == "conf" else "N",
            type=memory_size if is_size else str if option == "conf" else count,
            default=argparse.SUPPRESS,
            help=text if default in (None, "") else f"{text} (default: {default})",
        )


def run(arguments: argparse.Namespace) -> int:
    from allocsim.workload import KINDS  # noqa: PLC0415

    options = dict(vars(arguments))
    output, kind = options.pop("output"), options.pop("kind")
    del options["run"]
    refuse_name(output)
    recording = KINDS[kind](**options)
    save_recording(recording, output)
    made = recording.provenance
    ended = ", ended out of memory" if made is not None and made.oom_text else ""
    write(f"{output}: {len(recording.devices[0]):,} entries{ended}\n")
    return 0
