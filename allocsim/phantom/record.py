"""Run an unmodified program and record its memory history, with or without a GPU.

Rule: output, signals and exit code of the program are not changed.  Recordings are in a temporary
folder until the program ends, so an output file is complete or absent.
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
from dataclasses import dataclass, field
from pathlib import Path

from allocsim.phantom.build import UnavailableError
from allocsim.phantom.gpu import Gpu
from allocsim.phantom.launch import TorchInstall, find_torch, phantom_environment
from allocsim.phantom.wheel import cache_root

HOOK = Path(__file__).parent / "hook"
_CONF_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")
# Placeholder for the exit code that sitecustomize.py writes, as the pickle encodes it.
_UNKNOWN_EXIT = struct.pack("<ci", b"J", -(1 << 31))


@dataclass(frozen=True, slots=True)
class RecordedProgram:
    """A program to record, and the options of the recording.

    command: the program and its arguments.
    out: file for the recording.
    gpu: phantom GPU; None to use the real GPU.
    conf: value for PYTORCH_CUDA_ALLOC_CONF; None to leave the environment unchanged.
    work: time when the work of a stream completes on a phantom GPU: "when-waited" (as late as
        possible) or "at-once".
    max_entries, max_seconds: number of entries and seconds after which the program is ended; 0 for
        no limit.
    output_to_stderr: True to redirect the program's output to standard error.
    log: file for output and errors of the program; None to leave them unchanged.
    by_column: True to write entries as columns, which takes a third of the time, but only allocsim
        can read the file.
    sizes_only: True if values on the host do not matter, so that large tensors are not filled with
        random numbers and one thread is enough.  For a phantom GPU.
    values: True to compute small integer and boolean tensors of a phantom GPU.
    routing: distribution of tokens over experts on a phantom GPU, "balanced" or "skewed".
    devices: number of equal phantom GPUs; a process can use one.
    charges: bytes of the driver for a kernel of a phantom GPU, and for a node of a CUDA graph.
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
    sizes_only: bool = False
    values: bool = True
    routing: str = "balanced"
    devices: int = 1
    charges: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class ProcessRecording:
    """Recording of one process.

    file: path of the recording.
    entries: number of entries.
    oom_text: out-of-memory error that ended the process; "" if none did.
    stopped_by: limit that ended the process, "max-entries" or "max-seconds"; "" if none did.
    reads_back: lines of the program that copied values from a phantom GPU to the host; "" if none.
    guessed: libraries whose workspace sizes on a phantom GPU are guesses; "" if none.
    routing: distribution of tokens over experts on a phantom GPU; "" if no size and no value on the
        host depends on it.
    hollow: modules of kernels that were not compiled, and whose functions did nothing; "" if none.
    invented: values that were invented for the program; "" if none.
    device_peak_bytes: largest use of a phantom GPU's memory, with its context; 0 on a real GPU.
    driver: number of "kernels" that a phantom GPU loaded, and of "graphs" and their "nodes" that it
        instantiated; empty on a real GPU.
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
    """Result of a recorded run.

    exit_code: the program's exit code; 128 + n if signal n ended it.
    processes: recordings of the processes that used CUDA.
    torch: PyTorch of the program; None on a real GPU.
    """

    exit_code: int
    processes: tuple[ProcessRecording, ...]
    torch: TorchInstall | None


def has_gpu() -> bool:
    """Return True if this machine has an NVIDIA GPU."""
    return any(Path(name).exists() for name in _GPU_FILES)


def record(program: RecordedProgram) -> Recorded:
    """Run the program to its end and write one recording per process.

    The file of a single process is `program.out`.  For several processes, the rank or process id is
    inserted before the suffix.  Raises UnavailableError, before the program starts, if
    the program or its PyTorch is missing or unsuitable.
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
        # A fresh cache: kernels tuned for a phantom are useless on a card and vice versa, and
        # a program uses other memory while it compiles than with a warm cache.
        environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder.resolve() / "compiled"))
        environment |= _caches_of_engines(program.gpu)
        environment["ALLOCSIM_PHANTOM_DRIVER"] = " ".join(map(str, program.charges))
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
    }


def _caches_of_engines(gpu: Gpu) -> dict[str, str]:
    """Return the variables that keep what serving engines compile and tune for `gpu`.

    A server starts in half the time with a warm cache.
    """
    place = cache_root() / "engines" / "".join(filter(str.isalnum, gpu.name))
    return {
        "VLLM_CACHE_ROOT": str(place / "vllm"),
        "FLASHINFER_WORKSPACE_BASE": str(place),
        # Kernels of a phantom have no code, so they must not be in the cache of a real GPU.
        "TRITON_CACHE_DIR": str(place / "triton"),
    }


def _interpreter(command: Sequence[str]) -> str:
    """Return the path of the Python interpreter that `command` runs.

    It is the command itself, the interpreter of its script, or python3 on the PATH.
    """
    # The shebang names the interpreter of an installed script, such as torchrun.
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
    """Run the program and return its exit code.

    An interrupt from the terminal also reaches the program, which decides how to react.
    """
    with ExitStack() as stack:
        output = sys.stderr.fileno() if program.output_to_stderr else None
        if program.log is not None:
            output = stack.enter_context(program.log.open("wb")).fileno()
        errors = None if program.log is None else subprocess.STDOUT
        process = subprocess.Popen(  # noqa: S603
            program.command, env=environment, stdout=output, stderr=errors
        )
        try:
            with _interrupts_ignored():
                code = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
    # As a shell reports a process that a signal ended.
    return 128 - code if code < 0 else code


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore interrupts while the program runs; only the main thread receives them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _write_exit_code(file: Path, exit_code: int) -> None:
    """Write the exit code of the program into the place that the recording reserves for it."""
    data = file.read_bytes()
    at = data.rfind(_UNKNOWN_EXIT)
    if at >= 0:
        with file.open("r+b") as out:
            out.seek(at)
            out.write(struct.pack("<ci", b"J", exit_code))


def _deliver(found: Sequence[Path], out: Path) -> tuple[ProcessRecording, ...]:
    """Move the recordings `found` to `out`; add the rank or process id if there are several."""
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
