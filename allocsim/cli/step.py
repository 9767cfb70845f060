"""`allocsim step`: process one request at a time, and explain every decision of the allocator.

Blocks are numbered from 1 in the order of the requests; a failed request also takes a number.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allocsim.cli.options import Commands, UsageError, add_command, add_shared, count
from allocsim.cli.output import write, write_json
from allocsim.units import parse_size

if TYPE_CHECKING:
    from allocsim.analysis.step import Decision, Request
    from allocsim.core import CachingAllocator
    from allocsim.recording import Recording


_SUMMARY = "process one request at a time, and explain every decision"
_DESCRIPTION = """\
Processes the allocator's requests one at a time and names each decision in the
terms of docs/concepts/allocator.md, with the segments drawn before and after.

FILE is a recording, or an op script (JSON with "ops"); KIND is a kind of
`allocsim synth`.  Without either, requests are read from standard input, typed
or piped: malloc 3MiB, free 1, empty_cache; `help` lists them."""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "step", _SUMMARY, _DESCRIPTION, run)
    add = parser.add_argument
    source = "a recording, an op script, or a kind of synth"
    add("what", metavar="FILE|KIND", nargs="?", help=source)
    add("--at", metavar="N", type=count, default=0, help="first entry or op (default: 0)")
    number = "number of requests (default: 1 for a recording, all of a script)"
    add("--count", metavar="N", type=count, help=number)
    add_shared(parser, "--device", text="device of a recording (default: its first)")
    add_shared(parser, "--device-memory", text="memory of a session's device (default: 16GiB)")
    add("--conf", metavar="CONF", default="", help="PYTORCH_CUDA_ALLOC_CONF of a session")
    add_shared(parser, "--torch", text="release of PyTorch of a session, {releases}")
    add_shared(parser, "--verbose", "--json")


def run(arguments: argparse.Namespace) -> int:
    if arguments.what in (None, "-"):
        _answer_input(arguments)
    elif (script := _script(arguments.what)) is not None:
        _play_script(arguments, script)
    else:
        _walk(arguments, _recording(arguments.what))
    return 0


# -- recordings ----------------------------------------------------------------------------


def _recording(what: str) -> Recording:
    from allocsim.recording import load

    if not Path(what).exists() and "." not in what and "/" not in what:
        from allocsim.workload import KINDS

        if what not in KINDS:
            raise UsageError(
                f"{what} is neither a file nor a kind; expected a file or one of {', '.join(KINDS)}"
            )
        return KINDS[what]()
    return load(what)


def _walk(arguments: argparse.Namespace, recording: Recording) -> None:
    from allocsim.analysis.step import walk_on
    from allocsim.replaying import Walk, prepare
    from allocsim.report import step as report
    from allocsim.report import warned

    if not recording.devices:
        raise UsageError(f"{recording.path}: holds neither segments nor entries")
    number = recording.devices[0].device if arguments.device is None else arguments.device
    (prepared,) = prepare(recording, number)
    walk = Walk(prepared)
    name = f"device {number}, " if len(recording.devices) > 1 else ""
    walk.go_to(arguments.at)
    warnings = [] if walk.parting is None else [str(walk.parting)]
    texts = ["\n".join(warned(warnings)).rstrip() + "\n"] if warnings else []
    documents: list[dict[str, Any]] = []
    for _ in range(1 if arguments.count is None else arguments.count):
        found = walk_on(walk)
        if found is None:
            break
        entry, decision = found
        parting = walk.parting
        unproved = ", unproved" * (parting is not None and parting.is_before(entry))
        title = f"{name}entry {entry:,}{unproved}: {_asked(decision.request)}"
        texts.append(report.text(decision, title, is_screen=not arguments.verbose))
        documents.append(report.document(decision, entry, device=number, parting=parting))
    if arguments.json:
        write_json(documents)
    else:
        hint = "" if arguments.verbose else f"\n{report.HIDDEN}\n"
        write("\n".join(texts) + hint)


def _asked(request: Any) -> str:
    stream = f", stream {request.stream}" if request.stream else ""
    if request.action == "malloc":
        return f"malloc {request.size:,} bytes{stream}"
    address = "" if request.address is None else f" {request.address:#x}"
    return f"{request.action}{address}"


# -- scripts and sessions ------------------------------------------------------------------


def _script(what: str) -> dict[str, Any] | None:
    """Return the content of `what` if it is a JSON file with allocator calls ("ops"), else None."""
    import json

    path = Path(what)
    if not what.endswith(".json") or not path.is_file():
        return None
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None  # `load` reports the fault of the file
    return value if isinstance(value, dict) and isinstance(value.get("ops"), list) else None


def _play_script(arguments: argparse.Namespace, script: dict[str, Any]) -> None:
    lines = lines_of(script["ops"])
    end = None if arguments.count is None else arguments.at + arguments.count
    memory = arguments.device_memory or script.get("device_memory", "16GiB")
    conf = arguments.conf or script.get("conf", "")
    session = _session(arguments, memory, conf, script.get("address_policy", "bump"))
    for line in lines[: arguments.at]:
        session.ask(line)
    _answer_all(session, lines[arguments.at : end], arguments)


def _session(
    arguments: argparse.Namespace, memory: int | str, conf: str, policy: str = "bump"
) -> Session:
    from allocsim.core import NEWEST, CachingAllocator

    release = arguments.torch or NEWEST
    made = CachingAllocator(memory, conf, release, address_policy=policy, record_history=True)
    return Session(made)


def _answer_input(arguments: argparse.Namespace) -> None:
    session = _session(arguments, arguments.device_memory or "16GiB", arguments.conf)
    if not sys.stdin.isatty():
        _answer_all(session, sys.stdin, arguments)
        return
    write("help lists the requests, quit ends the session\n")
    for line in _typed():
        try:
            _answer_all(session, [line], arguments, echo=False)
        except UsageError as error:  # a typing error must not end the session
            write(f"{error}\n")


def _typed() -> Iterator[str]:
    while True:
        try:
            line = input("> ")
        except EOFError:
            return
        if line.strip() in ("quit", "exit"):
            return
        yield line


def _answer_all(
    session: Session, lines: Iterable[str], arguments: argparse.Namespace, *, echo: bool = True
) -> None:
    from allocsim.report import step as report

    documents = []
    for raw in lines:
        line = raw.partition("#")[0].strip()
        if line == "quit":
            break
        if not line:
            continue
        shown = _shown(session, line)
        if shown is not None:
            write((f"> {line}\n" if echo else "") + shown + "\n")
            continue
        decision = session.ask(line)
        documents.append(report.document(decision))
        if not arguments.json:
            block = session.numbers.get(decision.address) if decision.address is not None else None
            title = f"> {line}" + ("" if block is None else f"    (block {block})")
            write(report.text(decision, title, is_screen=not arguments.verbose) + "\n")
    if arguments.json:
        write_json(documents)


def _shown(session: Session, line: str) -> str | None:
    from allocsim.report import step as report

    if line == "help":
        return HELP
    if line == "segments":
        return report.segments_text(session.allocator.segments(), session.numbers)
    if line == "stats":
        stats = session.allocator.memory_stats()
        return "".join(f"  {key:<44}{value:>18,}\n" for key, value in stats.items() if value)
    return None


HELP = """\
  malloc SIZE [stream=N]    request a block, e.g. 3MiB or 512; blocks are numbered from 1
  free N                    free block N
  record N stream=M         record_stream: the free of block N waits for stream M
  sync [stream=N]           that stream, or every stream, finishes its work
  empty_cache               torch.cuda.empty_cache()
  fraction F                set_per_process_memory_fraction(F)
  conf TEXT                 change options at run time
  begin P, end P            start, or stop, to allocate in private pool P
  release P                 release private pool P
  segments, stats           print every segment, or every statistic that is not 0
  help, quit
