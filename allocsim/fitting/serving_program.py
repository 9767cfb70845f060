"""Start of a serving engine, such as vLLM, on a phantom (simulated) GPU, to see if a model fits.

The engine is unmodified and computes its own sizes, such as that of its KV cache, which are read
from the lines that it prints.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from allocsim._repr import Shown
from allocsim.errors import ConfigError
from allocsim.fitting.model import Configured, model_of
from allocsim.fitting.presets import hub_name
from allocsim.fitting.published import published_quantization
from allocsim.fitting.run_result import find_install, record_in, why_it_failed
from allocsim.fitting.serving import held_of, serve
from allocsim.phantom import (
    THREAD_STACK,
    Gpu,
    Recorded,
    charges_of,
    described_model,
    starter_of,
)
from allocsim.recording import Refusal, figures_in

_DTYPES = ("dtype", "torch_dtype")
_STAGE = re.compile(r"^allocsim: after (.+): (\d+) bytes in use, (\d+) at the peak$", re.MULTILINE)
_SLEEPS = "--enable-sleep-mode"
_COUNTED = ("kernels", "nodes", "collective_graphs")


class Phase(Enum):
    """Phases of an engine's start; each value completes the sentence "it ended …"."""

    ARGUMENTS = "before it accepted its arguments"
    WEIGHTS = "while it loaded the weights"
    PROFILING = "while it measured the memory of activations"
    CACHE = "when it reserved the KV cache"
    GRAPHS = "while it captured CUDA graphs and warmed up"
    READY = "when it was ready"
    PLAYED = "while it answered requests or slept"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Started(Shown):
    """Result of starting a serving engine on a phantom (simulated) GPU.

    address: the model's name on the Hugging Face hub, or its file, for a command line to paste.
    engine: name and release of the engine, such as "vLLM 0.33.0".
    arguments: arguments of the engine's command, except for the model.
    cards: number of cards; sizes are of one card.
    phase: last phase that the engine entered.
    sizes: numbers that the engine printed, keyed by names such as "kv_cache_tokens".
    peak_bytes: largest use of one card's memory, with the CUDA context.
    failure: the error that ended the engine; "" if it was ready.
    refusals: reasons that the engine gave for not starting, with what helps.
    hollow: kernels that were replaced by functions that do nothing, comma-separated; "" for none.
    invented: values that were invented because no kernel computes them, comma-separated; "" for
        none.
    driver: counts on one card: loaded "kernels", "nodes" in CUDA graphs, and "collective_graphs"
        (CUDA graphs with NCCL collectives).
    driver_range: lowest and highest estimate of the bytes that the CUDA driver allocates itself:
        for the items in `driver`, plus `local_bytes`.
    charged: most likely value in `driver_range`, which the phantom GPU counted as used memory.
    local_bytes: bytes of local memory (spilled registers and stacks of threads) in the CUDA
        context: for each thread that the GPU can run at once, as much as any kernel needs.
    tuning_bytes: local memory, in bytes, that only a first start needs, since Triton then tries
        variants of kernels and stores its choice. Positive if this was a first start; negative if
        this was a later start, which does not take these bytes; 0 if Triton tried none.
    stages: dictionary from each stage ("start", "requests", "sleep at level 1") to the bytes in
        use on one card after the stage, and at its peak.
    searched: option whose largest value was searched for; `arguments` has that value. "" for none.
    """

    model: str
    address: str
    gpu: Gpu
    engine: str
    arguments: tuple[str, ...]
    cards: int
    phase: Phase
    sizes: Mapping[str, float]
    peak_bytes: int
    failure: str
    refusals: tuple[Refusal, ...]
    hollow: str
    invented: str
    torch_version: str
    seconds: float
    driver: Mapping[str, int] = field(default_factory=dict)
    driver_range: tuple[int, int] = (0, 0)
    charged: int = 0
    local_bytes: int = 0
    tuning_bytes: int = 0
    stages: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    searched: str = ""

    @property
    def fits(self) -> bool:
        """True if the engine was ready, and the requests and sleep after that did not fail."""
        return self.phase is Phase.READY

    def headline(self) -> str:
        where = self.gpu.name if self.cards == 1 else f"{self.cards} of {self.gpu.name}"
        if not self.fits:
            return f"{self.engine} does not start on {where}: it ended {self.phase.value}"
        tokens = self.sizes.get("kv_cache_tokens")
        room = f", with room for {tokens:,.0f} tokens" if tokens else ""
        return f"{self.engine} starts on {where}{room}"

    def parts(self) -> Iterator[tuple[str, float]]:
        """Yield (use, bytes) of one card's memory, such as "KV cache", from the engine's output."""
        sizes = self.sizes
        weights, consumed = sizes.get("weights_bytes"), sizes.get("consumed_bytes")
        if weights is not None:
            yield "weights", weights
        if weights is not None and consumed is not None:
            yield "other memory after loading", max(consumed - weights, 0)
        estimate = sizes.get("graphs_estimate_bytes")
        activation = sizes.get("activation_bytes")
        if activation is not None:
            # vLLM prints the estimate of the graphs as part of the activations.
            yield "activations at the peak of profiling", max(activation - (estimate or 0), 0)
        if estimate is not None:
            yield "CUDA graphs, estimated by the engine", estimate
        if "kv_cache_bytes" in sizes:
            yield "KV cache", sizes["kv_cache_bytes"]

    @property
    def room(self) -> tuple[int, int] | None:
        """Range (low, high) of the tokens that the KV cache holds on a real card; None if unknown.

        The engine's own number assumes that the driver takes `charged` bytes; the range follows
        from `driver_range`.
        """
        tokens, size = self.sizes.get("kv_cache_tokens"), self.sizes.get("kv_cache_bytes")
        if not tokens or not size:
            return None
        low, high = (
            (self.charged - taken) * tokens / size for taken in reversed(self.driver_range)
        )
        return round(tokens + low), round(tokens + high)

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        for name, size in self.parts():
            yield name, f"{size / (1 << 30):.2f} GiB"


