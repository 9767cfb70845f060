"""Kernels that an engine compiles at run time, replaced by functions that do nothing."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from allocsim.phantom import Stubs, hollow


@pytest.fixture(autouse=True)
def empty_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hollow, "_hollow", {})
    monkeypatch.setattr(hollow, "_invented", set())
    monkeypatch.setattr(hollow, "_tried", {})


class JitSpec:
    """The part of FlashInfer's class that loads a module of kernels."""

    def __init__(self, name: str, *, is_aot: bool) -> None:
        self.name, self.is_aot = name, is_aot

    def build_and_load(self) -> Any:
        return f"compiled {self.name}"


def patched_flashinfer() -> type[JitSpec]:
    module: Any = ModuleType("flashinfer.jit.core")
    module.JitSpec = type("JitSpec", (JitSpec,), {})
    hollow.PATCHES["flashinfer.jit.core"](module)
    return module.JitSpec  # type: ignore[no-any-return]


def test_hollow_kernel_does_nothing_and_is_named_when_called() -> None:
    spec = patched_flashinfer()
    sampling = spec("sampling", is_aot=False).build_and_load()
    spec("never_called", is_aot=False).build_and_load()
    assert hollow.hollow_modules() == ""
    assert sampling.top_k_top_p(1, scale=2) is None
    assert hollow.hollow_modules() == "flashinfer sampling"
    assert hollow.invented_values() == ""


def test_plan_of_zeros_is_named_as_invented() -> None:
    decode = patched_flashinfer()("batch_decode", is_aot=False).build_and_load()
    assert set(decode.plan()) == {0}
    assert hollow.invented_values() == "plan of flashinfer batch_decode"


def test_installed_kernels_are_loaded() -> None:
    spec = patched_flashinfer()("sampling", is_aot=True)
    assert spec.build_and_load() == "compiled sampling"


def test_vllm_request_samples_one_token_after_its_prompt() -> None:
    """The second request is in the middle of its prompt."""
    import numpy as np  # noqa: PLC0415

    class Runner:
        def sample(self, _states: Any, _batch: Any) -> tuple[Any, Any]:
            return "tokens", SimpleNamespace()

    class Output:
        def __init__(self, num_sampled_tokens: Any) -> None:
            del num_sampled_tokens
            self.num_sampled_tokens_np = np.zeros(2, dtype=int)

    module: Any = ModuleType("vllm.v1.worker.gpu.model_runner")
    module.GPUModelRunner, module.AsyncOutput = Runner, Output
    hollow.PATCHES["vllm.v1.worker.gpu.model_runner"](module)
    batch = SimpleNamespace(
        num_computed_prefill_tokens_np=np.array([90, 50]),
        num_scheduled_tokens=np.array([10, 10]),
        prefill_len_np=np.array([100, 100]),
    )
    _, count = Runner().sample("states", batch)
    assert Output(num_sampled_tokens=count).num_sampled_tokens_np.tolist() == [1, 0]
    assert hollow.invented_values() == "number of sampled tokens"


def test_init_of_a_hollow_module_returns_a_hollow_object() -> None:
    """A runner of experts is created once, lists its tactics, and is run."""
    module = patched_flashinfer()("fused_moe", is_aot=False).build_and_load()
    runner = module.init("bfloat16")
    assert list(range(runner.get_tactic_num())) == []
    assert runner.run_moe(1, 2) is None
    assert hollow.invented_values() == "get_tactic_num of flashinfer fused_moe"


def test_scales_of_the_cache_are_those_of_a_checkpoint_without_scales() -> None:
    """Otherwise vLLM would refuse the scales, whose values it reads from the device."""
    seen = []

    class Method:
        def process_weights_after_loading(self, layer: Any) -> None:
            seen.append(vars(layer))

    torch = SimpleNamespace(
        tensor=lambda value, **_: value,
        nn=SimpleNamespace(Parameter=lambda value, **_: value),
    )
    module = SimpleNamespace(BaseKVCacheMethod=Method, torch=torch)
    hollow.PATCHES["vllm.model_executor.layers.quantization.kv_cache"](module)
    module.BaseKVCacheMethod().process_weights_after_loading(SimpleNamespace(k_scale=0, bias=1))
    assert seen == [{"k_scale": -1, "bias": 1}]
    assert hollow.invented_values() == "scales of the KV cache"


def test_vllm_calls_the_stub_of_the_runtime_library(
    libraries: Stubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real library may be loaded as well. These are the functions that vLLM looks up in it."""
    monkeypatch.setenv("LD_PRELOAD", libraries.preload)
    module: Any = ModuleType("vllm.distributed.device_communicators.cuda_wrapper")
    hollow.PATCHES[module.__name__](module)
    path = module.find_loaded_library("libcudart")
    assert path == str(libraries.cudart)
    assert module.find_loaded_library("libmissing") is None
    library = ctypes.CDLL(path)
    for name in ("Malloc", "Free", "Memset", "Memcpy", "HostRegister", "HostUnregister"):
        assert hasattr(library, f"cuda{name}")
    for name in ("SetDevice", "DeviceSynchronize", "DeviceReset", "GetErrorString", "GetLastError"):
        assert hasattr(library, f"cuda{name}")


class Cache:
    """Triton's cache of one tuned kernel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get_file(self, name: str) -> str | None:
        path = self.folder / name
        return str(path) if path.exists() else None

    def put(self, data: str, name: str, *, binary: bool) -> str:
        assert not binary
        (self.folder / name).write_text(data)
        return name


def test_later_start_knows_the_stack_of_variants_that_a_first_start_tried(
    libraries: Stubs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest stack is that of a variant, not that of the kernel loaded before or after."""
    device = ctypes.CDLL(str(libraries.device))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: device)
    module = SimpleNamespace(get_cache_manager=Cache)
    hollow.PATCHES["triton.runtime.autotuner"](module)

    def tune() -> None:
        cache = module.get_cache_manager(tmp_path)
        if not cache.get_file("kernel.autotune.json"):
            for stack in (2000, 9000, 300):
                device.device_load_kernel(ctypes.c_size_t(stack))
            cache.put("{}", "kernel.autotune.json", binary=False)

    device.device_load_kernel(ctypes.c_size_t(9500))
    tune()
    device.device_load_kernel(ctypes.c_size_t(9600))
    assert hollow.tried_variants() == {"tried": 9000}
    tune()
    assert hollow.tried_variants() == {"tried": 9000, "kept": 9000}
