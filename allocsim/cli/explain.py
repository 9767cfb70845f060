"""`allocsim explain`: why a request found no memory, from an error's text or a recording.

Rule: `run` alone decides what the argument is: an existing file is a recording or a log, "-" or
no argument means standard input, and everything else is the text itself.
"""

from __future__ import annotations

import argparse
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from allocsim.cli.options import HINTS, Commands, add_command, add_shared, hints_of
from allocsim.cli.output import write_answer
from allocsim.cli.owners import owners_of
from allocsim.cli.progress import ProgressBar
from allocsim.cli.usage import Parser, UsageError, is_there, memory_size

if TYPE_CHECKING:
    from allocsim.estimate import LogFigures
    from allocsim.trace import Recording

__all__ = ["add_to", "run"]

_SUMMARY = "say why a request found no memory: an error's text, a log, a recording"
_DESCRIPTION = """\
Reads TEXT, an out-of-memory error of PyTorch in any wording since 1.0, or the
log FILE that holds some, and names the cause of each, the comparison of figures
that decided it, and what follows from it.  A FILE that is a recording of
torch.cuda.memory._record_memory_history() is replayed, and each of its errors
explained.  Of a start-up log of vLLM, SGLang or llama.cpp, or a table of
memory_summary(), the figures are shown.  No GPU is needed.  Without an
argument, or with -, standard input is read."""
_FILE_NAME = re.compile(
    r"\S*(?:/|\\)\S*|\S+\.(?:pickle|pkl|json|npz|gz|xz|zst|zip|log|txt|out|err)"
)


def add_to(commands: Commands[Parser]) -> None:
    parser = add_command(commands, "explain", _SUMMARY, _DESCRIPTION, run)
    text = "an error's text, a log, a recording"
    parser.add_argument("text", metavar="TEXT|FILE|-", nargs="?", default="-", help=text)
    add_shared(parser, "--conf", text="PYTORCH_CUDA_ALLOC_CONF, as it was set")
    add_shared(parser, "--torch", text="PyTorch's release (default: what the wording tells)")
    memory = "the card's memory, if the text lacks it, or another card's to compare with"
    add_shared(parser, "--device-memory", text=memory)
    of_recording = "of a recording, this device only (default: every one)"
    add_shared(parser, "--device", text=of_recording)
    request = (
        "of a snapshot that holds a state only: whether a request of this size would be answered"
    )
    parser.add_argument("--request", metavar="SIZE", type=memory_size, help=request)
    add_shared(parser, *HINTS)
    add_shared(parser, "--verbose", "--json")


def run(arguments: argparse.Namespace) -> int:
    if arguments.text == "-":
        text = _standard_input()
    elif is_there(arguments.text) and not Path(arguments.text).is_dir():
        from allocsim.trace import read_log  # noqa: PLC0415

        log = read_log(arguments.text)
        if log is None:
            _explain_file(arguments)
            return 0
        text = log
    else:
        text = _words(arguments.text)
    if hints_of(arguments) is not None:
        raise UsageError(f"{', '.join(HINTS)} are about a recorded program; give its recording")
    if arguments.request is not None:
        raise UsageError("--request asks a snapshot; an error's text has none")
    if arguments.device is not None:
        raise UsageError("--device chooses a device of a recording; an error's text has none")
    from allocsim.questions.explain import explain  # noqa: PLC0415
    from allocsim.report import (  # noqa: PLC0415
        log_document,
        log_screen,
        log_text,
        verdicts_document,
        verdicts_screen,
        verdicts_text,
    )

    verdicts = explain(
        text, arguments.conf, torch_version=arguments.torch, device_memory=arguments.device_memory
    )
    # An error has words; the verdict on a text without one has none.
    printed = None if verdicts[0].message.text else _figures_in(text)
    if printed is not None:
        write_answer(
            arguments,
            partial(log_document, printed),
            partial(log_text, printed),
            partial(log_screen, printed),
        )
        return 0
    write_answer(
        arguments,
        partial(verdicts_document, verdicts),
        partial(verdicts_text, verdicts),
        partial(verdicts_screen, verdicts),
    )
    return 0


def _figures_in(text: str) -> LogFigures | None:
    from allocsim.estimate import figures_in  # noqa: PLC0415

    return figures_in(text)


def _words(text: str) -> str:
    """The argument as an error's text, unless it is a misspelled file name."""
    if not text.strip():
        raise UsageError("the text is empty; give an error's text, a file, or - for standard input")
    if is_there(text):
        raise UsageError(f"{text} is a directory; expected a log or an error's text")
    if _FILE_NAME.fullmatch(text):
        raise UsageError(f"{text}: does not exist, expected a log or a recording's file")
    return text


def _standard_input() -> str:
    from allocsim.trace import LONGEST_LOG, decoded  # noqa: PLC0415

    return decoded(sys.stdin.buffer.read(LONGEST_LOG + 1), "standard input")


def _explain_file(arguments: argparse.Namespace) -> None:
    from allocsim.questions.picture import is_still, shown_device  # noqa: PLC0415
    from allocsim.trace import load  # noqa: PLC0415

    recording = load(arguments.text)
    device = shown_device(recording, arguments.device)
    if device is not None and is_still(recording, device):
        _explain_state(arguments, recording, device)
    elif arguments.request is not None:
        raise UsageError(
            f"{arguments.text} holds a history, which --request is not for; without it the errors "
            "of the history are explained"
        )
    else:
        _explain_recording(arguments, recording)


def _explain_recording(arguments: argparse.Namespace, recording: Recording) -> None:
    from allocsim.engine import prepare  # noqa: PLC0415
    from allocsim.questions.explain import explain_prepared  # noqa: PLC0415
    from allocsim.report import (  # noqa: PLC0415
        explanation_document,
        explanation_screen,
        explanation_text,
    )

    with ProgressBar() as bar:
        prepared = prepare(recording, arguments.device, arguments.torch, hints=hints_of(arguments))
        run, devices = explain_prepared(
            prepared,
            arguments.conf,
            device_memory=arguments.device_memory,
            progress=bar.stage("replaying"),
            watch=bar.trying,
        )
        top = None if arguments.json else owners_of(prepared, run)
    write_answer(
        arguments,
        partial(explanation_document, run, devices),
        partial(explanation_text, run, devices, top),
        partial(explanation_screen, run, devices, top),
    )


def _explain_state(arguments: argparse.Namespace, recording: Recording, device: int) -> None:
    from allocsim.questions.explain import explain_state  # noqa: PLC0415
    from allocsim.questions.top import top  # noqa: PLC0415
    from allocsim.report import state_document, state_screen, state_text  # noqa: PLC0415

    if hints_of(arguments) is not None:
        raise UsageError(f"{', '.join(HINTS)} are about a history, and the snapshot has none")
    answer = explain_state(
        recording,
        recording.device(device),
        arguments.request,
        arguments.conf,
        device_memory=arguments.device_memory,
        torch_version=arguments.torch,
    )
    owners = None if arguments.json else top(recording, device=device)
    write_answer(
        arguments,
        partial(state_document, answer),
        partial(state_text, answer, owners),
        partial(state_screen, answer, owners),
    )
