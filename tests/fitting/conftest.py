"""Fixture `pretend`: replaces runs over PyTorch by a device that the model plays.

These tests cover the use of a run; the recordings are the model's own. Real PyTorch checks the runs
themselves in `test_truth.py`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.errors import UnavailableError
from allocsim.fitting import run_result as ran
from allocsim.phantom import ProcessRecording, Recorded, RecordedProgram
from allocsim.phantom.installs import TorchInstall

Run = Callable[[CachingAllocator, str], int]
"""Player of a program's text or command line; returns the entries before the peaks are reset."""


@dataclass
class Pretended:
    """Programs that were run, and the function that plays the next one."""

    play: Run
    error: str = ""
    version: str = "2.15.0"
    reads_back: str = "train.py:31 (3 times)"
    programs: list[str] = field(default_factory=list)
    memories: list[int] = field(default_factory=list)
    works: list[str] = field(default_factory=list)
    routings: list[str] = field(default_factory=list)
    is_routed: bool = False

    def find_torch(self, python: str) -> TorchInstall:
        if "python" not in python:
            raise UnavailableError(f"{python} has no PyTorch; expected a CUDA build of torch")
        return TorchInstall(python, self.version, "13.2")

    def record(self, program: RecordedProgram) -> Recorded:
        """Replace `allocsim.phantom.record`."""
        assert program.gpu is not None
        assert program.log is not None
        file = Path(program.command[-1])
        text = file.read_text() if file.name == "program.py" else " ".join(program.command)
        self.programs.append(text)
        self.memories.append(program.gpu.memory)
        self.works.append(program.work)
        self.routings.append(program.routing)
        program.log.write_text(self.error)
        torch = TorchInstall(program.command[0], self.version, "13.2")
        if self.error:
            return Recorded(1, (), torch)
        room = program.gpu.memory - program.gpu.context_memory
        allocator = CachingAllocator(room, program.conf or "", record_history=True)
        reset, oom_text = 0, ""
        try:
            reset = self.play(allocator, text)
        except OutOfMemoryError as error:
            oom_text = str(error)
        snapshot = allocator.snapshot()
        mark = {"device": 0, "entry": reset, "kind": "reset_peak_memory_stats", "value": None}
        snapshot["allocsim"] = {
            "torch_version": self.version,
            "device_memory": room,
            "is_phantom": True,
            "oom_text": oom_text,
            "reads_back": self.reads_back,
            "routing": program.routing if self.is_routed else "",
            "marks": [mark] * bool(reset),
        }
        program.out.write_bytes(pickle.dumps(snapshot, protocol=4))
        entries = len(snapshot["device_traces"][0])
        process = ProcessRecording(program.out, entries, oom_text, "")
        return Recorded(int(bool(oom_text)), (process,), torch)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Pretended]:
    """Return a function that replaces the runs of all programs."""

    def put(play: Run, error: str = "") -> Pretended:
        pretended = Pretended(play, error)
        monkeypatch.setattr("allocsim.phantom.record", pretended.record)
        monkeypatch.setattr(ran, "find_torch", pretended.find_torch)
        return pretended

    return put
