"""Results of `explain` by the type of its argument."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allocsim import CachingAllocator, OutOfMemoryError, explain, load
from allocsim.errors import ConfigError

MIB = 1 << 20


@pytest.fixture
def text_and_recording(tmp_path: Path) -> tuple[str, Path]:
    """A request of 60 MiB on a card of 60 MiB with 16 in use, 24 idle and 20 free."""
    gpu = CachingAllocator(device_memory="60MiB", record_history=True)
    blocks = [gpu.malloc(size * MIB) for size in (10, 10, 10, 10)]
    for block in blocks[:3]:
        gpu.free(block)
    gpu.malloc(6 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        gpu.malloc(60 * MIB)
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(gpu.snapshot()))
    return str(caught.value), path


def test_explain_agrees_on_a_text_and_the_recording_of_its_error(
    text_and_recording: tuple[str, Path],
) -> None:
    text, path = text_and_recording
    (verdict,) = explain(text)
    (device,) = explain(load(str(path)))
    (shortage,) = device.shortages
    assert verdict.figures.tried_bytes == shortage.figures.tried_bytes == 60 * MIB
    assert verdict.figures.free_bytes == shortage.figures.free_bytes
    assert verdict.figures.allocated_bytes == shortage.figures.allocated_bytes
    assert verdict.cause == shortage.cause == "full"


def test_explain_refuses_a_source_of_another_type() -> None:
    with pytest.raises(ConfigError, match="got bytes"):
        explain(b"CUDA out of memory")  # type: ignore[call-overload]
