"""Changes of a task (a model and its work), such as a smaller batch, with which it fits a GPU.

Each change is tried by the method that answered for the unchanged task: a run of the program, its
law (formulas for its requests) or an estimate by formula.  A change is proposed only if the changed
task also completes with the largest CUDA context expected on the GPU.  The changes that alter the
training least come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from allocsim.collector import collector_paused
from allocsim.errors import ConfigError, UnavailableError
from allocsim.fitting.by_engine import run_exactly
from allocsim.fitting.by_formula import Estimate, estimate, least_served
from allocsim.fitting.by_law import peak_by_law
from allocsim.fitting.fit_result import Fit
from allocsim.fitting.model import Configured
from allocsim.fitting.run_result import Ran
from allocsim.fitting.task import Task, usual_attention
from allocsim.phantom import CARDS, Gpu, context_range

_HOPELESS = 0.9
"""Part of the lower end of its estimate by formula that every observed training needed.

A change is not tried if this part of its estimate's lower end already exceeds the GPU's memory."""
_LORA = 16
_UNIT = 64
"""Distance between the sequence lengths (in tokens) and image sides (in pixels) to try."""
_TRIALS = {"program": 3, "laws": 7, "formula": 12}
"""Maximum number of trials in a search for a size, such as the batch, for each method to try it."""
_MOST = 5
"""Maximum number of changes that are proposed."""
_CARDS_TRIED = 3
_HALF = {"fp32": "bf16", "autocast-bf16": "bf16", "autocast-fp16": "fp16"}
_FULL = {"bf16": "autocast-bf16", "fp16": "autocast-fp16"}
_IN_8_BITS = ", optimizer state in 8 bits"
_STATES = {"sgd": "", **dict.fromkeys(("adam8bit", "adamw8bit", "paged-adamw8bit"), _IN_8_BITS)}


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Change of a task or its card, tried to see whether the task then fits.

    options: command-line options that make the change, such as "--checkpointing".
    effect: consequence for the training run, in words.
    task, gpu: changed task, and the card on which it was tried.
    spare_bytes: bytes of the card that are free at the peak with the largest expected CUDA context.
    engine: method of the trial: "program" (a run), "laws" (computed requests) or "formula".
    """

    options: str
    effect: str
    task: Task
    gpu: Gpu
    peak_reserved_bytes: int
    spare_bytes: int
    engine: str
    fits: bool


@dataclass(frozen=True, slots=True, eq=False)
class Advice:
    """Changes with which a task fits its card.

    stored: tensors that the task keeps in GPU memory, and their precision, as text.
    alternative: result for the task in another common precision; None if it has the same verdict.
    changes: changes with which the task fits; empty if it surely fits already, or if none helps.
    """

    stored: str
    alternative: Change | None
    changes: tuple[Change, ...]


@collector_paused()
def advise(found: Fit | Estimate, **how: Any) -> Advice:
    """Find changes of the task or the card with which the task fits.

    found: result of `fit` or `estimate` for the unchanged task; ConfigError for a user's program.
    how: the arguments `conf`, `python`, `torch_version` and `transformers` of `fit`.
    """
    task = found.task
    if task is None:
        raise ConfigError("the user's own program has no options to change")
    trials = _Trials(found, task, how)
    changes = () if found.fits else tuple(_changes(found, trials))
    return Advice(stored_in(task), _alternative(found, task, trials), changes[:_MOST])


def stored_in(task: Task) -> str:
    """Return text on the tensors that a task keeps in GPU memory, such as "weights in fp32"."""
    kind = task.dtype.removeprefix("autocast-")
    whole = "fp32" if task.autocast_dtype else kind
    if task.generates:
        place = ", one network at a time" * task.offload
        return f"weights in {task.quant or kind}{place}"
    if not task.is_training:
        return f"weights and cache in {kind}"
    if task.lora:
        return f"frozen weights in {task.quant or whole}, adapters in fp32"
    state = _STATES.get(task.optimizer)
    what = "weights, gradients and optimizer state" if state is None else "weights and gradients"
    return f"{what} in {whole}{state or ''}" + f", computed in {kind}" * (whole != kind)


