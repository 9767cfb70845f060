"""`allocsim step`: process one request at a time, and explain every decision of the allocator.

The argument is the name of an existing file (a recording, or a script of requests), or a kind of
`allocsim synth`. Without an argument, requests are read from standard input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allocsim.cli.options import Commands, add_command, add_shared
from allocsim.cli.output import write, write_json
from allocsim.cli.step_session import HELP, Session, lines_of
from allocsim.cli.usage import Parser, UsageError, count

if TYPE_CHECKING:
    from allocsim.recording import Recording

_SUMMARY = "process one request at a time, and explain every decision"
_DESCRIPTION = """\
Processes the allocator's requests one at a time and names each decision in the
terms of docs/concepts/allocator.md, with the segments drawn before and after.

FILE is a recording, or an op script (JSON with "ops"); KIND is a kind of
`allocsim synth`.  Without either, requests are read from standard input, typed
or piped: malloc 3MiB, free 1, empty_cache; `help` lists them."""


def add_to(commands: Commands[Parser]) -> None:
    parser = add_command(commands, "step", _SUMMARY, _DESCRIPTION, run)
    add = parser.add_argument
    add(
        "what", metavar="FILE|KIND", nargs="?", help="a recording, an op script, or a kind of synth"
    )
    add("--at", metavar="N", type=count, default=0, help="first entry or op (default: 0)")
    add(
        "--count",
        metavar="N",
        type=count,
        help="number of requests (default: 1 for a recording, all of a script)",
    )
    add_shared(parser, "--device", text="device of a recording (default: its first)")
    add_shared(parser, "--device-memory", text="memory of a session's device (default: 16GiB)")
    add("--conf", metavar="CONF", default="", help="PYTORCH_CUDA_ALLOC_CONF of a session")
    add_shared(parser, "--torch", text="release of PyTorch of a session, {releases}")
    add_shared(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    if arguments.what in (None, "-"):
        _converse(arguments)
    elif (script := _script(arguments.what)) is not None:
        _play_script(arguments, script)
    else:
        _walk(arguments, _recording(arguments.what))
    return 0


# -- recordings ----------------------------------------------------------------------------


def _recording(what: str) -> Recording:
    from allocsim.recording import load  # noqa: PLC0415

    if not Path(what).exists() and "." not in what and "/" not in what:
        from allocsim.workload import KINDS  # noqa: PLC0415

        if what not in KINDS:
            raise UsageError(
                f"{what} is neither a file nor a kind; expected a file or one of {', '.join(KINDS)}"
            )
        return KINDS[what]()
    return load(what)


def _walk(arguments: argparse.Namespace, recording: Recording) -> None:
    from allocsim.analysis.step import walk_on  # noqa: PLC0415
    from allocsim.replaying import Walk, prepare  # noqa: PLC0415
    from allocsim.report import step as report  # noqa: PLC0415
    from allocsim.report import warned  # noqa: PLC0415

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
        texts.append(report.text(decision, title))
        documents.append(report.document(decision, entry, device=number, parting=parting))
    if arguments.json:
        write_json(documents)
    else:
        write("\n".join(texts))


def _asked(request: Any) -> str:
    stream = f", stream {request.stream}" if request.stream else ""
    if request.action == "malloc":
        return f"malloc {request.size:,} bytes{stream}"
    address = "" if request.address is None else f" {request.address:#x}"
    return f"{request.action}{address}"


# -- scripts and sessions ------------------------------------------------------------------


def _script(what: str) -> dict[str, Any] | None:
    """Return the script of requests in a file; None if the file is no such script."""
    import json  # noqa: PLC0415

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
    _answer_all(session, lines[arguments.at : end], as_json=arguments.json)


def _session(
    arguments: argparse.Namespace, memory: int | str, conf: str, policy: str = "bump"
) -> Session:
    from allocsim.core import NEWEST, CachingAllocator  # noqa: PLC0415

    release = arguments.torch or NEWEST
    made = CachingAllocator(memory, conf, release, address_policy=policy, record_history=True)
    return Session(made)


def _converse(arguments: argparse.Namespace) -> None:
    """Read requests from standard input, and print the allocator's decision on each.

    A wrong line ends the session, unless it is interactive.
    """
    session = _session(arguments, arguments.device_memory or "16GiB", arguments.conf)
    if not sys.stdin.isatty():
        _answer_all(session, sys.stdin, as_json=arguments.json)
        return
    write("help lists the requests, quit ends the session\n")
    for line in _typed():
        try:
            _answer_all(session, [line], as_json=arguments.json, echo=False)
        except UsageError as error:
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
    session: Session, lines: Iterable[str], *, as_json: bool, echo: bool = True
) -> None:
    from allocsim.report import step as report  # noqa: PLC0415

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
        if not as_json:
            block = session.numbers.get(decision.address) if decision.address is not None else None
            title = f"> {line}" + ("" if block is None else f"    (block {block})")
            write(report.text(decision, title) + "\n")
    if as_json:
        write_json(documents)


def _shown(session: Session, line: str) -> str | None:
    """Return the output for "help", "segments" or "stats"; None if the line is a request."""
    from allocsim.report import step as report  # noqa: PLC0415

    if line == "help":
        return HELP
    if line == "segments":
        return report.segments_text(session.allocator.segments(), session.numbers)
    if line == "stats":
        stats = session.allocator.memory_stats()
        return "".join(f"  {key:<44}{value:>18,}\n" for key, value in stats.items() if value)
    return None
