"""Replace kernels that a serving engine compiles at run time by functions that do nothing.

The hook (hook/sitecustomize.py) loads this file by its path into the interpreter of the recorded
program, so it imports only the standard library and is compatible with Python 3.9.

Compiling such kernels needs nvcc, which is often missing.  The Python code that calls them
allocates outputs and workspaces, so requests stay the same if the kernel does nothing.  Only memory
that a kernel allocates itself is missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
from pathlib import Path
from typing import Any

PLANNED = 32
"""Number of zeros in the list that replaces the result of FlashInfer's plan().

This number is enough, because plan() of FlashInfer 0.7 returns a shorter list."""

_USED: tuple[tuple[re.Pattern[str], Any], ...] = (
    (re.compile(r"^plan$"), lambda: [0] * PLANNED),
    (re.compile(r"tactics"), list),
    (re.compile(r"_(num|count|size|occupancy)$|workspace_size"), 0),
    (re.compile(r"supports"), False),
)
"""Results of replaced functions whose result the program uses.

Each pair has a pattern for the name of the function, and its result or a function that returns it.
Functions of "tactics" list the variants of a kernel."""

_hollow: dict[str, set[str]] = {}
_invented: set[str] = set()
_tried: dict[str, int] = {}


def hollow_modules() -> str:
    """Return the names of the replaced modules that the program has called, as text; "" if none."""
    return ", ".join(sorted(name for name, called in _hollow.items() if called))


def invented_values() -> str:
    """Return the names of values that replaced functions returned to the program, as text."""
    return ", ".join(sorted(_invented))


def tried_variants() -> dict[str, int]:
    """Return the most local memory that any tried variant of a Triton kernel needs.

    Triton tries variants of a kernel to find the fastest.  The dictionary has bytes per thread: key
    "tried" is for variants tried in this process, and "kept" for those of an earlier process.
    """
    return _tried


class Hollow:
    """Replacement of a module of compiled kernels; its functions only record calls."""

    def __init__(self, name: str) -> None:
        self._name = name
        _hollow.setdefault(name, set())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def does_nothing(*_: Any, **__: Any) -> Any:
            _hollow[self._name].add(name)
            if name == "init":
                return Hollow(self._name)
            for pattern, result in _USED:
                if pattern.search(name):
                    _invented.add(f"{name} of {self._name}")
                    return result() if callable(result) else result
            return None

        return does_nothing


def _hollow_flashinfer(module: Any) -> None:
    build = module.JitSpec.build_and_load

    @functools.wraps(build)
    def build_and_load(self: Any, *args: Any, **named: Any) -> Any:
        if getattr(self, "is_aot", False):
            return build(self, *args, **named)
        return Hollow(f"flashinfer {self.name}")

    module.JitSpec.build_and_load = build_and_load


def _hollow_sglang(module: Any) -> None:
    def load_jit(*args: Any, **_: Any) -> Hollow:
        return Hollow("sglang " + "_".join(map(str, args)))

    module.load_jit = load_jit


_ASSEMBLED = range(2_500, 10_000)
"""Numbers of PTX lines of the Triton kernels that are assembled to find their local memory.

A shorter kernel needs less than the 1 KiB of local memory per thread that the CUDA context already
has.  A longer kernel, such as vLLM's top-k with 32,000 lines, takes a minute to assemble."""


def _hollow_triton(module: Any) -> None:
    # The stubs need only the local memory of a kernel, so most kernels are not assembled.
    assemble = module.CUDABackend.make_cubin

    @functools.wraps(assemble)
    def make_cubin(self: Any, source: str, *args: Any, **named: Any) -> Any:
        if source.count("\n") in _ASSEMBLED:
            return assemble(self, source, *args, **named)
        return bytes(64)

    module.CUDABackend.make_cubin = make_cubin


def _try(begin: int) -> int:
    ask = ctypes.CDLL(None).device_try
    ask.restype = ctypes.c_size_t
    return int(ask(begin))


