"""Phantom (simulated) GPU: stubs of the CUDA libraries that count memory and compute nothing.

Module `build` compiles the stubs in `stub/`, `recorder` runs an unmodified program with them, and
`wheel` downloads the compiled allocator of a PyTorch release.  No module of this package imports
torch.  Modules are imported on first use.
"""

from typing import TYPE_CHECKING

from allocsim._lazy import lazily

if TYPE_CHECKING:
    from allocsim.phantom.build import (
        COMMON_OPTIONS,
        ORIGIN,
        STUB,
        Stubs,
        build_once,
        build_stubs,
        compile_source,
        digest_of,
        find_compiler,
    )
    from allocsim.phantom.engines import DriverCharges, charges_of, described_model, starter_of
    from allocsim.phantom.gpu import (
        CARDS,
        CONTEXT_MEMORY_SEEN,
        THREAD_STACK,
        Gpu,
        Limits,
        context_range,
        context_seen,
        find_gpu,
        limits_of,
        named_gpu,
    )
    from allocsim.phantom.installs import TorchInstall, begin_to_find_torch, find_torch
    from allocsim.phantom.recorder import (
        ProcessRecording,
        Recorded,
        RecordedProgram,
        has_gpu,
        phantom_environment,
        record,
    )
    from allocsim.phantom.wheel import Wheel, cached_wheel, fetch_wheel, full_version

__all__ = [
    "CARDS", "COMMON_OPTIONS", "CONTEXT_MEMORY_SEEN", "DriverCharges", "Gpu", "Limits", "ORIGIN",
    "ProcessRecording", "Recorded", "RecordedProgram", "STUB", "Stubs", "THREAD_STACK",
    "TorchInstall", "Wheel", "begin_to_find_torch", "build_once", "build_stubs", "cached_wheel",
    "charges_of", "compile_source", "context_range", "context_seen", "described_model", "digest_of",
    "fetch_wheel", "find_compiler", "find_gpu", "find_torch", "full_version", "has_gpu",
    "limits_of", "named_gpu", "phantom_environment", "record", "starter_of",
]  # fmt: skip

_HOMES = {
    "build": "COMMON_OPTIONS ORIGIN STUB Stubs build_once build_stubs compile_source digest_of "
    "find_compiler",
    "engines": "DriverCharges charges_of described_model starter_of",
    "gpu": "CARDS CONTEXT_MEMORY_SEEN THREAD_STACK Gpu Limits context_range context_seen find_gpu "
    "limits_of named_gpu",
    "installs": "TorchInstall begin_to_find_torch find_torch",
    "recorder": "ProcessRecording Recorded RecordedProgram has_gpu phantom_environment record",
    "wheel": "Wheel cached_wheel fetch_wheel full_version",
}

__getattr__ = lazily(globals(), _HOMES)