def start(
    model: str,
    server: str,
    gpu: Gpu,
    *,
    arguments: Sequence[str] = (),
    python: str | None = None,
    cards: int = 1,
    requests: Sequence[int] = (),
    conf: str | None = None,
    keep: Path | None = None,
) -> Started:
    """Start the engine `server` with a model on a phantom (simulated) `gpu`, as its command would.

    model: a language model, as text that `model_of` accepts.
    server: "vllm" or "sglang".
    arguments: further arguments of the engine's command.
    python: interpreter that has the engine; default: this one, or the one on the PATH.
    cards: number of cards; each layer is split over them.
    requests: (number of requests, tokens of each prompt, tokens to generate), sent at once when
        the engine is ready; default: no requests.
    conf: value of PYTORCH_CUDA_ALLOC_CONF.
    keep: file to which the recording is written.  With several cards, each rank writes its own
        file, with its number in the name.

    Raises UnavailableError if the interpreter lacks the engine.
    """
    began = time.perf_counter()
    found = model_of(model)
    if not isinstance(found, Configured):
        raise ConfigError(f"{found.name} is not a language model with a configuration")
    starter = starter_of(server)
    if cards > 1:
        arguments = (*arguments, starter.split, str(cards))
    install = find_install(python)
    with TemporaryDirectory(prefix="allocsim-start-") as place:
        folder = Path(place)
        described = _described(found, model, install.python)
        played = ",".join(map(str, requests))
        command = (install.python, str(starter.script), str(described), played, *arguments)
        # With NVLink, or on two cards, engines replace NCCL by a kernel.
        has_nccl = cards > 2 and not gpu.has_nvlink
        low, likely, high = charges_of(gpu, install.cuda_major, has_nccl=has_nccl)
        how = {"conf": conf, "devices": cards, "sizes_only": True, "charges": likely}
        recorded, log = record_in(folder, command, gpu, keep, is_summary=keep is None, **how)
        if keep is not None:
            _keep(recorded, keep)
    printed = figures_in(log)
    sizes = {} if printed is None else _least(printed.figures)
    if "k_cache_bytes" in sizes:
        sizes.setdefault("kv_cache_bytes", sizes["k_cache_bytes"] + sizes["v_cache_bytes"])
    refusals = () if printed is None else printed.refusals
    phase = _phase(sizes, is_ready=starter.ready in log, is_taken=starter.configured in log)
    stages = {name: (int(used), int(peak)) for name, used, peak in _STAGE.findall(log)}
    failure = ""
    if phase is Phase.READY and recorded.exit_code and (requests or _SLEEPS in arguments):
        phase = Phase.PLAYED
    if phase is not Phase.READY:
        failure = why_it_failed(log, recorded.exit_code, phase.value, found)
        if "OutOfMemoryError" in failure and not refusals:
            refusals = (_out_of_memory(model, server, gpu, cards, phase),)
        if phase is Phase.ARGUMENTS and not refusals:
            raise ConfigError(failure)
    version = printed.version if printed is not None else ""
    sampled = "sampled tokens" if "requests" in stages else ""
    assert recorded.torch is not None
    stack, settled = (max(_most(recorded, name), THREAD_STACK) for name in ("stack", "settled"))
    local = gpu.threads * (stack - THREAD_STACK)
    counts = {name: _most(recorded, name) for name in (*_COUNTED, "graph_bytes")}
    if not has_nccl:
        counts["collective_graphs"] = 0
    tuning = stack - settled or min(stack - _most(recorded, "kept"), 0)
    return Started(
        model=found.name,
        address=model if "/" in model else hub_name(found.name),
        gpu=gpu,
        engine=f"{starter.name} {version}".strip(),
        arguments=tuple(arguments),
        cards=cards,
        phase=phase,
        sizes=sizes,
        peak_bytes=max((each.device_peak_bytes for each in recorded.processes), default=0),
        failure=failure,
        refusals=refusals,
        hollow=_joined(each.hollow for each in recorded.processes),
        invented=_joined((*(each.invented for each in recorded.processes), sampled)),
        torch_version=recorded.torch.version,
        seconds=time.perf_counter() - began,
        driver={name: counts[name] for name in _COUNTED},
        driver_range=(local + low.taken(counts), local + high.taken(counts)),
        charged=local + likely.taken(counts),
        local_bytes=local,
        tuning_bytes=gpu.threads * tuning,
        stages=stages,
    )


