"""Notes in answers of `fit`: assumptions and limits of a run, or of computed requests.

A run is on a phantom (simulated) GPU.  A law, a set of formulas, gives computed requests.  A note
is a sentence, given only if it applies.
"""

from __future__ import annotations

from collections.abc import Iterator

from allocsim.core import find_release
from allocsim.fitting.fit_result import Drift, drift_of_run
from allocsim.fitting.laws import TRANSFORMERS, installed_transformers, numbers_of
from allocsim.fitting.model import Classifier, Configured, UserModel
from allocsim.fitting.published import unused_words_of
from allocsim.fitting.run_result import Ran
from allocsim.fitting.task import EAGER_NOTE, Task, notes_of_quant, usual_attention
from allocsim.phantom import Gpu, context_range
from allocsim.recording import Provenance
from allocsim.replaying import workspace_note
from allocsim.units import format_size

CUDNN_ATTENTION = (9, 10)
"""Major compute capabilities on which PyTorch prefers cuDNN's attention: Hopper, Blackwell."""

CUDNN_NOTE = (
    "attention: on this card PyTorch prefers cuDNN's kernels, but laws describe flash attention; "
    "the peaks differed by at most 0.01 % in the 13 tasks that were compared"
)
"""Note on results from laws (formulas), for 16-bit attention on cards of `CUDNN_ATTENTION`."""
MASK_NOTE = (
    "attention: with checkpointing transformers reads the positions, which are zero here, and "
    "builds a mask that it would omit on a GPU, where another kernel may run"
)

BY_LAW = "by law: "
"""First words of the note that a result comes from a law (formulas for the requests)."""
EXPERTS_NOTE = (
    "experts: which ones tokens choose is unknown here; with real choices the sizes of temporaries "
    "differ"
)

CONVOLUTIONS_NOTE = (
    "convolutions: cuDNN's workspaces depend on the algorithm that it finds fastest on the card, "
    "and are not known without one"
)
"""Note on results from laws (formulas), which omit the workspaces of convolutions."""
PLANNED_NOTE = (
    "convolutions: cuDNN's workspaces are those that it plans for the card, and laws measured on "
    "an H200 where a plan needs a device; 556 of 612 requests there were exact"
)
"""Note on results from a run on a phantom GPU, for models with convolutions."""


def notes_of(
    task: Task | None,
    gpu: Gpu,
    engine: str = "program",
    *,
    is_computed: bool = False,
    is_routed: bool = False,
) -> Iterator[str]:
    """Yield the notes that follow from the task and the card alone, not from the run.

    engine: method of the answer: "program" for a run on PyTorch, "laws" for computed requests.
    is_computed: True if the run computed the values of small integer and boolean tensors.
    is_routed: True if there was a second run, where all tokens choose the same experts.
    """
    yield from gpu.notes
    if task is None:
        return
    model = task.model
    yield from unused_words_of(task)
    yield from notes_of_quant(task)
    if task.attention == usual_attention(model) == "eager":
        yield EAGER_NOTE
    if isinstance(model, Classifier) or model.sees:
        yield CONVOLUTIONS_NOTE if engine == "laws" else PLANNED_NOTE
    if engine == "laws" and _lacks_cudnn(task, gpu):
        yield CUDNN_NOTE
    if not is_computed and task.checkpointing and task.attention == "sdpa" and not model.sees:
        yield MASK_NOTE
    if not is_routed and isinstance(model, Configured) and model.size("experts"):
        yield EXPERTS_NOTE


def _lacks_cudnn(task: Task, gpu: Gpu) -> bool:
    is_asked = task.attention == "sdpa" and task.dtype != "fp32" and not task.model.sees
    return is_asked and gpu.capability[0] in CUDNN_ATTENTION


def notes_of_run(task: Task | None, provenance: Provenance | None) -> Iterator[str]:
    """Yield notes on tensor values that the program read back, and on guessed workspaces.

    Values that the phantom GPU does not compute are read as zero.

    provenance: origin of the run's recording, which lists these values and workspaces; None if
        unknown.
    """
    if provenance is None:
        return
    if provenance.reads_back and (task is None or isinstance(task.model, UserModel)):
        yield (
            f"the program reads values back at {provenance.reads_back}; they are zero here, and "
            "sizes that depend on them are not those of a real run"
        )
    if provenance.guessed:
        yield f"workspaces of {provenance.guessed} depend on the card and are guessed"


