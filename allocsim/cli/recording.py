"""`allocsim explain` of a recording; which argument is one, explain.py decides.

Rule: the whole answer is made before its first character is printed.
"""

from __future__ import annotations

import argparse

from allocsim.cli.output import write
from allocsim.cli.progress import ProgressBar

__all__ = ["explain_file"]


def explain_file(arguments: argparse.Namespace) -> int:
    """Explain the recording in the file that `arguments.text` names; returns the exit code."""
    from allocsim.report import explanation_document, explanation_text  # noqa: PLC0415
    from allocsim.trace import load  # noqa: PLC0415
    from allocsim.tuning import explain_recording  # noqa: PLC0415

    with ProgressBar() as bar:
        run, devices = explain_recording(
            load(arguments.text),
            arguments.conf,
            device_memory=arguments.device_memory,
            torch_version=arguments.torch,
            progress=bar.stage("replaying"),
            watch=lambda conf: bar.stage(f"trying {conf[:32] or 'the defaults'}"),
        )
    if arguments.json:
        import json  # noqa: PLC0415

        text = json.dumps(explanation_document(run, devices), indent=2) + "\n"
    else:
        text = explanation_text(run, devices)
    write(text)
    return 0
