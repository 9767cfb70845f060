"""Replace kernels that a serving engine compiles when they are first called.

Rule: this file runs in the program's interpreter, loaded by the hook from its path, so it imports
only the standard library and is compatible with Python 3.9.

Such kernels are compiled with nvcc, which is often missing, takes minutes, and would be compiled
for a GPU that is not there.  Their callers in Python allocate all outputs and workspaces, so a
kernel that does nothing leaves the same allocations.  A hollow module has every function that is
requested, and each function returns None.  The exception is `plan`, whose result is a list of
numbers that the caller keeps: it is invented as zeros.
"""

from __future__ import annotations

import functools
from typing import Any

PLANNED = 32
"""Number of zeros that an invented plan has; the longest plan of FlashInfer 0.7 has fewer."""

_hollow: dict[str, set[str]] = {}
_invented: set[str] = set()


def hollow_modules() -> str:
    """Return the names of the modules that were made hollow and called, as text; "" if none."""
    return ", ".join(sorted(name for name, called in _hollow.items() if called))


def invented_values() -> str:
    """Return the values that were invented, as text; "" if none."""
    return ", ".join(sorted(_invented))


class Hollow:
    """Module of kernels whose functions do nothing.

    name: name of the module in the answer, such as "flashinfer sampling".
    """

    def __init__(self, name: str) -> None:
        self._name = name
        _hollow.setdefault(name, set())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def does_nothing(*_: Any, **__: Any) -> Any:
            _hollow[self._name].add(name)
            if name != "plan":
                return None
            _invented.add(f"plan of {self._name}")
            return [0] * PLANNED

        return does_nothing


def _hollow_flashinfer(module: Any) -> None:
    """Replace the modules that FlashInfer would compile; keep those that are installed."""
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


def _know_samples(module: Any) -> None:
    """Give vLLM's second model runner the number of tokens that each request sampled.

    It reads the numbers back from the device, where they are unknown, so no request would ever end.
    Without speculative decoding they follow from numbers on the host: one token once the prompt is
    complete, else none.
    """
    runner, output = module.GPUModelRunner, module.AsyncOutput
    sample, init = runner.sample, output.__init__

    @functools.wraps(sample)
    def sampled(self: Any, hidden_states: Any, input_batch: Any, *more: Any, **named: Any) -> Any:
        out = sample(self, hidden_states, input_batch, *more, **named)
        reached = input_batch.num_computed_prefill_tokens_np + input_batch.num_scheduled_tokens
        out[1].allocsim_known = reached >= input_batch.prefill_len_np
        return out

    @functools.wraps(init)
    def made(self: Any, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        known = getattr(named.get("num_sampled_tokens"), "allocsim_known", None)
        if known is not None:
            self.num_sampled_tokens_np[:] = known
            _invented.add("number of sampled tokens")

    runner.sample, output.__init__ = sampled, made


PATCHES = {
    "flashinfer.jit.core": _hollow_flashinfer,
    "sglang.kernels.jit.utils.compile.loader": _hollow_sglang,
    "vllm.v1.worker.gpu.model_runner": _know_samples,
}
"""Function that patches each module once it is loaded."""