class _Choices:
    """Triton's cache of tuning results, which stores the fastest variant of each kernel.

    For each result NAME, this class adds a file NAME.stack: the most local memory that any tried
    variant needs, in bytes per thread.
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def get_file(self, name: str) -> Any:
        path, stack = map(self._cache.get_file, (name, f"{name}.stack"))
        if path and stack:
            _tried["kept"] = max(_tried.get("kept", 0), int(Path(stack).read_text()))
        elif not path:
            _try(1)
        return path

    def put(self, data: Any, name: str, **named: Any) -> Any:
        stack = _try(0)
        _tried["tried"] = max(_tried.get("tried", 0), stack)
        self._cache.put(str(stack), f"{name}.stack", binary=False)
        return self._cache.put(data, name, **named)


def _watch_tuning(module: Any) -> None:
    cache_of = module.get_cache_manager
    module.get_cache_manager = lambda key: _Choices(cache_of(key))


def _completes_prompt(runner: Any, batch: Any) -> Any:
    if hasattr(batch, "prefill_len_np"):
        computed, lengths = batch.num_computed_prefill_tokens_np, batch.prefill_len_np
    else:  # up to vLLM 0.22
        states, at = runner.req_states, batch.idx_mapping_np
        computed, lengths = states.num_computed_prefill_tokens[at], states.prefill_len.np[at]
    return computed + batch.num_scheduled_tokens >= lengths


def _know_samples(module: Any) -> None:
    """Patch vLLM's model runner (`module`) to know how many tokens each sequence has sampled.

    vLLM reads these numbers from the device.  A phantom (simulated) GPU computes no values, so
    without the patch vLLM would never see that a prompt is processed.
    """
    runner, output = module.GPUModelRunner, module.AsyncOutput
    sample, init = runner.sample, output.__init__

    @functools.wraps(sample)
    def sampled(self: Any, hidden_states: Any, input_batch: Any, *more: Any, **named: Any) -> Any:
        out = sample(self, hidden_states, input_batch, *more, **named)
        with contextlib.suppress(AttributeError):  # another vLLM release: prompts do not end
            out[1].allocsim_known = _completes_prompt(self, input_batch)
        return out

    @functools.wraps(init)
    def made(self: Any, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        known = getattr(named.get("num_sampled_tokens"), "allocsim_known", None)
        if known is not None:
            self.num_sampled_tokens_np[:] = known
            _invented.add("number of sampled tokens")

    runner.sample, output.__init__ = sampled, made


def _find_stubs(module: Any) -> None:
    # A Python package of CUDA may have loaded the real runtime library in addition to the stub.
    stubs = os.environ.get("LD_PRELOAD", "").split()
    module.find_loaded_library = lambda name: next((each for each in stubs if name in each), None)


_SCALES = ("q_scale", "k_scale", "v_scale", "prob_scale")


def _leave_scales_out(module: Any) -> None:
    method = module.BaseKVCacheMethod
    process = method.process_weights_after_loading

    @functools.wraps(process)
    def processed(self: Any, layer: Any) -> None:
        for name in _SCALES:
            if hasattr(layer, name):
                scale = module.torch.tensor(-1.0, device="cpu")
                setattr(layer, name, module.torch.nn.Parameter(scale, requires_grad=False))
                _invented.add("scales of the KV cache")
        process(self, layer)

    method.process_weights_after_loading = processed


PATCHES = {
    "flashinfer.jit.core": _hollow_flashinfer,
    "triton.backends.nvidia.compiler": _hollow_triton,
    "triton.runtime.autotuner": _watch_tuning,
    "sglang.kernels.jit.utils.compile.loader": _hollow_sglang,
    "vllm.distributed.device_communicators.cuda_wrapper": _find_stubs,
    "vllm.v1.worker.gpu.model_runner": _know_samples,
    "vllm.model_executor.layers.quantization.kv_cache": _leave_scales_out,
}
"""Functions that patch a module when it is imported, keyed by the name of the module."""
