"""Replay of a task's allocator requests, which formulas (its law) give without PyTorch.

A law holds for the program whose recordings it was derived from, and for the sizes at which the
same kernels run (its regime).  A task without a law is refused with a sentence that says why.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from allocsim.core import FREE, MALLOC, ReplayAllocator
from allocsim.errors import ConfigError
from allocsim.fitting.laws import (
    CLASSIFIERS,
    EMPTY_CACHE,
    FIRST,
    SERVE,
    Card,
    Laws,
    ProgramName,
    Requests,
    Serving,
    Training,
    family_of,
    find_laws,
    known_laws,
    regime_of,
    steps_of,
    variables_of,
)
from allocsim.fitting.model import Classifier, Configured, Model
from allocsim.fitting.run_result import Ran, beside_context, ran_of
from allocsim.fitting.task import USUAL_PIXELS, Task
from allocsim.phantom import Gpu
from allocsim.recording import Provenance, Recording
from allocsim.units import TIB
from allocsim.workload import EMPTY_CACHE as PLAYED_EMPTY_CACHE
from allocsim.workload import KnownProgram, Played, peak_of_known, play_known, write_recording

OLDEST_CAPABILITY = (8, 0)
"""Minimum compute capability of a card for laws, which were recorded with FlashAttention."""

_BASE_ADDRESS = 0x7000_0000_0000


def run_by_law(
    task: Task,
    gpu: Gpu,
    *,
    conf: str | None = None,
    keep: Path | None = None,
    requests: Requests | None = None,
) -> Ran:
    """Compute the requests of a task by formulas (its law), without PyTorch, and replay them.

    conf: value of PYTORCH_CUDA_ALLOC_CONF.
    keep: file to which a recording of the replay is written.
    requests: the task's requests, if they were computed before.

    Raises ConfigError if the task has no law.
    """
    began = time.perf_counter()
    laws = _laws(task)
    requests = requests or requests_by_law(task, gpu, laws)
    played = play_requests(requests, gpu, laws.torch_version, conf or "")
    recording = _recording(played, requests, gpu, laws, task.text)
    if keep is not None:
        write_recording(recording, keep)
    seconds = time.perf_counter() - began
    return ran_of(
        recording,
        gpu,
        laws.torch_version,
        seconds,
        is_out_of_memory=bool(played.oom_text),
        engine="laws",
        transformers=laws.transformers,
        played=None if conf or played.oom_text or played.allocator.calls.retries else played,
    )


def why_no_law(task: Task, gpu: Gpu) -> str:
    return RunsByLaw(task).why_none(gpu)


class RunsByLaw:
    """Replays of one task's requests, computed by formulas (its law), on many cards.

    Cards on which the requests are equal share one replay.
    """

    def __init__(self, task: Task, conf: str | None = None) -> None:
        self._task, self._conf = task, conf
        self._requests: dict[Card, Requests | ConfigError] = {}
        self._different: list[Requests] = []
        self._runs: dict[tuple[int, int], Ran] = {}

    def why_none(self, gpu: Gpu) -> str:
        """Return a sentence on why no law gives the task's requests on `gpu`; "" if a law does."""
        try:
            self._requests_on(gpu)
        except ConfigError as error:
            return str(error)
        return ""

    def run(self, gpu: Gpu, *, keep: Path | None = None) -> Ran:
        requests = self._requests_on(gpu)
        if gpu.memory < TIB or keep is not None:
            return run_by_law(self._task, gpu, conf=self._conf, keep=keep, requests=requests)
        key = (id(requests), gpu.context_memory)
        ran = self._runs.get((id(requests), 0)) or self._runs.get(key)
        if ran is None:
            ran = run_by_law(self._task, gpu, conf=self._conf, requests=requests)
            # With default settings and no limit, the CUDA context makes no difference.
            self._runs[(id(requests), 0) if ran.prepared.is_made else key] = ran
        return replace(beside_context(ran, gpu.context_memory), gpu=gpu)

    def _requests_on(self, gpu: Gpu) -> Requests:
        laws = _laws(self._task)  # a missing law is the first reason to name
        refuse_card_without_law(gpu)
        card = card_of(gpu)
        if card not in self._requests:
            try:
                found = requests_by_law(self._task, gpu, laws)
            except ConfigError as error:
                self._requests[card] = error
            else:
                equal = (each for each in self._different if each.has_calls_of(found))
                self._requests[card] = known = next(equal, found)
                if known is found:
                    self._different.append(found)
        answer = self._requests[card]
        if isinstance(answer, ConfigError):
            raise answer
        return answer


def card_of(gpu: Gpu) -> Card:
    return Card(gpu.capability, gpu.multiprocessors, gpu.limits.threads)