"""
_MOST_DIGITS = 20
"""Largest number of digits in a typed number, enough for a stream's raw handle (an address)."""
_OP_WORDS = {"e": "empty_cache", "S": "sync"}


class Session:
    """Simulated allocator that executes typed requests, and the numbers of its live blocks."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self.allocator = allocator
        self.numbers: dict[int, int] = {}
        self._blocks: list[int | None] = []

    def ask(self, line: str) -> Decision:
        """Execute a line such as "malloc 2MiB"; return the allocator's decision."""
        from allocsim.analysis.step import step

        try:
            request = self._request(line.split())
            decision = step(self.allocator, request)
        except ValueError as error:
            raise UsageError(f"{line.strip()!r}: {error} (help lists the requests)") from None
        if request.action == "malloc":
            self._blocks.append(decision.address)
            if decision.address is not None:
                self.numbers[decision.address] = len(self._blocks)
        elif request.action == "free" and request.address is not None:
            self._blocks[int(line.split()[1]) - 1] = None
            self.numbers.pop(request.address, None)
        return decision

    def _request(self, words: list[str]) -> Request:
        from allocsim.analysis.step import Request

        plain = [word for word in words[1:] if not word.startswith("stream=")]
        named = [word.removeprefix("stream=") for word in words if word.startswith("stream=")]
        stream = _whole(named[0], "a stream") if named else 0
        word, first = words[0], plain[0] if plain else ""
        if word in ("free", "record"):
            action = "free" if word == "free" else "record_stream"
            return Request(action, address=self._block(first), stream=stream)
        made: Request | None = {
            "malloc": lambda: Request("malloc", parse_size(" ".join(plain)), stream=stream),
            "sync": lambda: Request("synchronize", stream=stream if named else None),
            "empty_cache": lambda: Request("empty_cache"),
            "fraction": lambda: Request("set_per_process_memory_fraction", value=_fraction(first)),
            "conf": lambda: Request("set_allocator_settings", value=first),
            "begin": lambda: Request("begin_allocate_to_pool", pool=_whole(first, "a pool")),
            "end": lambda: Request("end_allocate_to_pool", pool=_whole(first, "a pool")),
            "release": lambda: Request("release_pool", pool=_whole(first, "a pool")),
        }.get(word, lambda: None)()
        if made is None:
            raise ValueError("no such request")
        return made

    def _block(self, text: str) -> int:
        at = _whole(text, "the number of a block")
        address = self._blocks[at - 1] if 0 < at <= len(self._blocks) else None
        if address is None:
            raise ValueError(f"block {at} is not allocated")
        return address


