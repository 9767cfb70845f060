"""Snapshots of other builds of PyTorch in CUDA's layout: detection and consequences."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator, replay
from allocsim.errors import RecordingError
from allocsim.recording import Recording, find_defects, load
from allocsim.recording.recording import backend_of

REQUESTS = (512, 1024, 512, 2048, 512, 1024, 512, 512, 4096, 512)


def snapshot(more: int = 0, *, filename: str = "train.py", name: str = "step") -> dict[str, Any]:
    """Return the snapshot of a build that adds `more` bytes to every request."""
    allocator = CachingAllocator("1GiB", record_history=True)
    for size in REQUESTS:
        allocator.malloc(size + more)
    value: dict[str, Any] = allocator.snapshot()
    for entry in value["device_traces"][0]:
        entry["frames"] = [{"filename": filename, "name": name, "line": 1}]
        if entry["action"] == "alloc":
            entry["size"] -= more
    for segment in value["segments"]:
        for block in segment["blocks"]:
            block["requested_size"] -= min(more, block["requested_size"])
    return value


def loaded(tmp_path: Path, value: object) -> Recording:
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(value, protocol=4))
    return load(path)


def test_backend_of_a_cuda_build_is_none(tmp_path: Path) -> None:
    assert backend_of(loaded(tmp_path, snapshot())) is None


@pytest.mark.parametrize(
    ("filename", "name", "backend"),
    [
        ("/opt/site-packages/torch_npu/npu/memory.py", "f", "NPU"),
        (r"C:\site-packages\torch\xpu\memory.py", "f", "XPU"),
        ("", "c10::xpu::XPUCachingAllocator::malloc(unsigned long)", "XPU"),
        ("", "c10::hip::HIPCachingAllocator::Native::malloc", "ROCm"),
    ],
)
def test_backend_is_found_in_a_stack(
    filename: str, name: str, backend: str, tmp_path: Path
) -> None:
    found = backend_of(loaded(tmp_path, snapshot(filename=filename, name=name)))
    assert found is not None
    assert (found.name, found.evidence) == (backend, "its stacks name it")


def test_npu_is_detected_from_block_sizes(tmp_path: Path) -> None:
    recording = loaded(tmp_path, snapshot(32))
    found = backend_of(recording)
    assert found is not None
    assert found.name == "NPU"
    with pytest.raises(RecordingError, match=r"NPU's build of PyTorch .* adds 32 bytes"):
        replay(recording)


@pytest.mark.parametrize("release", ["2.2", "2.10"])
def test_backend_of_rounded_requests_is_not_npu(release: str, tmp_path: Path) -> None:
    """1 MiB minus 512 bytes is rounded to 1 MiB; up to 2.2 no setting is recorded."""
    allocator = CachingAllocator("1GiB", "roundup_power2_divisions:2", release, record_history=True)
    for _ in range(10):
        allocator.malloc((1 << 20) - 512)
    recording = loaded(tmp_path, allocator.snapshot())
    assert (recording.settings is None) == (release == "2.2")
    assert backend_of(recording) is None


def test_backend_is_not_inferred_from_a_few_blocks(tmp_path: Path) -> None:
    value = snapshot(32)
    for segment in value["segments"]:
        del segment["blocks"][5:]
    assert backend_of(loaded(tmp_path, value)) is None


@pytest.mark.parametrize(
    ("name", "build", "differs"),
    [
        ("c10::hip::HIPCachingAllocator::malloc", "ROCm", "is CUDA's source"),
        ("c10::xpu::XPUCachingAllocator::malloc", "XPU", "no option beside expandable_segments"),
    ],
)
def test_modelled_backend_is_replayed_with_a_note(
    name: str, build: str, differs: str, tmp_path: Path
) -> None:
    recording = loaded(tmp_path, snapshot(name=name))
    notes = [finding.text for finding in find_defects(recording) if finding.check == "backend"]
    assert len(notes) == 1
    assert f"{build}'s build of PyTorch" in notes[0]
    assert differs in notes[0]
    assert "no recording of one was there" in notes[0]
    (device,) = replay(recording).devices
    assert device.fidelity is not None
    assert device.fidelity.is_exact