def mask_unit(task: Task) -> int:
    """Return the multiple to which each row of the attention mask is padded, in elements.

    Return 0 if the task passes no mask to attention.
    """
    if task.attention == "eager":
        return 1
    window = _sizes_of(task.model).get("window", 0)
    if not ((task.checkpointing and not task.model.sees) or 0 < window <= task.seq):
        return 0
    return 8


def laws_name(task: Task) -> ProgramName:
    """Return the name under which the laws (formulas for the requests) of a task are stored.

    Raises ConfigError if no law can exist for the task.
    """
    config = config_of(task.model)
    family = family_of(config)
    head = task.model.head if isinstance(task.model, Configured) else ""
    if family is None or not head.endswith(family.head):
        raise ConfigError(f"there is no law for {task.model.name}: its architecture has none")
    for what in _without_law(task):
        raise ConfigError(f"there is no law for {what}")
    if family.is_eager and task.attention != "eager":
        raise ConfigError(f"transformers runs {task.model.name} with attention 'eager' alone")
    options = [task.attention] * (task.attention != "sdpa")
    if not task.is_training:
        # Requests of fp16 and bf16 are the same, and both were recorded.
        dtype = "16-bit" if is_fused(task) else task.dtype
        return ProgramName(family.name_of(config), dtype, SERVE, tuple(options))
    options = ["checkpointing"] * task.checkpointing + options
    if task.lora:
        options.append("-".join(filter(None, ("lora", family.adapted(task.lora_targets)))))
    return ProgramName(family.name_of(config), task.dtype, task.optimizer, tuple(options))


def config_of(model: Model) -> Mapping[str, Any]:
    """Return the configuration of a model; empty for kinds of models that have no laws."""
    if isinstance(model, Configured):
        return model.config
    return CLASSIFIERS.get(model.function, {}) if isinstance(model, Classifier) else {}


def _sizes_of(model: Model) -> dict[str, int]:
    config = config_of(model)
    family = family_of(config)
    assert family is not None
    return family.sizes_of(config)


def _without_law(task: Task) -> Iterator[str]:
    usual = {each.name: each.default for each in fields(Task)}
    for name in (
        "accumulate",
        "compiles",
        "parallel",
        "lengths",
        "quant",
        "checkpoint_layers",
        "reference",
    ):
        if getattr(task, name) != usual[name]:
            yield f"{name} {getattr(task, name)!r}"
    if task.attention == "flash" or (task.attention == "eager" and task.model.sees):
        yield f"attention {task.attention!r}"
    if task.channels_last or (task.model.sees and task.image != USUAL_PIXELS):
        yield f"channels last, or images of {task.image} pixels"


def nearest_law(name: str) -> str | None:
    """Return the most similar name to `name` of a program that has laws (formulas for requests).

    A training program is compared only with training programs, and serving with serving. Return
    None if there is no program to compare with.
    """
    alike = [each for each in known_laws() if _serves(each) == _serves(name)]
    family = f"{name.partition('_')[0]}_"
    candidates = [each for each in alike if each.startswith(family)] or alike
    return next(iter(get_close_matches(name, candidates, n=1, cutoff=0)), None)


def _serves(name: str) -> bool:
    return "serve" in name.split("_")


def _laws(task: Task) -> Laws:
    name = laws_name(task)
    laws = find_laws(name)
    if laws is None:
        near = nearest_law(name.text)
        nearest = f"; the nearest is for {near}" if near else ""
        raise ConfigError(f"there is no law for {name.text}{nearest}")
    return laws


def is_fused(task: Task) -> bool:
    """Return whether the task's attention uses FlashAttention whenever no mask is passed."""
    return task.attention == "sdpa" and task.dtype != "fp32"


def serving_of(task: Task, gpu: Gpu) -> Serving:
    return Serving(
        sizes=_sizes(task),
        card=card_of(gpu),
        is_fused=is_fused(task),
        decode=task.decode,
        requests=task.requests,
        positions=positions_of(task.model),
        is_eager=task.attention == "eager",
    )