def fewest_checkpointed(
    task: Task,
    gpus: Sequence[Gpu],
    watch: Callable[[str], object] = lambda _: None,
    *,
    engine: str = "auto",
    **how: Any,
) -> tuple[Task, str]:
    """Find the smallest number of layers that must be checkpointed so that `task` fits a card.

    Return the task with these layers checkpointed, and a sentence with their number. If no number
    suffices, all layers are checkpointed, and the sentence says so.

    gpus: a sequence of one card.  Raises ConfigError for several.
    watch: function that receives a text before each trial, to show progress.
    engine: method of `fit`: "laws" uses formulas, and "program" runs the program on a phantom
        (simulated) GPU; "auto" means "program".
    how: further arguments of `fit`.
    """
    if len(gpus) > 1:
        raise ConfigError("the fewest layers to checkpoint are those of one card; expected one")
    (gpu,), engine = gpus, "program" if engine == "auto" else engine
    layers = task.model.size("layers") if isinstance(task.model, Configured) else None
    if layers is None:
        raise ConfigError(f"{task.model.name} has no known number of layers to checkpoint")
    tight = replace(gpu, context_memory=context_range(gpu)[1])
    low, high = -1, layers
    while low < high:
        n = high if low < 0 else (low + high) // 2
        watch(f"{n} of {layers} layers checkpointed")
        ran = run_exactly(engine, _checkpointing(task, n, layers), tight, **how)
        if not ran.is_out_of_memory:
            low, high = max(low, 0), n
        elif n == layers:
            return _checkpointing(task, n, layers), f"checkpointing all {layers} layers is too few"
        else:
            low = n + 1
    after = f"; with {high - 1} it runs out of memory" * (high > 0)
    fewest = f"checkpointing {high} of {layers} layers is the least that fits{after}"
    return _checkpointing(task, high, layers), fewest


def _checkpointing(task: Task, n: int, layers: int) -> Task:
    return replace(task, checkpointing=n > 0, checkpoint_layers=n % layers)


