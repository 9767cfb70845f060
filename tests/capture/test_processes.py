"""Captured memory: free, reserved by PyTorch, and of other processes."""

# ruff: noqa: N802 (the names are those of the library)

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from allocsim import OutOfMemoryError
from allocsim.capture import capture, files
from allocsim.capture.files import processes_memory
from allocsim.recording import load
from allocsim.units import GIB, MIB
from tests.capture.pretend import Pretend

CARD = types.SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=6)
UNKNOWN = (1 << 64) - 1


class Nvml:
    """Fake NVML with one device; its argument is the memory of each process, by id."""

    def __init__(self, held: dict[int, int], error: int = 0) -> None:
        self.held, self.error, self.bus, self.is_open = held, error, b"", False

    def nvmlInit_v2(self) -> int:
        self.is_open = True
        return self.error

    def nvmlShutdown(self) -> int:
        self.is_open = False
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus: bytes, _device: Any) -> int:
        self.bus = bus
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, _device: Any, count: Any, rows: Any) -> int:
        assert ctypes.sizeof(rows[0]) == 24
        for row, (pid, size) in zip(rows, self.held.items(), strict=False):
            row.pid, row.used_memory = pid, size
        count._obj.value = len(self.held)
        return 0


def asked(library: Nvml, used: int) -> dict[str, int]:
    return processes_memory(CARD, used, lambda _name: library)


def test_processes_memory_gives_the_rest_to_others() -> None:
    library = Nvml({os.getpid(): 8 * GIB, 600: 131 * GIB})
    assert asked(library, 140 * GIB) == {
        "process_memory": 8 * GIB,
        "other_memory": 132 * GIB,  # includes memory that the driver holds for no process
        "other_processes": 1,
    }
    assert library.bus == b"00000000:3b:06.0"
    assert not library.is_open


@pytest.mark.parametrize(
    "library",
    [
        Nvml({600: GIB}),  # a container whose process ids differ from the host's
        Nvml({os.getpid(): UNKNOWN, 600: GIB}),
        Nvml({}, error=9),
        object(),
    ],
)
def test_processes_memory_leaves_out_what_the_driver_does_not_report(library: Any) -> None:
    assert asked(library, 2 * GIB) == {}


def test_processes_memory_without_nvml_is_empty() -> None:
    def load(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    assert processes_memory(CARD, GIB, load) == {}


class Beside(Pretend):
    """Card of 64 MiB where another program holds 30 MiB and the context 4 MiB."""

    @property
    def free(self) -> int:
        return super().free - 34 * MIB


@pytest.mark.parametrize("occasion", ["oom", "exit"])
def test_capture_separates_free_own_and_other_memory(
    use: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, occasion: str
) -> None:
    torch = use(Beside())
    card = torch.cuda.get_device_properties(0)
    vars(card).update(vars(CARD))
    library = Nvml({os.getpid(): 24 * MIB, 7: 30 * MIB})
    ask = partial(processes_memory, load=lambda _name: library)
    monkeypatch.setattr(files, "processes_memory", ask)
    with capture(tmp_path / "run.pickle", on=occasion):
        torch.empty(20 * MIB)
        if occasion == "oom":
            with pytest.raises(OutOfMemoryError):
                torch.empty(60 * MIB)
    made = load(tmp_path / f"run-{occasion}.pickle").provenance
    assert made is not None
    assert (made.free_memory, made.reserved_memory) == (10 * MIB, 20 * MIB)
    assert (made.context_memory, made.process_memory) == (34 * MIB, 24 * MIB)
    assert (made.other_memory, made.other_processes) == (30 * MIB, 1)


def test_capture_has_no_unknown_exit_code(torch: Pretend, tmp_path: Path) -> None:
    with capture(tmp_path / "run.pickle", on="exit"):
        torch.empty(MIB)
    snapshot = pickle.loads((tmp_path / "run-exit.pickle").read_bytes())
    assert "exit_code" not in snapshot["allocsim"]
    made = load(tmp_path / "run-exit.pickle").provenance
    assert made is not None and made.exit_code is None
    assert "exit_code" not in made.plain()


@pytest.mark.parametrize(
    ("ends", "code"), [("raise ValueError", 1), ("sys.exit(3)", None), ("pass", None)]
)
def test_capture_of_a_failed_program_has_its_exit_code(
    tmp_path: Path, ends: str, code: int | None
) -> None:
    """An uncaught error is exit code 1; other exit codes are not known yet."""
    program = (
        "import sys\nfrom tests.capture.pretend import Pretend\n"
        "torch = sys.modules['torch'] = Pretend()\n"
        "from allocsim.capture import capture\n"
        f"capture({str(tmp_path / 'run.pickle')!r}, on='exit').start()\n"
        f"torch.empty(1 << 20)\n{ends}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=False,
    )
    assert done.returncode == (code or (3 if "3" in ends else 0))
    made = load(tmp_path / "run-exit.pickle").provenance
    assert made is not None and made.exit_code == code
