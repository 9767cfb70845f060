"""What an answer rests on that a run over a phantom cannot know.

Rule: a sentence for each, only where it applies; a figure that is not known is a range or a name,
never a guess inside another figure.
"""

from __future__ import annotations

from collections.abc import Iterator

from allocsim.phantom import Gpu
from allocsim.questions.fit.model import Classifier, Configured
from allocsim.questions.fit.task import Task

__all__ = ["notes_of", "release_note", "release_of"]

_CUDNN_ATTENTION = (9, 0)
"""The least capability at which PyTorch takes cuDNN's attention of its own accord."""
_NO_KEPT_WORKSPACE = (2, 15)
"""The first release whose cuBLAS workspaces come and go with each operation."""


def notes_of(task: Task | None, gpu: Gpu) -> Iterator[str]:
    """What is open for a task on a card."""
    if task is None:
        return
    model = task.model
    if isinstance(model, Classifier) or model.sees:
        yield (
            "convolutions: cuDNN's workspaces hang on the algorithm that it finds fastest on the "
            "card, and are not known without one"
        )
    if gpu.capability >= _CUDNN_ATTENTION and task.dtype != "fp32" and not model.sees:
        yield (
            "attention: on this card PyTorch takes cuDNN's kernels in part of the cases; counted "
            "are those of flash attention, which keep as much"
        )
    if isinstance(model, Configured) and model.size("experts"):
        yield (
            "experts: every value is zero here, so that all tokens choose the same experts; with "
            "real ones the sizes of temporaries differ"
        )


def release_of(version: str) -> tuple[int, int]:
    """(2, 15) of "2.15.0"."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def release_note(asked: str | None, installed: str) -> Iterator[str]:
    """What differs between the release that was asked for and the one that ran."""
    if asked is None or release_of(asked) == release_of(installed):
        return
    note = f"PyTorch {asked} is not installed: this is {installed}"
    if (release_of(asked) < _NO_KEPT_WORKSPACE) != (release_of(installed) < _NO_KEPT_WORKSPACE):
        note += (
            "; up to 2.14 cuBLAS keeps a workspace for each handle and stream (8.125 MiB, 32 MiB "
            "from capability 9.0 on), from 2.15 on they come and go with each operation"
        )
    yield note