def positions_of(model: Model) -> str:
    """Return the kind of scaling of a model's rotary positions, such as "llama3" or "default"."""
    config = config_of(model)
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def _sizes(task: Task) -> dict[str, int]:
    sizes = _sizes_of(task.model)
    length = task.seq if task.is_training else task.prompt
    if task.model.sees:
        length = (task.image // sizes["patch"]) ** 2 + 1
    logit_bytes = 4 if task.dtype == "fp32" else 2
    work = {"batch": task.batch, "length": length, "lora": task.lora}
    return sizes | work | {"logit_bytes": logit_bytes}


def refuse_card_without_law(gpu: Gpu) -> None:
    if gpu.capability < OLDEST_CAPABILITY:
        raise ConfigError(f"{gpu.name}: laws are for cards of compute capability 8.0 or later")


def _refuse_without_law(task: Task, laws: Laws, names: Iterable[str]) -> None:
    for name in names:
        if name not in laws:
            tokens = task.seq if task.is_training else task.prompt
            length = "" if task.model.sees else f" x {tokens:,} tokens"
            regime = name.removeprefix(f"{FIRST}.")
            raise ConfigError(
                f"there is no law for {laws.name.text} at batch {task.batch}{length}: "
                f"its kernels' way there ({regime}) was not recorded"
            )


def requests_by_law(task: Task, gpu: Gpu, laws: Laws | None = None) -> Requests:
    """Compute the requests and frees of a task on a card by its law; ConfigError without a law."""
    laws = laws or _laws(task)
    refuse_card_without_law(gpu)
    sizes, card = _sizes(task), card_of(gpu)
    if task.is_training:
        training = Training(sizes, card, regime_of(sizes, card, mask_unit(task)), task.steps)
        _refuse_without_law(task, laws, [f"{FIRST}.{training.regime}"])
        assert laws.parameters is not None
        values = variables_of(sizes, card)
        optimizer = steps_of(task.optimizer, laws.parameters, values, card, laws.groups)
        requests = training.program(laws, optimizer, sizes["layers"])
    else:
        requests = _serving_by_law(task, gpu, laws).program(laws, sizes["layers"])
    return requests if task.start == "clean" else requests.without_reset()


def _serving_by_law(task: Task, gpu: Gpu, laws: Laws) -> Serving:
    serving = serving_of(task, gpu)
    _refuse_without_law(task, laws, [name for name, _ in serving.names])
    return serving


def play_requests(requests: Requests, gpu: Gpu, torch_version: str, conf: str = "") -> Played:
    return play_known(_program(requests), _allocator(gpu, torch_version, conf, keeps_history=True))


def _program(requests: Requests) -> KnownProgram:
    # Indexed by the laws' REQUEST, FREE and EMPTY_CACHE.
    kinds = np.array([MALLOC, FREE, PLAYED_EMPTY_CACHE], dtype=np.uint8)
    return KnownProgram(
        kind=kinds[requests.kind],
        block=requests.block,
        size=requests.size,
        stack=requests.stack,
        stretches=requests.stretches,
    )


def _allocator(
    gpu: Gpu, torch_version: str, conf: str, *, keeps_history: bool = False
) -> ReplayAllocator:
    return ReplayAllocator(
        gpu.memory,
        conf,
        ".".join(torch_version.split(".")[:2]),
        context_memory=gpu.context_memory,
        base_address=_BASE_ADDRESS,
        record_history=keeps_history,
    )


def peak_by_law(
    task: Task, gpu: Gpu, *, needs_peak: bool = True, known: Ran | None = None
) -> tuple[int, bool]:
    """Compute a task's peak of reserved memory by its law (formulas for its requests).

    Return the bytes, and True if the task runs out of memory.

    needs_peak: False to skip the replay if the blocks in use at one time exceed the memory of
        `gpu`; their bytes are then returned instead of the peak.
    known: earlier run of the task on a card with unlimited memory. Its peak is returned if that
        card is otherwise like `gpu` and the run fits `gpu`.
    """
    if known is not None and card_of(known.gpu) == card_of(gpu):
        used = known.device_run.peak_device_bytes - known.prepared.context_memory
        if used <= gpu.room:
            return known.peak_reserved_bytes, False
    laws = _laws(task)
    if not (needs_peak or task.is_training):
        refuse_card_without_law(gpu)
        # The weights, the prompts and one token are often enough to fill the card.
        short = replace(_serving_by_law(task, gpu, laws), decode=1, requests=1)
        in_use = short.program(laws, short.sizes["layers"]).most_in_use
        if in_use > gpu.room:
            return in_use, True
    requests = requests_by_law(task, gpu, laws)
    in_use = requests.most_in_use
    if in_use > gpu.room and not needs_peak:
        return in_use, True
    if not task.is_training:  # `run_by_law` copies the results of repeated tokens
        ran = run_by_law(task, gpu, requests=requests)
        return ran.peak_reserved_bytes, ran.is_out_of_memory
    allocator = _allocator(gpu, laws.torch_version, "")
    return peak_of_known(_program(requests), allocator, max(requests.reset, 0))


def _recording(played: Played, requests: Requests, gpu: Gpu, laws: Laws, text: str) -> Recording:
    provenance = Provenance(
        torch_version=laws.torch_version,
        device_name=gpu.name,
        device_memory=gpu.memory,
        context_memory=gpu.context_memory,
        is_phantom=True,
        command=f"allocsim fit: {text}",
        oom_text=played.oom_text,
    )
    empty_cache_rows = np.flatnonzero(requests.kind == EMPTY_CACHE).tolist()
    marks = played.marks(requests.reset, empty_cache_rows)
    return played.recording(f"fit {text}", laws.stacks, provenance, marks)
