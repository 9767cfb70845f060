"""Run op scripts with the complete PyTorch of an installed Python interpreter.

On the phantom GPU (stubs of the CUDA libraries) all results must equal the model's, including
addresses.  On a real GPU the driver chooses segment addresses, free memory and stream handles;
these are given to the model, which predicts the rest.

`on_gpu` adapts a script to a real GPU, whose memory and timing a script cannot choose:

- After each free the script waits for the whole GPU, so every CUDA event is complete at the next
  request. Inside a pool scope (script.py) frees record their events later, so a script has either
  scopes or record_stream.
- The device memory of the script becomes a memory fraction that is small enough for several scripts
  at a time. The GPU is never full.
- An odd large_segment_size_mb may be set only at the start of a script.  The driver can refuse to
  create handles of an odd number of MiB, and then the segment's address would be unknown.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from allocsim.core import Release, find_release
from allocsim.errors import RefusedError, UnavailableError
from allocsim.phantom import Gpu, find_torch, phantom_environment
from allocsim.units import GIB
from allocsim.verify import torch_player
from allocsim.verify.comparison import Real
from allocsim.verify.generator import make_script
from allocsim.verify.host_generator import make_host_script
from allocsim.verify.real import BASE, plain_environment
from allocsim.verify.script import (
    Op,
    RealAnswer,
    Script,
    golden_segment,
    golden_stats,
    stream_numbers,
)

_MOST = 0.5
"""Share of the GPU's memory that all concurrent scripts together may use."""
_FRACTION = re.compile(r"\bper_process_memory_fraction:([\d.]+)")
_ODD_SEGMENTS = re.compile(r"\blarge_segment_size_mb:(\d*[13579])\b")


def on_gpu(script: Script, release: Release, device_memory: int, jobs: int = 1) -> Script:
    """Adapt a script to a real GPU, whose memory and timing the script cannot choose.

    device_memory: bytes of the GPU.
    jobs: number of scripts that run on the GPU at the same time.
    """
    share = min(_MOST / jobs, script.device_memory / device_memory)
    defers = release.scope_is_capture and any(op[0] == "P" for op in script.ops)
    kept = (op for op in script.ops if not (defers and op[0] == "r"))
    ops = [["m", share], *_ops(kept, share)]
    conf = _with_scaled_fraction(script.conf, share)
    return replace(script, ops=ops, conf=conf, device_memory=device_memory)


def _ops(ops: Iterator[Op], share: float) -> Iterator[Op]:
    for op in ops:
        if op[0] == "m":
            yield ["m", float(op[1]) * share]
        elif op[0] == "c":
            yield ["c", _ODD_SEGMENTS.sub(_next_even, _with_scaled_fraction(op[1], share))]
        else:
            yield op
        if op[0] == "f":
            yield ["S"]


def _with_scaled_fraction(conf: str, share: float) -> str:
    return _FRACTION.sub(
        lambda match: f"per_process_memory_fraction:{float(match[1]) * share:.6f}", conf
    )


def _next_even(match: re.Match[str]) -> str:
    return f"large_segment_size_mb:{int(match[1]) + 1}"


_SIZE = r"\d+ bytes|\d+\.\d\d [KMG]iB"
_PROCESS = re.compile(
    r"(?:Including non-PyTorch memory, (?P<own>this process)|Process [1-9]\d*)"
    rf" has (?:{_SIZE}) memory in use\. "
)
_BEFORE = re.compile(rf"of which (?:{_SIZE}) is free\. ")


def without_processes(text: str) -> str:
    """Remove PyTorch's sentences about the memory of processes from an error text."""
    before = _BEFORE.search(text)
    if before is None:
        return text
    at, n_own = before.end(), 0
    while (match := _PROCESS.match(text, at)) is not None:
        n_own += match["own"] is not None
        at = match.end()
    return text if n_own > 1 else text[: before.end()] + text[at:]


_WITHOUT_ADDRESS = ("oom", "snapshot")
_LARGEST = (1 << 63) - 1
_LAST_BYTES = 4096
_AHEAD = 2
"""Number of processes that have created a CUDA context on a real GPU and wait for a script."""
_LONGER = 4
"""Factor on the number of ops on a real GPU, because each script needs a new CUDA context."""


