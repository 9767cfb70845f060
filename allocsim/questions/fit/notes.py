"""What an answer rests on that a run over a phantom cannot know.

Rule: a sentence for each, only where it applies; a figure that is not known is a range or a name,
never a guess inside another figure.
"""

from __future__ import annotations

from collections.abc import Iterator

from allocsim.core import find_release
from allocsim.engine import workspace_note
from allocsim.laws import TRANSFORMERS, installed_transformers, numbers_of
from allocsim.phantom import Gpu
from allocsim.questions.fit.model import Classifier, Configured, UserModel
from allocsim.questions.fit.ran import Ran
from allocsim.questions.fit.task import Task
from allocsim.trace import Provenance

__all__ = [
    "CONVOLUTIONS_NOTE", "CUDNN_ATTENTION", "CUDNN_NOTE", "EXPERTS_NOTE", "MASK_NOTE",
    "PLANNED_NOTE", "notes_of", "notes_of_law", "notes_of_run", "release_note",
]  # fmt: skip

CUDNN_ATTENTION = (9, 10)
"""The major compute capabilities on which PyTorch prefers cuDNN's attention: Hopper, Blackwell."""

CUDNN_NOTE = (
    "attention: on this card PyTorch prefers cuDNN's kernels, which the laws do not have; they "
    "are of flash attention, whose peak was within 0.01 % in the 13 tasks that were compared"
)
"""Of a law on cards of that capability, in 16 bits."""
MASK_NOTE = (
    "attention: with checkpointing transformers reads positions, zero here, and makes a mask that "
    "it would do without on a GPU, where another kernel may run"
)

EXPERTS_NOTE = (
    "experts: which ones tokens choose is unknown here; with real choices the sizes of temporaries "
    "differ"
)

CONVOLUTIONS_NOTE = (
    "convolutions: cuDNN's workspaces depend on the algorithm that it finds fastest on the card, "
    "and are not known without one"
)
"""Of a law, which has none of them."""
PLANNED_NOTE = (
    "convolutions: cuDNN's workspaces are those that it plans for the card, and laws measured on "
    "an H200 where a plan needs a device; 556 of 612 requests there were exact"
)
"""Of a program."""


def notes_of(
    task: Task | None,
    gpu: Gpu,
    engine: str = "program",
    *,
    is_computed: bool = False,
    is_routed: bool = False,
) -> Iterator[str]:
    """Yield the uncertainties of a task on a card.

    engine: "program" or "laws".
    is_computed: small integers and booleans had their real values.
    is_routed: the range over the choice of experts is known.
    """
    if task is None:
        return
    model = task.model
    if isinstance(model, Classifier) or model.sees:
        yield CONVOLUTIONS_NOTE if engine == "laws" else PLANNED_NOTE
    if engine == "laws" and _lacks_cudnn(task, gpu):
        yield CUDNN_NOTE
    if not is_computed and task.checkpointing and task.attention == "sdpa" and not model.sees:
        yield MASK_NOTE
    if not is_routed and isinstance(model, Configured) and model.size("experts"):
        yield EXPERTS_NOTE


def _lacks_cudnn(task: Task, gpu: Gpu) -> bool:
    """Whether PyTorch would run cuDNN's attention where a law has another's."""
    is_asked = task.attention == "sdpa" and task.dtype != "fp32" and not task.model.sees
    return is_asked and gpu.capability[0] in CUDNN_ATTENTION


def notes_of_run(task: Task | None, made: Provenance | None) -> Iterator[str]:
    """What a run told of itself: values that the user's code read back, libraries guessed."""
    if made is None:
        return
    if made.reads_back and (task is None or isinstance(task.model, UserModel)):
        yield (
            f"the program reads values back at {made.reads_back}; they are zero here, and sizes "
            "that depend on them are not those of a real run"
        )
    if made.guessed:
        yield f"workspaces of {made.guessed} depend on the card and are guessed"


def notes_of_law(ran: Ran, transformers: str | None = None) -> Iterator[str]:
    """That the requests are a law's, where they are.

    transformers: the version that was asked for.
    """
    if ran.engine != "laws":
        return
    yield (
        f"by law: the requests are those that PyTorch {ran.torch_version} and transformers "
        f"{ran.transformers} made of this program at other sizes, over a phantom A100; --engine "
        "program runs the program itself"
    )
    meant = installed_transformers() if transformers is None else transformers
    if meant is not None and (numbers := numbers_of(meant)) != numbers_of(str(ran.transformers)):
        older = "older" if numbers < numbers_of(TRANSFORMERS[0]) else "newer"
        yield (
            f"transformers {meant} is {older} than the laws, which are of {ran.transformers}, and "
            "may ask otherwise"
        )


def release_note(asked: str | None, installed: str) -> Iterator[str]:
    """What differs between the release that was asked for and the one that ran.

    Raises ConfigError for a release that is not modelled.
    """
    if asked is None:
        return
    wanted, ran = find_release(asked), ".".join(installed.split(".")[:2])
    if wanted.version == ran:
        return
    yield f"PyTorch {asked} is not installed: this is {installed}"
    if (differs := workspace_note(ran, wanted)) is not None:
        yield differs
