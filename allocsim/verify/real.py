"""Run lists of allocator calls (op scripts) on the native allocator of PyTorch, without a GPU.

Each script runs in a new process of a compiled program (driver.cpp), so settings, counters and the
sizes of hash tables do not depend on earlier scripts.

The program links the `libc10_cuda.so` of a PyTorch wheel, and allocsim's stubs in place of the CUDA
libraries.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from allocsim.errors import RefusedError, ScriptError, UnavailableError
from allocsim.phantom import (
    COMMON_OPTIONS,
    ORIGIN,
    STUB,
    Stubs,
    Wheel,
    build_once,
    build_stubs,
    cached_wheel,
    compile_source,
    digest_of,
    fetch_wheel,
    find_compiler,
    full_version,
)
from allocsim.verify.script import ADDRESS_POLICIES, RealAnswer, Script, encode_ops, stream_numbers

BASE = 1 << 44
"""First address that real PyTorch gets for scripts with base 0: address 0 means an error there."""

_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_SWITCHES = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "LD_PRELOAD", "LD_LIBRARY_PATH")


class RealAllocator:
    """Native allocator of a PyTorch release, on a phantom GPU.

    torch_version: PyTorch version such as "2.15.0", or "2.15" for the default patch release.
    download: True to download the wheel (hundreds of MiB) if the cache lacks it.
    """

    def __init__(self, torch_version: str, *, download: bool = False) -> None:
        self.torch_version = full_version(torch_version)
        wheel = fetch_wheel(torch_version) if download else cached_wheel(torch_version)
        if wheel is None:
            raise UnavailableError(
                f"torch {self.torch_version} is not in the cache; "
                f"python -m allocsim.phantom fetch --torch {self.torch_version} downloads it"
            )
        self._driver = build_driver(wheel)

    def run(self, script: Script) -> RealAnswer:
        answer = self._execute(script, repeats=0)
        shift = script.base_address - (script.base_address or BASE)
        number = stream_numbers(script.stream_handles())
        for segment in answer["segments"]:
            segment["address"] += shift
            segment["stream"] = number(segment["stream"])
        for entry in answer["trace"]:
            entry[3] = number(entry[3])
            # In the address field, an oom entry has the free bytes, and a snapshot entry has 0.
            if entry[0] not in ("oom", "snapshot"):
                entry[1] += shift
        addresses = [None if at is None else at + shift for at in answer.pop("addresses")]
        stopped = answer.pop("stopped")
        return RealAnswer(
            torch=self.torch_version,
            addresses=addresses,
            stopped=None if stopped is None else (stopped[0], stopped[1]),
            **answer,
        )

    def time(self, script: Script, repeats: int = 3) -> list[float]:
        """Return the seconds that the ops of a script take in each of `repeats` passes."""
        if repeats < 1:
            raise ScriptError(f"repeats {repeats} is not a count of passes, 1 or more")
        seconds: list[float] = self._execute(script, repeats)["seconds"]
        return seconds

    def _execute(self, script: Script, repeats: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="allocsim-") as place:
            asked, answer = Path(place) / "script", Path(place) / "result"
            asked.write_text("\n".join([*_device_lines(script, repeats), *encode_ops(script.ops)]))
            command = [str(self._driver), str(asked), str(answer)]
            done = subprocess.run(  # noqa: S603
                command,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                env=plain_environment(script.conf),
            )
            if done.returncode != 0:
                raise RefusedError(f"torch {self.torch_version} {_reason(done)}")
            result: dict[str, Any] = json.loads(answer.read_text())
            return result


def _device_lines(script: Script, repeats: int) -> list[str]:
    if script.address_policy not in ADDRESS_POLICIES:
        expected = " or ".join(ADDRESS_POLICIES)
        raise ScriptError(f"address policy {script.address_policy!r} is not {expected}")
    if script.device_memory <= 0 or script.base_address < 0:
        raise ScriptError(
            f"a device of {script.device_memory} bytes at address {script.base_address} "
            "is invalid; expected more than 0 bytes and an address of at least 0"
        )
    return [
        f"memory {script.device_memory}",
        script.address_policy,
        f"base {script.base_address or BASE}",
        f"repeats {repeats}",
        *(f"stream {number} {handle}" for number, handle in script.handles.items()),
    ]


def plain_environment(conf: str = "") -> dict[str, str]:
    """Return this process's environment with `conf` as PYTORCH_CUDA_ALLOC_CONF.

    Variables that affect the allocator or the loading of libraries are left out.
    """
    hidden = {*_SETTINGS, *_SWITCHES}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    if conf:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = conf
    return environment


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    where = [line.split("phantom: ")[1] for line in lines if line.startswith("phantom: ")]
    what = [line.split("what():", 1)[1].strip() for line in lines if "what():" in line]
    cause = f"died of {signal.Signals(-done.returncode).name}" if done.returncode < 0 else "failed"
    said = "; ".join([*what, *where]) or (lines[-1] if lines else "nothing said")
    return f"{cause}: {said}"


_SOURCE = Path(__file__).with_name("driver.cpp")


def build_driver(wheel: Wheel) -> Path:
    """Return the path of the compiled program for the allocator in `wheel`; build it if needed."""
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