_SOUGHT = ("max-model-len", "max-num-seqs", "gpu-memory-utilization")
_MOST_STARTS = 4


def start_largest(option: str, model: str, server: str, gpu: Gpu, **how: Any) -> Started:
    """Start an engine with the largest value of `option` with which it becomes ready.

    The printed sizes or the refusal of each start give the value for the next start. If no value
    works, the first start, without `option`, is returned.

    option: "max-model-len", "max-num-seqs" or "gpu-memory-utilization". The largest max-num-seqs
        is the number of requests, each of maximum length, that fit in the KV cache at once.
    how: further arguments of `start`.
    """
    if option not in _SOUGHT:
        expected = ", ".join(_SOUGHT)
        raise ConfigError(f"--find {option}: not an option of vLLM; expected one of {expected}")
    if server != "vllm":
        raise ConfigError(f"--find {option} starts vllm only, not {server}")
    words, keep = _without(option, how.pop("arguments", ())), how.pop("keep", None)
    tried: dict[str | None, Started] = {}
    value: str | None = None
    with TemporaryDirectory(prefix=".allocsim-", dir=keep and keep.parent) as place:
        latest = keep and Path(place) / keep.name
        while value not in tried and len(tried) < _MOST_STARTS:
            given = words if value is None else (*words, f"--{option}", value)
            found = start(model, server, gpu, arguments=given, keep=latest, **how)
            tried[value] = found
            if found.fits or value is None:
                best = found
                for file in Path(place).iterdir():
                    file.replace(keep.with_name(file.name))
            value = _largest(found, option)
    seconds = sum(each.seconds for each in tried.values())
    return replace(best, searched=option, seconds=seconds)