class InstalledTorch:
    """Process of an interpreter with PyTorch, which runs scripts on a real or phantom GPU."""

    def __init__(self, python: str, *, is_phantom: bool = True) -> None:
        install = find_torch(python)
        self.torch_version = install.version
        self._is_phantom = is_phantom
        self._memory: int | None = None
        environment = plain_environment()
        if is_phantom:
            environment |= phantom_environment(install, Gpu("allocsim", GIB))
        # The file has no name, so it disappears even if this process is killed.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(  # noqa: S603
            [python, torch_player.__file__, str(0 if is_phantom else _AHEAD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=environment,
        )
        if not self._read():
            reason = self._last_words()
            self.close()
            raise UnavailableError(f"torch {install.version} does not start: {reason}")

    def run(self, script: Script) -> RealAnswer:
        """Run a script and return its results.

        On a real GPU, `RealAnswer.conditions` has its stream handles, used memory and history.
        """
        answer = self._execute(script)
        if script.is_host:
            names = ("addresses", "stats", "segments", "trace", "messages")
            stop = answer["stopped"] and tuple(answer["stopped"])
            plain = {name: answer[name] for name in names}
            return RealAnswer(self.torch_version, stopped=stop, **plain)
        handles = {int(number): handle for number, handle in answer["handles"].items()}
        shift = script.base_address - (script.base_address or BASE) if self._is_phantom else 0
        number = stream_numbers(handles)
        segments = [golden_segment(segment, number) for segment in answer["segments"]]
        for segment in segments:
            segment["address"] += shift
        trace = [
            [action, at if action in _WITHOUT_ADDRESS else at + shift, size, number(stream)]
            for action, at, size, stream in answer["trace"]
        ]
        return RealAnswer(
            torch=self.torch_version,
            addresses=[None if at is None else at + shift for at in answer["addresses"]],
            stats=golden_stats(answer["stats"]),
            segments=segments,
            trace=trace,
            messages=self._messages(answer),
            stopped=answer["stopped"] and tuple(answer["stopped"]),
            conditions={} if self._is_phantom else _conditions(answer, handles, trace),
        )

    def _messages(self, answer: dict[str, Any]) -> list[str]:
        texts: list[str] = answer["messages"]
        return texts if self._is_phantom else [without_processes(text) for text in texts]

    def memory(self) -> int:
        if self._memory is None:
            self._memory = int(self._execute(Script([], GIB))["total"])
        return self._memory

    def _execute(self, script: Script) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="allocsim-") as place:
            asked, answer = (Path(place) / name for name in ("script", "result"))
            asked.write_text(json.dumps(self._request(script)))
            status = self._ask([str(asked), str(answer)])
            if os.waitstatus_to_exitcode(int(status)) == torch_player.NO_CONTEXT:
                raise UnavailableError(
                    f"torch {self.torch_version} gets no GPU: {self._last_words()}"
                )
            if status != "0":
                raise RefusedError(f"torch {self.torch_version} {self._reason(status)}")
            result: dict[str, Any] = json.loads(answer.read_text())
            return result

    def _request(self, script: Script) -> dict[str, Any]:
        return {
            "ops": script.ops,
            "conf": script.conf,
            "device_memory": script.device_memory,
            "address_policy": script.address_policy,
            "base": script.base_address or BASE,
            "handles": list(script.stream_handles().items()),
            "is_phantom": self._is_phantom,
            "is_host": script.is_host,
        }

    def _ask(self, line: list[str]) -> str:
        try:
            if self._process.stdin is not None:
                print(json.dumps(line), file=self._process.stdin, flush=True)
            status = self._read()
        except OSError:
            status = ""
        if not status:
            raise UnavailableError(f"torch {self.torch_version} has ended: {self._last_words()}")
        return status

    def _read(self) -> str:
        stdout = self._process.stdout
        return "" if stdout is None else stdout.readline().strip()

    def _reason(self, status: str) -> str:
        code = os.waitstatus_to_exitcode(int(status))
        if code < 0:
            return f"died of {signal.Signals(-code).name}: {self._last_words()}"
        return f"failed: {self._last_words()}"

    def _last_words(self) -> str:
        size = os.fstat(self._said.fileno()).st_size
        # pread, because the file position is shared with the child.
        said = os.pread(self._said.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES))
        lines = [line.strip() for line in said.decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "nothing said")

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # unsent data if the process has ended
                    pipe.close()
        self._process.wait()
        self._said.close()


def _conditions(
    answer: dict[str, Any], handles: dict[int, int], trace: list[list[Any]]
) -> dict[str, Any]:
    held = answer["total"] - answer["free"]
    return {"handles": handles, "context_memory": held, "driver_trace": trace}


@cache
def opened(python: str, is_phantom: bool) -> InstalledTorch:
    """Return an `InstalledTorch`; equal calls share one process.

    python: path of the interpreter.
    is_phantom: True to run on the phantom GPU (stubs of the CUDA libraries).
    """
    return InstalledTorch(python, is_phantom=is_phantom)


@dataclass(frozen=True, slots=True)
class InstalledSource:
    """Supplier of the complete PyTorch of an interpreter, and of random scripts for it.

    release: PyTorch release of the interpreter.
    python: path of the interpreter.
    is_phantom: True to run on the phantom GPU (stubs of the CUDA libraries), False for a real GPU.
    jobs: number of scripts that run on the GPU at the same time.
    is_host: True for scripts of pinned host memory, on the phantom GPU only.
    """

    release: str
    python: str
    is_phantom: bool = True
    jobs: int = 1
    is_host: bool = False

    def open(self) -> Real:
        return opened(self.python, self.is_phantom)

    def script(self, real: Real, seed: int) -> Script:
        """Return a random script, without pools that have no_split or use_on_oom.

        Such pools are MemPool objects, which choose their ids themselves.  Sizes are less than
        2**63, because the size of a tensor is signed.
        """
        release = find_release(self.release)
        if self.is_host:
            return make_host_script(seed, release)
        longer = 1 if self.is_phantom else _LONGER
        script = make_script(
            seed, release, with_marks=False, largest=_LARGEST, length_factor=longer
        )
        if self.is_phantom or not isinstance(real, InstalledTorch):
            return script
        return on_gpu(script, release, real.memory(), self.jobs)
