"""Memory that real PyTorch reserved at some sizes, predicted from recordings at other sizes.

The expected values are in `traces/sized/peaks.json`: each program's own `memory_stats()`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from allocsim import load, replay
from allocsim.errors import RecordingError
from allocsim.fitting.scale import Scaling, recording_at, scaling_of
from allocsim.recording import Action, Recording
from allocsim.units import GIB

SIZED = Path(__file__).parents[2] / "traces" / "sized"
PEAKS = json.loads((SIZED / "peaks.json").read_text())

PAIR = {"batch2": {"batch": 2}, "batch3": {"batch": 3}}
CHECKED = {**PAIR, "batch8": {"batch": 8}}
CHECKPOINTING = {
    "batch2-checkpointing": {"batch": 2},
    "batch3-checkpointing": {"batch": 3},
}
LAYERS = {"layers2": {"layers": 2}, "layers3": {"layers": 3}}


@cache
def recording(name: str) -> Recording:
    return load(SIZED / f"{name}.npz.gz")


def scaling(runs: dict[str, dict[str, int]]) -> Scaling:
    return scaling_of([(recording(name), at) for name, at in runs.items()])


@pytest.fixture(scope="module")
def pair() -> Scaling:
    """Return the law of the program at batch 2 and 3."""
    return scaling(PAIR)


def truth(name: str) -> tuple[int, int]:
    peaks = PEAKS[name]
    return peaks["reserved_bytes.all.peak"], peaks["allocated_bytes.all.peak"]


@pytest.mark.parametrize("batch", [4, 6, 8, 12, 16, 17, 18])
def test_two_recordings_tell_a_third_size_to_the_byte(pair: Scaling, batch: int) -> None:
    found = pair.at({"batch": batch})
    assert (found.peak_reserved_bytes, found.peak_allocated_bytes) == truth(f"batch{batch}")
    assert not found.is_between


@pytest.mark.parametrize("batch", [8, 16])
def test_with_activation_checkpointing_too(batch: int) -> None:
    found = scaling(CHECKPOINTING).at({"batch": batch})
    peaks = found.peak_reserved_bytes, found.peak_allocated_bytes
    assert peaks == truth(f"batch{batch}-checkpointing")


def test_the_largest_batch_of_a_device_is_the_one_that_really_fits_it() -> None:
    """Real PyTorch ran 17 and 18 on a device of 24 GiB as well, and 18 ran out of memory."""
    found = scaling(CHECKED).largest("batch", {}, 24 * GIB)
    assert found.fitting is not None
    assert (found.fitting.at["batch"], found.failing.at["batch"]) == (17, 18)
    assert found.fitting.peak_reserved_bytes == truth("batch17-24GiB")[0]
    assert PEAKS["batch18-24GiB"] is None
    assert found.failing.oom is not None


@pytest.fixture(scope="module")
def layered() -> Scaling:
    """Return the law of the program at two and three layers, checked at five."""
    return scaling({**LAYERS, "layers5": {"layers": 5}})


@pytest.mark.parametrize("layers", [12, 24, 80])
def test_two_and_three_layers_tell_of_many(layered: Scaling, layers: int) -> None:
    found = layered.at({"layers": layers})
    assert (found.peak_reserved_bytes, found.peak_allocated_bytes) == truth(f"layers{layers}")


def test_a_recording_with_more_layers_comes_out_row_by_row() -> None:
    """Six layers are the program at batch 2 of the other tests."""
    found = scaling({**LAYERS, "batch2": {"layers": 6}})
    assert [check.missed for check in found.checks] == [0]
    made, real = recording_at(found, {"layers": 6}).devices[0], recording("batch2").devices[0]
    kept = real.action != Action.SNAPSHOT
    for column in ("action", "addr", "size"):
        np.testing.assert_array_equal(getattr(made, column), getattr(real, column)[kept])


def test_layers_and_the_batch_together() -> None:
    runs = {
        **{f"layers{n}": {"layers": n, "batch": 2} for n in (2, 3)},
        **{f"layers{n}-batch3": {"layers": n, "batch": 3} for n in (2, 3)},
    }
    found = scaling(runs).at({"layers": 6, "batch": 16})
    assert (found.peak_reserved_bytes, found.peak_allocated_bytes) == truth("batch16")


def test_other_code_is_no_layer_more() -> None:
    runs = {"layers2": {"layers": 2}, "batch2-checkpointing": {"layers": 6}}
    with pytest.raises(RecordingError, match="differs from"):
        scaling(runs)


def test_a_further_recording_is_a_check() -> None:
    found = scaling(CHECKED)
    (check,) = found.checks
    assert check.peak_reserved_bytes == truth("batch8")[0]
    assert 0 < check.missed < 20, "temporary storage of a sort follows no law"
    assert check.largest_miss < 4096


def test_a_size_that_counts_squared_takes_three_of_its_values() -> None:
    """The attention mask grows with the square of the length."""
    runs = {
        "batch2": {"batch": 2, "sequence": 2048},
        "batch2-sequence2560": {"batch": 2, "sequence": 2560},
    }
    straight = scaling(runs)
    assert straight.at({"sequence": 1600}).peak_reserved_bytes != truth("batch2-sequence1600")[0]
    curved = scaling({**runs, "batch2-sequence1600": {"batch": 2, "sequence": 1600}})
    assert curved.law.degrees == {"sequence": 2}
    found = curved.at({"sequence": 2304})
    assert found.is_between
    assert (found.peak_reserved_bytes, found.peak_allocated_bytes) == truth("batch2-sequence2304")


def test_another_way_through_the_kernels_is_refused_with_its_first_step() -> None:
    """Below 1,024 tokens a view is not copied."""
    runs = {"batch1-sequence512": {"batch": 1}, **PAIR}
    with pytest.raises(RecordingError, match=r"differs from .* find_packed_sequence_indices"):
        scaling(runs)
    with pytest.raises(RecordingError, match="differs from"):
        scaling({"batch2": {"batch": 2}, "batch3-checkpointing": {"batch": 3}})


def test_what_no_law_predicts_is_refused() -> None:
    """Four sizes determine a law of two names, and a fifth refutes it."""
    runs = {
        "batch2": {"batch": 2, "sequence": 2048},
        "batch3": {"batch": 3, "sequence": 2048},
        "batch2-sequence2560": {"batch": 2, "sequence": 2560},
        "batch3-sequence2560": {"batch": 3, "sequence": 2560},
        "batch2-sequence1600": {"batch": 2, "sequence": 1600},
    }
    with pytest.raises(RecordingError, match="does not follow the law of the others"):
        scaling(runs)
    del runs["batch2-sequence1600"]
    found = scaling(runs).at({"batch": 4, "sequence": 2560})
    assert found.peak_reserved_bytes == truth("batch4-sequence2560")[0]
    beyond = scaling(runs).at({"batch": 6, "sequence": 3072})
    assert beyond.peak_reserved_bytes != truth("batch6-sequence3072")[0], "unproved, and wrong"
    assert not beyond.is_between


def test_the_predicted_recording_replays_as_any_other(pair: Scaling) -> None:
    made = recording_at(pair, {"batch": 4})
    (run,) = replay(made).devices
    assert run.fidelity is not None
    assert run.fidelity.is_exact
    assert run.peak_reserved_bytes == truth("batch4")[0]
    stacks = {frame.filename for frame in made.frame_table.frames}
    assert "training.py" in stacks
    failed = recording_at(pair, {"batch": 18}, device_memory=23 * GIB)
    (run,) = replay(failed).devices
    assert run.fidelity is not None
    assert run.fidelity.is_exact
    assert len(run.ooms) == 1
