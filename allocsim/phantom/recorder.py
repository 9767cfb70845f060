"""Run an unmodified program and record its memory history, with or without a GPU.

The program, its PyTorch, output, signals and exit code are not changed.  Environment variables
preload stubs of CUDA's libraries and describe the phantom (simulated) GPU.  No file is left
half-written.
"""

from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path

from allocsim.errors import UnavailableError
from allocsim.phantom.build import Stubs, build_once, build_stubs, digest_of
from allocsim.phantom.engines import DriverCharges
from allocsim.phantom.gpu import Gpu
from allocsim.phantom.installs import TorchInstall, find_torch
from allocsim.phantom.wheel import PLANS_WITHOUT_DEVICE, cache_root

BASE_ADDRESS = 0x7000_0000_0000
"""First address of the phantom GPU's memory, far above the addresses of host memory."""


def phantom_environment(
    torch: TorchInstall,
    gpu: Gpu,
    *,
    address_policy: str = "driver",
    work: str = "when-waited",
    devices: int = 1,
) -> dict[str, str]:
    """Return the environment variables with which a program runs on the simulated `gpu`.

    The variables preload the stubs of CUDA's libraries, which are built if needed.

    torch: PyTorch installation of the program.
    address_policy: addresses of segments: "driver" (as the CUDA driver chooses them), "bump" (no
        address is used again) or "firstfit" (the lowest free address).
    work: time when the work of a stream completes: "when-waited" (only when the program waits for
        it) or "at-once".
    devices: number of simulated GPUs.
    """
    stubs = _stubs(torch.cuda_major)
    variables = {
        "LD_PRELOAD": f"{stubs.preload} {os.environ.get('LD_PRELOAD', '')}".rstrip(),
        "ALLOCSIM_PHANTOM_MEMORY": str(gpu.memory),
        "ALLOCSIM_PHANTOM_CONTEXT": str(gpu.context_memory),
        "ALLOCSIM_PHANTOM_CONTEXT_CHUNKS": gpu.context_chunks,
        "ALLOCSIM_PHANTOM_POLICY": address_policy,
        "ALLOCSIM_PHANTOM_BASE": str(BASE_ADDRESS),
        "ALLOCSIM_PHANTOM_WORK": work,
        "ALLOCSIM_PHANTOM_NAME": gpu.name,
        "ALLOCSIM_PHANTOM_CAPABILITY": ".".join(map(str, gpu.capability)),
        "ALLOCSIM_PHANTOM_MULTIPROCESSORS": str(gpu.multiprocessors),
        "ALLOCSIM_PHANTOM_DEVICES": str(devices),
        "ALLOCSIM_PHANTOM_LIMITS": " ".join(map(str, astuple(gpu.limits))),
        # The user's value may hide all devices.
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(devices))),
        # Triton links its launchers to the driver and would otherwise search the system for it.
        "TRITON_LIBCUDA_PATH": str(stubs.folder),
        # Servers load NCCL themselves, with ctypes.
        "VLLM_NCCL_SO_PATH": str(stubs.nccl),
        "SGLANG_NCCL_SO_PATH": str(stubs.nccl),
    }
    if tuple(map(int, torch.version.split(".")[:2])) < PLANS_WITHOUT_DEVICE:
        variables["TORCH_CUDNN_V8_API_DISABLED"] = "1"
    return variables


def _stubs(cuda_major: int) -> Stubs:
    folder = cache_root() / "stubs" / f"cuda{cuda_major}-{digest_of(str(cuda_major))}"
    build_once(folder, partial(build_stubs, cuda_major=cuda_major))
    return Stubs.in_folder(folder, cuda_major)


HOOK = Path(__file__).parent / "hook"
_CONF_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")
# Placeholder for the exit code that sitecustomize.py writes, as the pickle encodes it.
_UNKNOWN_EXIT = struct.pack("<ci", b"J", -(1 << 31))


