"""`allocsim fit --html`: write a page that answers `fit` questions offline, by laws."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from allocsim.cli.output import ProgressBar, write, writing
from allocsim.cli.usage import UsageError

if TYPE_CHECKING:
    from allocsim.fitting import Task
    from allocsim.phantom import Gpu

_MODEL, _CARD = "Llama-3.2-1B", "RTX 4090"
"""Model and card that the page shows first if none is given."""


def prepare_html(arguments: argparse.Namespace) -> None:
    """Add the default model and card to `arguments` if the user gave none; the page opens at them.

    Raises UsageError for several models or cards, or a file that cannot be written.
    """
    if len(arguments.words) > 1:
        raise UsageError("--html is for a MODEL; there is no law for a program of your own")
    if len(arguments.gpus or ()) > 1 or "all" in (arguments.gpus or ()):
        raise UsageError(
            "the page has every card; expected at most one --gpu, the card that it opens at"
        )
    out = arguments.html
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(
            f"{out} cannot be a page; expected the name of a file in an existing folder"
        )
    arguments.words = arguments.words or [_MODEL]
    if not arguments.gpus and arguments.device_memory is None:
        arguments.gpus = [_CARD]


def run_html(out: Path, task: Task, gpu: Gpu) -> int:
    """Write the page to `out`; it first shows `task` on `gpu`. Returns the exit code."""
    from allocsim.fitting import law_cards, law_families, law_models, opening_at, page_laws  # noqa: PLC0415
    from allocsim.report.calculator import calculator_page, packed_laws  # noqa: PLC0415

    opening = opening_at(task, gpu)
    packed = []
    with ProgressBar() as bar:
        watch = bar.stage("packing laws")
        families = law_families()
        for number, family in enumerate(families):
            if watch:
                watch(number, len(families))
            packed.append(packed_laws(page_laws(family)))
    page = calculator_page(packed, law_models(), law_cards(), opening).encode()
    with writing(out):
        out.write_bytes(page)
    n_laws = sum(each.n_laws for each in packed)
    n_programs = sum(len(each.programs) for each in packed)
    size = f"{len(page) / 1e6:.1f} MB"
    write(f"{out}: {size}, {n_laws} laws of {n_programs} programs; opens without a network\n")
    return 0
