"""Build the C++ program that runs op scripts on the native allocator of a PyTorch release.

Rule: it links the `libc10_cuda.so` of that release and the stubs, but no library of CUDA.
"""

from __future__ import annotations

from pathlib import Path

from allocsim.phantom import (
    COMMON_OPTIONS,
    ORIGIN,
    STUB,
    Stubs,
    Wheel,
    build_once,
    build_stubs,
    compile_source,
    digest_of,
    find_compiler,
)

__all__ = ["build_driver"]

_SOURCE = Path(__file__).with_name("driver.cpp")


def build_driver(wheel: Wheel) -> Path:
    """Return the path of the program for a release; build it if needed.

    Raises UnavailableError if it cannot be built.
    """
    name = digest_of(f"{wheel.torch} {wheel.cuda}", _SOURCE, Path(__file__))
    folder = wheel.folder / "build" / name

    def build(growing: Path) -> None:
        compiler = find_compiler("c++", "g++", "clang++")
        stubs = build_stubs(growing, wheel.cuda_major)
        compile_source([compiler, *_options(wheel, stubs), "-o", str(growing / "driver")])

    build_once(folder, build)
    return folder / "driver"


def _options(wheel: Wheel, stubs: Stubs) -> list[str]:
    libraries = [wheel.libraries / "libc10_cuda.so", wheel.libraries / "libc10.so"]
    libraries += [stubs.device, stubs.cudart, stubs.cuda, stubs.nvml]
    return [
        *COMMON_OPTIONS,
        "-std=c++20",
        "-Wno-unused-parameter",
        f"-DPHANTOM_TORCH={wheel.number}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(not wheel.has_old_abi)}",
        f"-I{STUB}",
        *(f"-isystem{include}" for include in wheel.includes),
        str(_SOURCE),
        "-Wl,--no-as-needed",
        *(str(library) for library in libraries),
        ORIGIN,
        f"-Wl,-rpath,{wheel.libraries}",
        "-Wl,--allow-shlib-undefined",
    ]