def notes_of_law(
    ran: Ran, transformers: str | None = None, drift: Drift | None = None
) -> Iterator[str]:
    """Yield notes on the releases of PyTorch and transformers that a law (formulas) describes.

    ran: result of a task; there are no notes if it does not come from a law.
    transformers: the user's release; default: the installed release.
    drift: possible change of the peak with the user's release; None to give no range.
    """
    if ran.engine != "laws":
        return
    yield (
        f"{BY_LAW}the requests follow formulas recorded with PyTorch {ran.torch_version} and "
        f"transformers {ran.transformers} at other sizes over a phantom A100; --engine program "
        "runs the program itself"
    )
    meant = installed_transformers() if transformers is None else transformers
    if meant is not None and (numbers := numbers_of(meant)) != numbers_of(str(ran.transformers)):
        older = "older" if numbers < numbers_of(TRANSFORMERS) else "newer"
        yield (
            f"transformers {meant} is {older} than {ran.transformers}, the version of the laws, "
            + ("and may request other sizes" if drift is None else f"so the range is {drift.text}")
        )


def release_note(requested: str | None, installed: str) -> Iterator[str]:
    """Yield notes if the requested release of PyTorch is not the installed release."""
    if requested is None:
        return
    wanted, ran = find_release(requested), ".".join(installed.split(".")[:2])
    if wanted.version == ran:
        return
    yield f"PyTorch {requested} is not installed: this is {installed}"
    if (differs := workspace_note(ran, wanted)) is not None:
        yield differs


def notes_of_speed(ran: Ran, keeping_up: Ran | None) -> Iterator[str]:
    """Yield a note if the speed of the card affects the peak, or whether the task fits.

    ran: run on a card that finishes its work as late as possible.
    keeping_up: run on a card that finishes its work at once; None if there is none.
    """
    if keeping_up is None or keeping_up.peak_reserved_bytes == ran.peak_reserved_bytes:
        return
    then = f"{format_size(keeping_up.peak_reserved_bytes)} are reserved"
    if ran.is_out_of_memory or keeping_up.is_out_of_memory:
        then = "it does not fit either" if keeping_up.is_out_of_memory else "it fits"
    yield (
        "freed blocks wait for other streams as long as possible here; on a card that keeps up "
        f"with the program {then}"
    )


def notes_of_routing(ran: Ran, skewed: Ran | None) -> Iterator[str]:
    """Yield a note that compares reserved memory for an even and a skewed choice of experts.

    ran: run where tokens are spread evenly over experts.
    skewed: run where all tokens choose the same experts; None if there is none.
    """
    if skewed is None:
        return
    if ran.is_out_of_memory or skewed.is_out_of_memory:
        end = "does not fit" if skewed.is_out_of_memory else "fits"
        yield (
            "experts: tokens are spread evenly over the experts; if all choose the same ones, the "
            f"program {end}"
        )
        return
    low, high = sorted((ran.peak_reserved_bytes, skewed.peak_reserved_bytes))
    how = "either way" if low == high else f"to {format_size(high)}"
    yield (
        f"experts: {format_size(low)} {how} are reserved, from tokens spread evenly over the "
        "experts to all tokens choosing the same ones"
    )


def notes_of_search(
    ran: Ran, task: Task, gpu: Gpu, torch_version: str | None, transformers: str | None
) -> Iterator[str]:
    yield from filter(None, (gpu.chosen,))
    yield from unused_words_of(task)
    yield from release_note(torch_version, ran.torch_version)
    yield from notes_of_law(ran, transformers)
    drift = drift_of_run(ran, task, torch_version, transformers)
    if drift is not None and drift.is_known:
        yield f"the peak may differ from the law by {drift.text}, which --find does not count"
    _, high = context_range(gpu)
    if not ran.is_out_of_memory and ran.peak_reserved_bytes + high > gpu.memory:
        yield (
            f"close: it fits beside a context of {format_size(gpu.context_memory)}; a context of "
            f"{format_size(high)} would leave less than the peak"
        )