def _whole(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        given = f"{text[:80]!r} is not {what}" if text else f"{what} is missing"
        raise ValueError(f"{given}; expected a whole number, e.g. 1")
    return int(text)


def _fraction(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        given = f"{text[:80]!r} is not a fraction" if text else "the fraction is missing"
        raise ValueError(f"{given}; expected 0 to 1, e.g. 0.5") from None


def lines_of(ops: list[list[Any]]) -> list[str]:
    """Convert operations to lines for `Session.ask`: ["f", "x"] becomes "free 1".

    ops: allocator calls of an op script, such as ["a", "x", 2097152, 0]: allocate block x of 2 MiB
        on stream 0. Stream n of a script is the stream with the raw handle n * 4096.
    """
    numbers: dict[object, int] = {}
    n_mallocs = 0
    lines = []
    for at, op in enumerate(ops):
        try:
            letter, *rest = op
            if letter == "a":
                n_mallocs += 1
                numbers[rest[0]] = n_mallocs
                lines.append(f"malloc {int(rest[1])} stream={int(rest[2]) * 4096}")
            elif letter == "f":
                lines.append(f"free {numbers[rest[0]]}")
            elif letter == "r":
                lines.append(f"record {numbers[rest[0]]} stream={int(rest[1]) * 4096}")
            elif letter == "s":
                lines.append(f"sync stream={int(rest[0]) * 4096}")
            elif letter == "m":
                lines.append(f"fraction {rest[0]}")
            elif letter == "c":
                lines.append(f"conf {rest[0]}")
            elif letter == "P":
                word = {"b": "begin", "e": "end", "r": "release"}[rest[0]]
                lines.append(f"{word} {int(rest[1])}")
            else:
                lines.append(_OP_WORDS[letter])
        except (KeyError, IndexError, TypeError, ValueError):
            raise UsageError(f"op {at}: {op!r} is not an op of a session") from None
    return lines
