"""`allocsim synth`: write a recording of a synthetic program.

The options of a kind of program are the parameters of its function in allocsim.workload.  They are
repeated here so that --help needs no NumPy.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from allocsim.cli.options import Commands, Parser, add_command, count, memory_size
from allocsim.cli.output import refuse_name, save_recording, write

_SUMMARY = "write a recording of a synthetic program"
_DESCRIPTION = """\
Runs a synthetic program on the model and writes FILE, a recording as PyTorch
would have made it: .pickle and .pickle.gz open in PyTorch's viewer, .npz loads
fastest.  It replays (--strict), lints and steps like any other recording.
`allocsim synth KIND --help` describes a kind and its options."""

Option = tuple[str, object, str]
"""Option as (name, default, help); the type of the default is the type of the option."""

_ENTRIES: Option = ("entries", None, "stop after this number of entries instead")


@dataclass(frozen=True, slots=True)
class SynthKind:
    """Kind of synthetic program.

    shows: behaviour of the allocator that the recording demonstrates, for --help.
    options: options that other kinds do not have.
    """

    summary: str
    shows: str
    options: tuple[Option, ...]


SYNTH_KINDS = {
    "training": SynthKind(
        "a training loop, regular or ragged",
        "Forward, backward and Adam of a transformer.  With equal steps, the driver\n"
        "is hardly called after the first steps.  --ragged gives each step another\n"
        "sequence length: blocks split for one step do not fit the next, and\n"
        "reserved memory grows beyond the need of any step.",
        (
            ("steps", 10, "training steps"),
            ("layers", 12, "layers of the model"),
            ("hidden", 768, "width of the model"),
            ("batch", 4, "sequences in a step"),
            ("sequence", 512, "maximum tokens of a sequence"),
            ("ragged", False, "use another sequence length in each step"),
            _ENTRIES,
        ),
    ),
    "server": SynthKind(
        "growing KV caches of a language model server",
        "The cache of each answer grows by allocating a longer one and freeing the\n"
        "old one.  The holes are always a little too short for the growing caches.",
        (
            ("requests", 100, "requests in total"),
            ("concurrent", 8, "requests answered at the same time"),
            ("prompt", 512, "maximum tokens of a prompt"),
            ("answer", 256, "maximum tokens of an answer"),
            ("growth", 32, "tokens added to a cache at a time"),
            ("cache_size", "72KiB", "cache size of one token"),
            ("weights", "2GiB", "weights of the model"),
            _ENTRIES,
        ),
    ),
    "fragments": SynthKind(
        "interleaved lifetimes that cause fragmentation",
        "Short-lived blocks are allocated between long-lived blocks.  The holes are\n"
        "a little too small for the next round, and half-empty segments accumulate.",
        (
            ("rounds", 20, "rounds of short-lived and long-lived pairs"),
            ("blocks", 40, "pairs per round"),
            ("life", 3, "lifetime of the long-lived blocks, in rounds"),
            ("block_size", "2MiB", "approximate size of the first short-lived blocks"),
            ("growth", 5, "growth of the blocks per round, in percent"),
            _ENTRIES,
        ),
    ),
    "oom": SynthKind(
        "out of memory despite free memory, in ten calls",
        "Six blocks of 9 MiB are allocated, every second one is freed, and 12 MiB\n"
        "are requested: 33 of 60 MiB are unused, but the largest free block has\n"
        "9 MiB, and the request fails.",
        (),
    ),
    "streams": SynthKind(
        "two streams and record_stream",
        "A side stream copies the buffers of the default stream.  A block that is\n"
        "freed meanwhile is pending until the side stream has finished, so the loop\n"
        "takes several times the memory that it needs at once.",
        (
            ("steps", 30, "steps of the loop"),
            ("buffers", 4, "buffers allocated per step"),
            ("buffer_size", "16MiB", "maximum size of a buffer"),
            ("lag", 3, "delay of the side stream, in steps"),
            _ENTRIES,
        ),
    ),
    "graphs": SynthKind(
        "private pools of CUDA graphs",
        "Each graph is captured into a private pool.  Free memory of that pool is\n"
        "not used outside it, and empty_cache keeps it until the graph is dropped.",
        (
            ("pools", 4, "graphs, each with a pool"),
            ("tensors", 12, "tensors allocated per capture"),
            ("tensor_size", "8MiB", "maximum size of a tensor"),
            ("rounds", 20, "rounds of other work after the captures"),
            _ENTRIES,
        ),
    ),
}
_MEMORY = {"oom": "60MiB"}


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "synth", _SUMMARY, _DESCRIPTION, run)
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    for name, kind in SYNTH_KINDS.items():
        description = f"{kind.summary[0].upper()}{kind.summary[1:]}.\n\n{kind.shows}"
        below = add_command(kinds, name, kind.summary, description, run)
        _add_options(below, name, kind)
        below.set_defaults(kind=name)


def _add_options(parser: Parser, name: str, kind: SynthKind) -> None:
    add = parser.add_argument
    output = "recording to write: .pickle, .pickle.gz or .npz"
    add("-o", "--output", metavar="FILE", required=True, help=output)
    seed: tuple[Option, ...] = (("seed", 0, "seed of the random numbers"),) if kind.options else ()
    memory: Option = ("device_memory", _MEMORY.get(name, "24GiB"), "memory of the device")
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
    from allocsim.workload import KINDS

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
