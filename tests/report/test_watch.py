"""Text of `watch` for a failed recording."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from allocsim.analysis.explain import DeviceExplanation, explain, explain_recording
from allocsim.analysis.watch import Arrival
from allocsim.recording import load
from allocsim.report.explain import screen as explanation_screen
from allocsim.report.explain_message import screen as verdicts_screen
from allocsim.report.watch import text as watch_text
from allocsim.simulation import Run, Setting

RECORDING = "gpt2_training-oom-torch2.15.npz.gz"
TEXT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 748.00 MiB. GPU 0 has a total "
    "capacity of 8.00 GiB of which 4.00 MiB is free. Including non-PyTorch memory, this process "
    "has 7.99 GiB memory in use. Of the allocated memory 6.78 GiB is allocated by PyTorch, and "
    "964.47 MiB is reserved by PyTorch but unallocated."
)


@pytest.fixture(scope="module")
def arrival() -> Arrival:
    recording = load(Path(__file__).parents[2] / "traces" / "recordings" / RECORDING)
    return Arrival(RECORDING, recording, "", "", len(recording.devices[0]), 1, 1, 1, TEXT)


@pytest.fixture(scope="module")
def explained(arrival: Arrival) -> tuple[Run, list[DeviceExplanation]]:
    run, devices = explain_recording(arrival.recording)
    return run, list(devices)


def test_watch_text_of_a_recording_has_the_rows_of_explain(
    arrival: Arrival, explained: tuple[Run, list[DeviceExplanation]]
) -> None:
    output = watch_text(arrival, explained).splitlines()[1:]
    labels = [line.split("  ")[0] for line in output if line[:1] != " "]
    assert labels == ["Verdict", "Because", "Request", "To paste"]
    screen = str(explanation_screen(*explained)).splitlines()
    assert [line for line in screen if line in output] == output


def test_watch_text_of_an_error_text_has_the_rows_of_explain(arrival: Arrival) -> None:
    verdicts = explain(f"{TEXT}\nlater\n{TEXT.replace('748', '12')}")
    output = watch_text(arrival, None, verdicts).splitlines()[1:]
    assert [line.split("  ")[0] for line in output if line[:1] != " "] == [
        "Verdict",
        "Because",
        "Advice",
    ]
    assert "12.00 MiB tried" in " ".join(output), "the last error is printed"
    screen = str(verdicts_screen(verdicts)).splitlines()
    assert [line for line in screen if line in output] == output


def test_watch_text_puts_a_long_setting_below_its_label(
    arrival: Arrival, explained: tuple[Run, list[DeviceExplanation]]
) -> None:
    run, (device,) = explained
    found = device.recommendation
    assert found.best is not None
    conf = "max_split_size_mb:512,roundup_power2_divisions:[256:8,512:4,1024:2,>:1]"
    long = replace(found, best=replace(found.best, setting=Setting(conf)))
    output = watch_text(arrival, (run, [replace(device, recommendation=long)])).splitlines()
    assert output[-2] == "To paste"
    assert output[-1].startswith("export PYTORCH_CUDA_ALLOC_CONF=") and conf in output[-1]
