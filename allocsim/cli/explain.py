"""`allocsim explain`: explain why a request failed, from an error's text or a recording."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from allocsim.cli.options import (
    HINTS,
    Commands,
    UsageError,
    add_command,
    add_shared,
    hints_of,
    is_there,
    memory_size,
)
from allocsim.cli.output import ProgressBar, write_report

if TYPE_CHECKING:
    from allocsim.recording import Recording

_SUMMARY = "explain an out-of-memory error: a text, a log or a recording"
_DESCRIPTION = """\
Reads TEXT, an out-of-memory error of PyTorch in any wording since 1.0, or a log
FILE that contains such errors, and names the cause of each, the figures that
prove it, and the remedy.  If FILE is a recording of
torch.cuda.memory._record_memory_history(), it is replayed and each of its
errors is explained.  For a start-up log of vLLM, SGLang or llama.cpp, or a
table of memory_summary(), the figures are printed.  No GPU is needed.  Without
an argument, or with -, standard input is read."""
_FILE_NAME = re.compile(
    r"\S*(?:/|\\)\S*|\S+\.(?:pickle|pkl|json|npz|gz|xz|zst|zip|log|txt|out|err)"
)

_SIMILAR_WORD, _SIMILAR_SENTENCE = 0.6, 0.85
"""Least similarity (difflib's ratio) of an argument to the name of a file that the user may mean.

The first is for an argument without blanks, the second for an argument with blanks.
"""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "explain", _SUMMARY, _DESCRIPTION, run)
    text = "an error's text, a log, or a recording"
    parser.add_argument("text", metavar="TEXT|FILE|-", nargs="?", default="-", help=text)
    add_shared(parser, "--conf", text="PYTORCH_CUDA_ALLOC_CONF of the run that failed")
    add_shared(parser, "--torch", text="release of PyTorch (default: detected from the wording)")
    memory = "memory of the card, if the text lacks it, or of another card to compare"
    add_shared(parser, "--device-memory", text=memory)
    of_recording = "explain only this device of a recording (default: all)"
    add_shared(parser, "--device", text=of_recording)
    host = "explain the growth of pinned host memory in a recording"
    parser.add_argument("--host", action="store_true", help=host)
    request = "for a snapshot without a history: report if a request of this size would succeed"
    parser.add_argument("--request", metavar="SIZE", type=memory_size, help=request)
    add_shared(parser, *HINTS)
    add_shared(parser, "--verbose", "--json")


def run(arguments: argparse.Namespace) -> int:
    if arguments.host:
        _explain_host(arguments)
        return 0
    if arguments.text == "-":
        text = _standard_input()
    elif is_there(arguments.text) and not Path(arguments.text).is_dir():
        from allocsim.recording import read_log

        log = read_log(arguments.text)
        if log is None:
            _explain_file(arguments)
            return 0
        text = log
    else:
        text = _error_text(arguments.text)
    if hints_of(arguments) is not None:
        raise UsageError(f"{', '.join(HINTS)} apply to a recording; an error's text has none")
    if arguments.request is not None:
        raise UsageError("--request needs a snapshot; an error's text has none")
    if arguments.device is not None:
        raise UsageError("--device selects a device of a recording; an error's text has none")
    from allocsim.analysis.explain import explain
    from allocsim.recording import figures_in
    from allocsim.report import explain_message

    verdicts = explain(
        text, arguments.conf, torch_version=arguments.torch, device_memory=arguments.device_memory
    )
    # For a text without an error, the only verdict has an empty message. A refusal of a server may
    # contain the words of an error of PyTorch, and has more figures.
    printed = figures_in(text)
    has_error = bool(verdicts[0].message.text)
    is_log = printed is not None and (printed.refusals or not has_error)
    if text is arguments.text and not has_error and not is_log:
        _check_name(text)
    write_report(arguments, explain_message, printed if is_log else verdicts)
    return 0


def _explain_host(arguments: argparse.Namespace) -> None:
    from allocsim.analysis.explain import explain_host
    from allocsim.recording import load_host
    from allocsim.report import host as report

    if not is_there(arguments.text):
        raise UsageError(f"--host needs a recording's file; {arguments.text!r} is none")
    answer = explain_host(arguments.text, load_host(arguments.text))
    write_report(arguments, report, answer)


def _error_text(text: str) -> str:
    if not text.strip():
        raise UsageError("the text is empty; give an error's text, a file, or - for standard input")
    if is_there(text):
        raise UsageError(f"{text} is a directory; expected a log or an error's text")
    if _FILE_NAME.fullmatch(text):
        raise _missing(text)
    return text


def _check_name(text: str) -> None:
    """Raise UsageError if `text`, which has no error, is likely a mistyped name of a file."""
    if len(text.split()) == 1 or _similar_name(text, _SIMILAR_SENTENCE):
        raise _missing(text)


def _missing(name: str) -> UsageError:
    similar = _similar_name(name, _SIMILAR_WORD)
    meant = f"; did you mean {similar}?" if similar else ""
    return UsageError(f"{name}: does not exist, expected a log or a recording's file{meant}")


def _similar_name(text: str, least: float) -> str:
    from difflib import get_close_matches

    folder = Path(text).parent
    try:
        names = [each.name for each in folder.iterdir()]
    except (OSError, ValueError):  # no folder, or a text that cannot name one
        return ""
    near = get_close_matches(Path(text).name, names, n=1, cutoff=least)
    return str(folder / near[0]) if near else ""


def _standard_input() -> str:
    from allocsim.recording import LONGEST_LOG, decoded

    return decoded(sys.stdin.buffer.read(LONGEST_LOG + 1), "standard input")


def _explain_file(arguments: argparse.Namespace) -> None:
    from allocsim.analysis.picture import shown_device
    from allocsim.recording import load

    recording = load(arguments.text)
    device = shown_device(recording, arguments.device)
    if device is not None and recording.device(device).is_state_only:
        _explain_state(arguments, recording, device)
    elif arguments.request is not None:
        raise UsageError(
            f"{arguments.text} holds a history, and --request needs a snapshot without one; leave "
            "--request out to have the errors of the history explained"
        )
    else:
        _explain_recording(arguments, recording)


def _explain_recording(arguments: argparse.Namespace, recording: Recording) -> None:
    from allocsim.analysis.explain import explain_prepared
    from allocsim.analysis.top import top_of_replay
    from allocsim.replaying import prepare, with_proof, with_range
    from allocsim.report import explain as report

    with ProgressBar() as bar:
        prepared = prepare(recording, arguments.device, arguments.torch, hints=hints_of(arguments))
        run, devices = explain_prepared(
            prepared,
            arguments.conf,
            device_memory=arguments.device_memory,
            progress=bar.stage("replaying"),
            watch=bar.trying,
        )
        top = None if arguments.json else top_of_replay(prepared, run)
        run = with_range(with_proof(run))  # before output, because both may need replays
        devices = tuple(
            replace(each, device_run=device_run)
            for each, device_run in zip(devices, run.devices, strict=True)
        )
    write_report(arguments, report, run, devices, top=top)


def _explain_state(arguments: argparse.Namespace, recording: Recording, device: int) -> None:
    from allocsim.analysis.explain import explain_state
    from allocsim.analysis.top import top
    from allocsim.report import explain_state as report

    if hints_of(arguments) is not None:
        raise UsageError(f"{', '.join(HINTS)} apply to a history, and the snapshot has none")
    answer = explain_state(
        recording,
        recording.device(device),
        arguments.request,
        arguments.conf,
        device_memory=arguments.device_memory,
        torch_version=arguments.torch,
    )
    owners = None if arguments.json else top(recording, device=device)
    write_report(arguments, report, answer, top=owners)