class _Trials:
    """Trials of whether changed tasks fit cards, by one method: "program", "laws" or "formula"."""

    def __init__(self, found: Fit | Estimate, task: Task, how: dict[str, Any]) -> None:
        self.engine = engine = found.engine
        self.task = task
        self.drift, self.known = None, None
        if isinstance(found, Fit):
            self.drift, self.known = found.drift, found.unlimited
        self.run: Callable[..., tuple[int, bool]]
        self.run = partial(_peak_of_run, partial(run_exactly, engine, **how))
        if engine == "formula":
            self.run = _peak_of_estimate
        elif engine == "laws" and how.get("conf") is None:
            self.run = self._peak_by_law

    def _peak_by_law(self, task: Task, gpu: Gpu, *, needs_peak: bool = True) -> tuple[int, bool]:
        known = self.known if task is self.task else None
        return peak_by_law(task, gpu, needs_peak=needs_peak, known=known)

    def change(
        self, task: Task, gpu: Gpu, effect: str, card: str = "", *, needs_peak: bool = False
    ) -> Change | None:
        # Without `needs_peak`, the peak of a change that does not fit may be a lower bound.
        tight = replace(gpu, context_memory=context_range(gpu)[1])
        options = _options(self.task, task) + f' --gpu "{card}"' * bool(card)
        run, engine = self.run, self.engine
        if engine == "laws" and task.parallel:
            run, engine = _peak_of_estimate, "formula"
        least = _least_of(task, gpu)
        if least * (_HOPELESS if task.is_training else 1) > gpu.memory:
            return Change(options.strip(), effect, task, gpu, least, 0, "formula", fits=False)
        try:
            peak, is_out_of_memory = run(task, tight, needs_peak=needs_peak)
        except (ConfigError, UnavailableError):
            if not least:
                return None
            # Not every change has a law, and not every optimizer is installed.
            (peak, is_out_of_memory), engine = _peak_of_estimate(task, tight), "formula"
        fits = not is_out_of_memory
        if fits and engine == "laws" and self.drift is not None and self.drift.is_known:
            fits = self.drift.of(peak)[1] <= tight.room
        return Change(options.strip(), effect, task, gpu, peak, tight.room - peak, engine, fits)

    def first(self, tasks: Iterable[Task | None], gpu: Gpu, effect: str) -> Change | None:
        for task in tasks:
            change = None if task is None else self.change(task, gpu, effect)
            if change is not None and change.fits:
                return change
        return None

    def largest(self, task: Task, name: str, unit: int, gpu: Gpu, effect: str) -> Change | None:
        # Only multiples of `unit` are tried.
        low, high, best = 0, -(-getattr(task, name) // unit), None
        n = high // 2
        for _ in range(_TRIALS[self.engine]):
            if not low < n < high:
                break
            change = self.change(task.at(name, n * unit), gpu, effect)
            if change is not None and change.fits:
                low, best = n, change
            else:
                high = n
            n = (low + high) // 2
        return best


def _least_of(task: Task, gpu: Gpu) -> int:
    # Lower bound of the memory by formula, in bytes; 0 without a formula.
    try:
        if not task.is_training:
            return least_served(task)
        return estimate(task, gpu).process_bytes[0]
    except ConfigError:
        return 0


def _peak_of_run(
    run: Callable[[Task, Gpu], Ran | Estimate], task: Task, gpu: Gpu, *, needs_peak: bool = True
) -> tuple[int, bool]:
    del needs_peak
    ran = run(task, gpu)
    return ran.peak_reserved_bytes, ran.is_out_of_memory


_peak_of_estimate = partial(_peak_of_run, estimate)


def _alternative(found: Fit | Estimate, task: Task, trials: _Trials) -> Change | None:
    if not task.is_training or task.lora:
        return None
    other = (_FULL if found.fits else _HALF).get(task.dtype)
    if other is None:
        return None
    changed = replace(task, dtype=other)
    try:
        if found.fits is not None and estimate(changed, found.gpu).fits is found.fits:
            return None
    except ConfigError:
        pass
    change = trials.change(changed, found.gpu, "", needs_peak=True)
    return change if change is not None and change.fits is not found.fits else None


def _changes(found: Fit | Estimate, trials: _Trials) -> Iterator[Change]:
    task, gpu = trials.task, found.gpu
    of_kind = _of_images if task.generates else _of_serving
    families = (_of_training if task.is_training else of_kind)(task, gpu, trials)
    yield from islice(filter(None, families), _MOST - 2)
    card = _next_card(found, trials)
    if card is not None:
        yield card
    can_share = task.is_training and task.ranks == 1 and not task.quant
    if can_share and isinstance(task.model, Configured):
        shared = replace(task, parallel="fsdp", ranks=2)
        two = trials.change(shared, gpu, "two cards, FSDP")
        if two is not None and two.fits:
            yield two


def _of_training(task: Task, gpu: Gpu, trials: _Trials) -> Iterator[Change | None]:
    # The least intrusive changes come first.
    plain = _with_kernels(task)
    fused = _fused(plain) or plain
    saved = _checkpointed(plain)
    both = _checkpointed(fused)
    least = both or fused
    if fused != task:
        yield trials.first(
            [_fused(task), plain if plain != task else None, fused], gpu, "same updates"
        )
    yield trials.first([_checkpointed(task), saved, both], gpu, "same updates, a third more work")
    small = [*_smaller(task), *_smaller(least)]
    yield trials.first(small, gpu, "same updates, in smaller batches")
    one = next(reversed(list(_smaller(least))), least)
    eight = [_in_8_bits(each) for each in (task, saved, one)]
    yield trials.first(eight, gpu, "optimizer state in 8 bits")
    half = _HALF.get(task.dtype)
    if half is not None and not task.lora:
        halves = [replace(each, dtype=half) for each in (task, saved or task, one)]
        yield trials.first(halves, gpu, f"all in {half}")
    if not task.quant and task.parallel != "fsdp" and isinstance(task.model, Configured):
        adapted = [_adapted(each) for each in (task, saved or task, one)]
        frozen = [replace(each, quant="nf4-double") for each in adapted]
        if not task.lora:
            yield trials.first([*adapted, *frozen], gpu, "trains adapters only")
        elif task.parallel != "fsdp":
            yield trials.first(frozen, gpu, "frozen weights in 4 bits")
    if not task.lengths and not task.model.sees:
        same, shorter = trials.largest, "shorter sequences"
        yield same(task, "seq", _UNIT, gpu, shorter) or same(least, "seq", _UNIT, gpu, shorter)


def _of_images(task: Task, gpu: Gpu, trials: _Trials) -> Iterator[Change | None]:
    # fp8 and NF4 leave the autoencoder as it is; offloading changes no image.
    offloaded = replace(task, offload=True)
    yield trials.first([offloaded], gpu, "same images, slower")
    for quant in () if task.quant else ("fp8", "nf4"):
        tasks = [replace(each, quant=quant) for each in (task, offloaded)]
        yield trials.first(tasks, gpu, f"denoiser and T5 in {quant}")
    yield trials.largest(task, "batch", 1, gpu, "fewer images at a time")
    yield trials.largest(task, "image", _UNIT, gpu, "smaller images")


def _of_serving(task: Task, gpu: Gpu, trials: _Trials) -> Iterator[Change | None]:
    plain = _with_kernels(task)
    if plain != task:
        yield trials.first([plain], gpu, "same answers")
    yield trials.largest(plain, "batch", 1, gpu, "fewer requests at a time")
    yield trials.largest(plain, "prompt", _UNIT, gpu, "shorter prompts")


def _next_card(found: Fit | Estimate, trials: _Trials) -> Change | None:
    task, needed = trials.task, found.needed_bytes or found.gpu.memory
    larger = [
        (name, card)
        for name, card in CARDS.items()
        if _maker(card) == _maker(found.gpu)
        and card.memory > max(found.gpu.memory, needed)
        and card.capability >= (8, 0)
    ]
    larger.sort(key=lambda each: each[1].memory)
    for name, card in larger[:_CARDS_TRIED]:
        change = trials.change(task, card, "another card", name)
        if change is not None and change.fits:
            return change
    return None


def _maker(gpu: Gpu) -> str:
    # The assumptions about a card begin with its maker, except for NVIDIA.
    return gpu.assumed.partition(":")[0]


def _with_kernels(task: Task) -> Task:
    is_eager = task.attention == "eager"
    return replace(task, attention=usual_attention(task.model)) if is_eager else task


def _fused(task: Task) -> Task | None:
    return replace(task, optimizer="adamw-fused") if task.optimizer == "adamw" else None


def _checkpointed(task: Task) -> Task | None:
    can = isinstance(task.model, Configured) and not task.checkpointing
    return replace(task, checkpointing=True) if can else None


def _adapted(task: Task) -> Task:
    reference = "adapter" if task.reference and not task.lora else task.reference
    return replace(task, lora=task.lora or _LORA, reference=reference)


def _in_8_bits(task: Task | None) -> Task | None:
    if task is None or task.lora or not task.optimizer.startswith("adamw"):
        return None
    return replace(task, optimizer="adamw8bit")


def _smaller(task: Task) -> Iterator[Task]:
    for parts in range(2, task.batch + 1):
        if task.batch % parts == 0:
            batch, accumulate = task.batch // parts, task.accumulate * parts
            yield replace(task, batch=batch, accumulate=accumulate)


_NAMES = {
    **{name: f"--{name}" for name in ("dtype", "optimizer", "batch", "accumulate", "lora", "seq")},
    **{
        name: f"--{name}"
        for name in ("prompt", "attention", "ranks", "quant", "image", "reference")
    },
}


def _options(old: Task, new: Task) -> str:
    changed = [f"--{new.parallel}"] * (old.parallel != new.parallel)
    changed += ["--offload"] * (old.offload != new.offload)
    changed += ["--checkpointing"] * (old.checkpointing != new.checkpointing)
    for name, option in _NAMES.items():
        if getattr(old, name) != getattr(new, name):
            changed.append(f"{option} {getattr(new, name)}")
    return " ".join(changed)
