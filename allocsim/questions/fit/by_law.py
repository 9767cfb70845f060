"""A task's run by its law: no PyTorch, the requests that it made at other sizes.

Rule: a law is used for the program and in the regime that it was taken from; for anything else the
sentence says what there is none for.  What PyTorch reserves for the requests is the model's answer,
as in a replay.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from allocsim.errors import ConfigError
from allocsim.laws import (
    EMPTY_CACHE,
    REQUEST,
    Card,
    Law,
    Laws,
    Requests,
    family_of,
    find_laws,
    known_laws,
    regime_of,
    variables_of,
)
from allocsim.phantom import Gpu
from allocsim.questions.fit.model import Configured
from allocsim.questions.fit.ran import Ran, ran_of
from allocsim.questions.fit.task import Task
from allocsim.trace import Mark, MarkKind, Provenance, Recording
from allocsim.workload import Recorder, write_recording

__all__ = ["card_of", "has_law", "laws_name", "mask_unit", "run_by_law"]

_OLDEST_CAPABILITY = (8, 0)
"""Of cards with FlashAttention, over which the laws were taken."""

_BASE_ADDRESS = 0x7000_0000_0000


def run_by_law(task: Task, gpu: Gpu, *, conf: str | None = None, keep: Path | None = None) -> Ran:
    """What `run_program` would give for the program of `task`, by its law.

    conf: PYTORCH_CUDA_ALLOC_CONF.  keep: where the recording goes.
    Raises ConfigError where there is no law.
    """
    began = time.perf_counter()
    laws = _laws(task)
    requests = _requests(task, gpu, laws)
    recording, is_out_of_memory = _recording(requests, gpu, laws, conf or "", task.text)
    if keep is not None:
        write_recording(recording, keep)
    seconds = time.perf_counter() - began
    return ran_of(
        recording,
        gpu,
        laws.torch_version,
        seconds,
        is_out_of_memory=is_out_of_memory,
        engine="laws",
    )


def has_law(task: Task, gpu: Gpu) -> bool:
    """Whether there is a law for a task on a card."""
    try:
        _law(task, gpu, _laws(task))
    except ConfigError:
        return False
    return True


def card_of(gpu: Gpu) -> Card:
    """What of a card decides sizes."""
    return Card(gpu.capability, gpu.multiprocessors, gpu.limits.threads)


def mask_unit(task: Task) -> int:
    """Numbers of attention's mask that make 16 bytes; 0 for a program that makes none.

    With checkpointing transformers makes one, over a phantom (`notes.py`).
    """
    if not task.checkpointing:
        return 0
    return 4 if task.dtype == "fp32" else 8


def laws_name(task: Task) -> str:
    """The name of the laws of a task's program.

    Raises ConfigError for a model or an option that there are none for.
    """
    model = task.model
    family = family_of(model.config) if isinstance(model, Configured) else None
    if not isinstance(model, Configured) or family is None:
        raise ConfigError(f"there is no law for {model.name}: its architecture has none")
    for what in _without_law(task):
        raise ConfigError(f"there is no law for {what}")
    parts = [family.model_type, "tied" if family.is_tied_in(model.config) else "untied"]
    parts += [task.dtype, task.optimizer]
    parts += ["checkpointing"] * task.checkpointing + ["lora"] * bool(task.lora)
    return "_".join(parts)


def _without_law(task: Task) -> Iterator[str]:
    """The options of a task that no law was taken with."""
    usual = Task(model=task.model)
    if not task.is_training:
        yield "serving"
    for name in ("accumulate", "attention", "compiles", "steps", "parallel", "lengths"):
        if getattr(task, name) != getattr(usual, name):
            yield f"{name} {getattr(task, name)!r}"
    if task.lora_targets:
        yield "adapters of named modules"


def _nearest(name: str) -> str:
    near = get_close_matches(name, known_laws(), n=1, cutoff=0)
    return f"; the nearest is for {near[0]}" if near else ""


def _laws(task: Task) -> Laws:
    name = laws_name(task)
    laws = find_laws(name)
    if laws is None:
        raise ConfigError(f"there is no law for {name}{_nearest(name)}")
    return laws


def _law(task: Task, gpu: Gpu, laws: Laws) -> tuple[Law, dict[str, int]]:
    """The law of the regime that a task is in, and its sizes."""
    if gpu.capability < _OLDEST_CAPABILITY:
        raise ConfigError(f"{gpu.name}: laws are for cards of compute capability 8.0 or later")
    assert isinstance(task.model, Configured)
    family = family_of(task.model.config)
    assert family is not None
    sizes = family.sizes_of(task.model.config)
    sizes |= {"batch": task.batch, "length": task.seq, "lora": task.lora}
    regime = regime_of(sizes, card_of(gpu), mask_unit(task))
    law = laws.by_regime.get(regime)
    if law is None:
        raise ConfigError(
            f"there is no law for {laws.name} at batch {task.batch} x {task.seq:,} tokens: "
            f"its kernels' way there ({regime}) was not recorded"
        )
    return law, sizes


def _requests(task: Task, gpu: Gpu, laws: Laws) -> Requests:
    law, sizes = _law(task, gpu, laws)
    requests = law.requests(variables_of(sizes, card_of(gpu)), sizes["layers"])
    return requests if task.start == "clean" else requests.with_the_making()


def _recording(
    requests: Requests, gpu: Gpu, laws: Laws, conf: str, text: str
) -> tuple[Recording, bool]:
    """The requests asked of the model; whether one was out of memory."""
    recorder = Recorder(
        gpu.memory,
        conf,
        ".".join(laws.torch_version.split(".")[:2]),
        context_memory=gpu.context_memory,
        base_address=_BASE_ADDRESS,
    )
    marks: list[Mark] = []
    address: dict[int, int] = {}
    columns = (requests.kind, requests.block, requests.size, requests.stack)
    rows = enumerate(zip(*(column.tolist() for column in columns), strict=True))
    with recorder.program():
        for row, (kind, block, size, stack) in rows:
            if row == requests.reset:
                marks.append(Mark(recorder.n_entries, MarkKind.PEAK_RESET))
            if kind == REQUEST:
                address[block] = recorder.malloc(size, stack)
            elif kind == EMPTY_CACHE:
                marks.append(Mark(recorder.n_entries, MarkKind.EMPTY_CACHE))
                recorder.empty_cache()
            else:
                recorder.free(address.pop(block), stack)
    provenance = Provenance(
        torch_version=laws.torch_version,
        device_name=gpu.name,
        device_memory=gpu.memory,
        context_memory=gpu.context_memory,
        is_phantom=True,
        command=f"allocsim fit: {text}",
        oom_text=recorder.oom_text,
    )
    made = recorder.recording_as(f"fit {text}", laws.stacks, provenance)
    (trace,) = made.devices
    return replace(made, devices=(replace(trace, marks=tuple(marks)),)), bool(recorder.oom_text)