@dataclass(frozen=True, slots=True)
class RecordedProgram:
    """Program to record, and the options of the recording.

    command: program and its arguments.
    out: file for the recording.
    gpu: GPU to simulate (a phantom GPU); None to use the real GPU.
    conf: value for PYTORCH_CUDA_ALLOC_CONF; None to leave the environment unchanged.
    work: time when the work of a stream completes on a phantom GPU: "when-waited" (only when the
        program waits for it) or "at-once".
    max_entries, max_seconds: number of allocator calls, and seconds, after which the program is
        ended; 0 for no limit.
    output_to_stderr: True to redirect the program's standard output to standard error.
    log: file for the program's output; None for no file.
    by_column: True to write a list per field in place of a dictionary per entry; this takes a third
        of the time, but only allocsim can read the file.
    is_summary: True to record no entries, but only the totals in `ProcessRecording`.
    sizes_only: True on a phantom GPU if values on the host do not matter.  Large host tensors are
        then not filled with random numbers, and the program gets one thread.
    values: True to compute small integer and boolean tensors of a phantom GPU on the host.
    routing: distribution of tokens over experts on a phantom GPU: "balanced", or "skewed" for
        all tokens to the same experts.
    devices: number of identical phantom GPUs; each process can use only one of them.
    charges: device memory that the simulated driver takes for kernels and CUDA graphs.
    """

    command: tuple[str, ...]
    out: Path
    gpu: Gpu | None
    conf: str | None = None
    work: str = "when-waited"
    max_entries: int = 0
    max_seconds: float = 0.0
    output_to_stderr: bool = False
    log: Path | None = None
    by_column: bool = False
    is_summary: bool = False
    sizes_only: bool = False
    values: bool = True
    routing: str = "balanced"
    devices: int = 1
    charges: DriverCharges = field(default_factory=DriverCharges)


