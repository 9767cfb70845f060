"""Run of an unmodified program that records its memory history, with or without a GPU.

Rule: the program's output, signals and exit code pass through unchanged.  Recordings stay in a
temporary folder until the program ends, so an output file is complete or absent.
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from allocsim.phantom.errors import UnavailableError
from allocsim.phantom.gpu import Gpu
from allocsim.phantom.launch import TorchInstall, find_torch, phantom_environment

__all__ = ["ProcessRecording", "Recorded", "Program", "has_gpu", "record"]

HOOK = Path(__file__).parent / "hook"
_CONF_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")
# Placeholder for the exit code that sitecustomize.py writes, as the pickle encodes it.
_UNKNOWN_EXIT = struct.pack("<ci", b"J", -(1 << 31))


@dataclass(frozen=True, slots=True)
class Program:
    """A program to record, and the conditions of the run.

    command: the program and its arguments.
    out: file to write the recording to.
    gpu: phantom device; None for the real one.
    conf: option string; None to leave the program's environment unchanged.
    work: as in `phantom_environment`.
    max_entries, max_seconds: limits at which the program is ended in order; 0 for none.
    output_to_stderr: True to redirect the program's output to standard error.
    log: file for both output and errors; None for none.
    by_column: True to write entries as columns, a smaller form that is written in a third of the
        time but is readable only by allocsim.
    sizes_only: True if values on the host do not matter, so none need to be drawn and one thread is
        enough.  For a phantom device.
    values: True to compute small integer and boolean tensors of a phantom device.
    routing: distribution of tokens over experts on a phantom device, "balanced" or "skewed".
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


@dataclass(frozen=True, slots=True)
class ProcessRecording:
    """Recording of one process.

    oom_text: out-of-memory error that ended it; "" for none.
    stopped_by: limit that ended it; "" for none.
    reads_back: lines of the program that copied values from a phantom device to the host; "" for
        none.
    guessed: libraries whose workspaces a phantom device guessed; "" for none.
    routing: distribution of tokens over experts on a phantom device; "" if no size or read depends
        on it.
    """

    file: Path
    entries: int
    oom_text: str
    stopped_by: str
    reads_back: str = ""
    guessed: str = ""
    routing: str = ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Result of a recorded run.

    exit_code: the program's exit code; 128 + n if signal n ended it.
    processes: recordings of the processes that used CUDA.
    torch: the PyTorch found; None on a real GPU.
    """

    exit_code: int
    processes: tuple[ProcessRecording, ...]
    torch: TorchInstall | None


def has_gpu() -> bool:
    """Return True if this machine has an NVIDIA GPU."""
    return any(Path(name).exists() for name in _GPU_FILES)


def record(program: Program) -> Recorded:
    """Run the program to its end and write its recordings.

    The recording of a single process is `program.out`; for several processes, the rank or process
    number is inserted before the suffix.  Raises UnavailableError, before the program starts, if
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
            _note_exit_code(file, exit_code)
        return Recorded(exit_code, _deliver(found, program.out), torch)


def _environment(program: Program, torch: TorchInstall | None, folder: Path) -> dict[str, str]:
    environment = dict(os.environ)
    if program.conf is not None:
        for name in _CONF_NAMES:
            environment.pop(name, None)
        environment[_CONF_NAMES[0]] = program.conf
    if program.gpu is not None and torch is not None:
        environment |= phantom_environment(torch, program.gpu, work=program.work)
        # A fresh cache: kernels tuned for a phantom are useless on a card and vice versa, and
        # a program uses other memory while it compiles than with a warm cache.
        environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder.resolve() / "compiled"))
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


def _interpreter(command: Sequence[str]) -> str:
    """Return the Python that the command runs: itself, its script's, or the one on the PATH."""
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


def _run(program: Program, environment: dict[str, str]) -> int:
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


def _note_exit_code(file: Path, exit_code: int) -> None:
    """Overwrite the place that was left for the exit code, the last value of the pickle."""
    data = file.read_bytes()
    at = data.rfind(_UNKNOWN_EXIT)
    if at >= 0:
        with file.open("r+b") as out:
            out.seek(at)
            out.write(struct.pack("<ci", b"J", exit_code))


def _deliver(found: Sequence[Path], out: Path) -> tuple[ProcessRecording, ...]:
    """Move the recordings to their destination; each of several gets its own name."""
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