def _without(option: str, words: Sequence[str]) -> tuple[str, ...]:
    kept = list(words)
    for at in reversed(range(len(kept))):
        name, is_joined, _ = kept[at].replace("_", "-").partition("=")
        if name == f"--{option}":
            del kept[at : at + (1 if is_joined else 2)]
    return tuple(kept)


def _largest(found: Started, option: str) -> str | None:
    if not found.fits:
        helps = "; ".join(each.helps for each in found.refusals)
        named = re.search(rf"--{option} (\d+(?:\.\d+)?)", helps)
        return named[1] if named else None
    sizes = found.sizes
    if option == "max-model-len":
        return None  # without the option, the engine takes the longest length of the model
    if option == "max-num-seqs":
        return str(max(int(sizes.get("concurrency", 1)), 1))
    spare = found.gpu.memory - found.peak_bytes - (found.driver_range[1] - found.charged)
    share = sizes.get("fraction", 0.9) + spare / found.gpu.memory
    return f"{min(math.floor(share * 100) / 100, 0.99):.2f}"


def _config(model: Configured, text: str) -> dict[str, Any]:
    config = dict(model.config)
    if not any(config.get(name) for name in _DTYPES):
        config["torch_dtype"] = "bfloat16"
    if model.path is None and "quantization_config" not in config:
        config |= published_quantization(text)
    return config


_BESIDE = ("*processor_config.json", "tokenizer*", "merges.txt", "vocab.json")
"""Files beside config.json that an engine needs in its profiling run with images."""


def _described(model: Configured, text: str, python: str) -> Path:
    files = {"config.json": json.dumps(_config(model, text)).encode()}
    if model.path is not None:
        for pattern in _BESIDE:
            for file in Path(model.path).parent.glob(pattern):
                files[file.name] = file.read_bytes()
    return described_model(model.name.replace("/", "-") or "model", files, python)


def _keep(recorded: Recorded, keep: Path) -> None:
    for process in recorded.processes:
        name = process.file.name.removeprefix("fit").removesuffix(".pickle")
        shutil.copyfile(process.file, keep.with_name(keep.stem + name + keep.suffix))


def _most(recorded: Recorded, name: str) -> int:
    return max((each.driver.get(name, 0) for each in recorded.processes), default=0)


def _out_of_memory(model: str, server: str, gpu: Gpu, cards: int, phase: Phase) -> Refusal:
    share = starter_of(server).fraction
    smaller = f"a smaller --{share}"
    if server == "vllm":
        smaller += f"; --find {share} finds it"
    helps = {
        Phase.PROFILING: "a smaller --max-num-batched-tokens or --max-num-seqs",
        **dict.fromkeys((Phase.GRAPHS, Phase.PLAYED), smaller),
    }.get(phase, "weights of fewer bits")
    if phase is Phase.WEIGHTS:
        held = held_of(model, server)
        for more in (2, 4, 8, 16):
            if more > cards and serve(held, server, gpu, cards=more).fits:
                helps = f"--tensor-parallel {more}, or {helps}"
                break
    return Refusal(f"the card was full {phase.value}", helps, 0)


def _least(figures: Sequence[Any]) -> dict[str, float]:
    # If several ranks printed a number, use the smallest for the KV cache, else the largest.
    sizes: dict[str, float] = {}
    for each in figures:
        before = sizes.get(each.name)
        choose = min if each.name.startswith("kv_cache") else max
        sizes[each.name] = each.value if before is None else choose(before, each.value)
    return sizes


def _phase(sizes: Mapping[str, float], *, is_ready: bool, is_taken: bool) -> Phase:
    if is_ready:
        return Phase.READY
    if "kv_cache_tokens" in sizes:
        return Phase.GRAPHS
    if "kv_cache_bytes" in sizes:
        return Phase.CACHE
    if "weights_bytes" in sizes:
        return Phase.PROFILING
    return Phase.WEIGHTS if is_taken else Phase.ARGUMENTS


def _joined(texts: Iterable[str]) -> str:
    names = {name for text in texts for name in text.split(", ") if name}
    return ", ".join(sorted(names))