@dataclass(frozen=True, slots=True)
class ProcessRecording:
    """Recording of one process of the program.

    file: path of the recording.
    entries: number of allocator calls in the recording.
    oom_text: out-of-memory error that ended the process; "" if none did.
    stopped_by: limit that ended the process, "max-entries" or "max-seconds"; "" if none did.
    reads_back: lines of the program that copied unknown values from a phantom GPU to the host;
        "" if none.
    guessed: libraries whose workspace sizes on a phantom GPU are guesses; "" if none.
    routing: assumed distribution of tokens over experts on a phantom GPU; "" if no size and no
        value on the host depends on it.
    hollow: modules of kernels that were replaced by functions that do nothing; "" if none.
    invented: results that such functions returned to the program; "" if none.
    device_peak_bytes: highest memory in use on a phantom GPU, including its CUDA context; 0 on a
        real GPU.
    driver: counts of the simulated driver, such as loaded "kernels" (`at_exit.driver_counts`);
        empty on a real GPU.
    """

    file: Path
    entries: int
    oom_text: str
    stopped_by: str
    reads_back: str = ""
    guessed: str = ""
    routing: str = ""
    hollow: str = ""
    invented: str = ""
    device_peak_bytes: int = 0
    driver: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Result of running a program and recording it.

    exit_code: the program's exit code; 128 + n if signal n ended it.
    processes: recording of each process that used CUDA.
    torch: PyTorch installation that used the phantom GPU; None on a real GPU.
    """

    exit_code: int
    processes: tuple[ProcessRecording, ...]
    torch: TorchInstall | None


def has_gpu() -> bool:
    return any(Path(name).exists() for name in _GPU_FILES)


def record(program: RecordedProgram) -> Recorded:
    """Run the program to its end and write one recording per process.

    The file of a single process is `program.out`.  For several processes, the rank or process id is
    inserted before the suffix.
    """
    if not program.out.parent.is_dir():
        raise UnavailableError(f"{program.out.parent} is not a folder; expected one to write to")
    torch = None if program.gpu is None else find_torch(_interpreter(program.command))
    with tempfile.TemporaryDirectory(prefix="allocsim-", dir=program.out.parent) as place:
        folder = Path(place)
        exit_code = _run(program, _environment(program, torch, folder))
        found = sorted(folder.glob("*.pickle"))
        for file in found:
            _write_exit_code(file, exit_code)
        return Recorded(exit_code, _deliver(found, program.out), torch)


def _environment(
    program: RecordedProgram, torch: TorchInstall | None, folder: Path
) -> dict[str, str]:
    environment = dict(os.environ)
    if program.conf is not None:
        for name in _CONF_NAMES:
            environment.pop(name, None)
        environment[_CONF_NAMES[0]] = program.conf
    if program.gpu is not None and torch is not None:
        environment |= phantom_environment(
            torch, program.gpu, work=program.work, devices=program.devices
        )
        # The cache is new, except for engines: kernels tuned for a phantom GPU are useless on a
        # real GPU and vice versa, and a program uses other memory if it compiles kernels.
        environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder.resolve() / "compiled"))
        environment |= _settings_of_engines(program.gpu)
        environment["ALLOCSIM_PHANTOM_DRIVER"] = program.charges.variable
    environment["ALLOCSIM_PHANTOM_VALUES"] = program.routing if program.values else ""
    if program.sizes_only:
        environment |= {"ALLOCSIM_PHANTOM_SIZES_ONLY": "1", "OMP_NUM_THREADS": "1"}
    places = filter(None, (str(HOOK), environment.get("PYTHONPATH")))
    return environment | {
        "PYTHONPATH": os.pathsep.join(places),
        "ALLOCSIM_RECORD_FOLDER": str(folder.resolve()),
        "ALLOCSIM_RECORD_COMMAND": shlex.join(program.command),
        "ALLOCSIM_RECORD_MAX_ENTRIES": str(program.max_entries),
        "ALLOCSIM_RECORD_MAX_SECONDS": str(program.max_seconds),
        "ALLOCSIM_RECORD_BEGAN": repr(time.monotonic()),
        "ALLOCSIM_RECORD_BY_COLUMN": "1" if program.by_column else "",
        "ALLOCSIM_RECORD_SUMMARY": "1" if program.is_summary else "",
    }


def _settings_of_engines(gpu: Gpu) -> dict[str, str]:
    # A server starts in half the time with a warm cache.
    place = cache_root() / "engines" / "".join(filter(str.isalnum, gpu.name))
    return {
        "VLLM_CACHE_ROOT": str(place / "vllm"),
        "FLASHINFER_WORKSPACE_BASE": str(place),
        # Kernels of a phantom have no code, so they must not be in the cache of a real GPU.
        "TRITON_CACHE_DIR": str(place / "triton"),
        # vLLM imports humming, a library of kernels, which would compile some in other processes.
        "HUMMING_DISABLE_PARALLEL_BUILD": "1",
    }


def _interpreter(command: Sequence[str]) -> str:
    # The shebang of an installed script, such as torchrun, names its interpreter.
    path = shutil.which(command[0])
    if path is None:
        raise UnavailableError(f"{command[0]!r} is no command; expected a program to run")
    if Path(path).name.startswith(("python", "pypy")):
        return path
    with Path(path).open("rb") as file:
        first = file.readline(500)
    if first.startswith(b"#!"):
        words = first[2:].decode("utf-8", "replace").split()
        if words and Path(words[0]).name.startswith("python") and Path(words[0]).exists():
            return words[0]
    return shutil.which("python3") or sys.executable


def _run(program: RecordedProgram, environment: dict[str, str]) -> int:
    with ExitStack() as stack:
        output = sys.stderr.fileno() if program.output_to_stderr else None
        if program.log is not None:
            output = stack.enter_context(program.log.open("wb")).fileno()
        errors = None if program.log is None else subprocess.STDOUT
        process = subprocess.Popen(  # noqa: S603
            program.command, env=environment, stdout=output, stderr=errors
        )
        try:
            # An interrupt also reaches the program, which decides how to react.
            with _interrupts_ignored():
                code = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
    return 128 - code if code < 0 else code  # as a shell reports a signal


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _write_exit_code(file: Path, exit_code: int) -> None:
    data = file.read_bytes()
    at = data.rfind(_UNKNOWN_EXIT)
    if at >= 0:
        with file.open("r+b") as out:
            out.seek(at)
            out.write(struct.pack("<ci", b"J", exit_code))


def _deliver(found: Sequence[Path], out: Path) -> tuple[ProcessRecording, ...]:
    if len(found) == 1:
        return (_move(found[0], out),)
    suffixes = "".join(out.suffixes[-2:] if out.suffix == ".gz" else out.suffixes[-1:])
    stem = out.name.removesuffix(suffixes)
    return tuple(_move(file, out.with_name(f"{stem}-{file.stem}{suffixes}")) for file in found)


def _move(file: Path, out: Path) -> ProcessRecording:
    about = json.loads(file.with_suffix(".json").read_text())
    if out.suffix == ".gz":
        packed = file.with_suffix(".gz")
        with file.open("rb") as plain, gzip.open(packed, "wb", compresslevel=6) as target:
            shutil.copyfileobj(plain, target)
        file = packed
    file.replace(out)
    return ProcessRecording(out, **about)
