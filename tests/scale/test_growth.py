"""Programs whose parts repeat as often as a size says, constructed so that every size is known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from allocsim import CachingAllocator
from allocsim.errors import ConfigError, RecordingError
from allocsim.fitting.scale import Growing, recording_at
from allocsim.fitting.scale.alignment import Likeness, insertions
from allocsim.units import KIB, MIB
from tests.scale.test_law import peak, run, scaling

Sizes = Mapping[str, int]


def training(gpu: CachingAllocator, at: Sizes) -> None:
    """Allocate weights, and run steps with activations, gradients and the lists of an optimizer."""
    layers, batch = at["layers"], at.get("batch", 4)
    for _ in range(layers):
        gpu.malloc(3 * MIB)
    gpu.malloc(17 * MIB)
    for _ in range(2):
        kept = []
        for _ in range(layers):
            gpu.free(gpu.malloc(batch * 700 * KIB))
            kept.append((gpu.malloc(batch * 5 * MIB), gpu.malloc(batch * 900 * KIB)))
        loss, grads = gpu.malloc(KIB), []
        for inner, outer in reversed(kept):
            work = gpu.malloc(batch * 5 * MIB)
            gpu.free(inner)
            grads.append(gpu.malloc(3 * MIB))
            gpu.free(outer)
            gpu.free(work)
        gpu.free(loss)
        flat = gpu.malloc(layers * 3 * MIB + 17 * MIB)
        first = [gpu.malloc(3 * MIB) for _ in range(layers)]
        second = [gpu.malloc(4 * MIB) for _ in range(layers)]
        for block in (*first, *second, flat, *reversed(grads)):
            gpu.free(block)


def decoding(gpu: CachingAllocator, at: Sizes) -> None:
    """Grow the cache of each of two layers by one token with every step."""
    caches = [gpu.malloc(100 * KIB) for _ in range(2)]
    for step in range(at["tokens"]):
        work = gpu.malloc(9 * MIB)
        for layer in range(2):
            longer = gpu.malloc((101 + step) * KIB)
            gpu.free(caches[layer])
            caches[layer] = longer
            gpu.free(gpu.malloc(7 * MIB))
        gpu.free(work)


@pytest.mark.parametrize("layers", [3, 4, 7, 40])
def test_further_layers_are_copies_of_what_lies_beside_them(tmp_path: Path, layers: int) -> None:
    law = scaling(training, tmp_path, {"layers": 3}, {"layers": 4}, {"layers": 6})
    assert isinstance(law.law, Growing)
    assert [check.missed for check in law.checks] == [0]
    found = law.at({"layers": layers})
    assert found.peak_reserved_bytes == peak(training, {"layers": layers})
    real = run(training, tmp_path, {"layers": layers}).devices[0]
    made = recording_at(law, {"layers": layers}).devices[0]
    for column in ("action", "size", "addr"):
        base = made.addr[0] - real.addr[0] if column == "addr" else 0
        np.testing.assert_array_equal(getattr(made, column) - base, getattr(real, column))


def test_every_step_may_be_a_little_larger_than_the_last(tmp_path: Path) -> None:
    law = scaling(decoding, tmp_path, {"tokens": 4}, {"tokens": 5})
    for tokens in (4, 5, 6, 300):
        found = law.at({"tokens": tokens})
        assert found.peak_reserved_bytes == peak(decoding, {"tokens": tokens})
    assert not law.checks


Layer = tuple[int, bool]
"""Units of 100 KiB in a layer's request, and True if the block is kept for the backward pass."""

shapes = st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=4)


@settings(max_examples=30)
@given(layer=shapes, in_order=st.booleans(), target=st.integers(3, 15))
def test_what_three_recordings_agree_on_holds_for_others(
    tmp_path_factory: pytest.TempPathFactory, layer: list[Layer], target: int, *, in_order: bool
) -> None:
    def program(gpu: CachingAllocator, at: Sizes) -> None:
        kept = []
        for _ in range(at["layers"]):
            for units, is_kept in layer:
                block = gpu.malloc(units * 100 * KIB)
                if is_kept:
                    kept.append(block)
                else:
                    gpu.free(block)
        gpu.malloc(77 * MIB)
        for block in kept if in_order else reversed(kept):
            gpu.free(gpu.malloc(50 * KIB))
            gpu.free(block)

    folder = tmp_path_factory.mktemp("runs")
    law = scaling(program, folder, *({"layers": layers} for layers in (3, 4, 5)))
    found = law.at({"layers": target})
    assert found.peak_reserved_bytes == peak(program, {"layers": target})


def test_layers_and_the_batch_act_together(tmp_path: Path) -> None:
    corners = [{"layers": n, "batch": b} for n in (3, 4) for b in (2, 3)]
    law = scaling(training, tmp_path, *corners, {"layers": 5, "batch": 5})
    assert len(law.checks) == 1
    for at in ({"layers": 9, "batch": 7}, {"layers": 3, "batch": 11}):
        assert law.at(at).peak_reserved_bytes == peak(training, at)
    with pytest.raises(ConfigError, match="how layers and batch act together; expected 4"):
        scaling(training, tmp_path, *corners[:3])
    with pytest.raises(ConfigError, match=r"no value of batch; expected batch=N"):
        law.at({"layers": 9})
    with pytest.raises(ConfigError, match=r"no value of layers; expected layers=N"):
        law.at({"batch": 9})


def test_fewer_layers_than_recorded_are_not_told(tmp_path: Path) -> None:
    law = scaling(training, tmp_path, {"layers": 4}, {"layers": 3})
    with pytest.raises(ConfigError, match="layers=2: expected 3 or more"):
        law.at({"layers": 2})
    with pytest.raises(ConfigError, match="steps are more than can be replayed"):
        law.at({"layers": 10**9})
    found = law.largest("layers", {}, "64MiB")
    assert (found.fitting, found.failing.at) == (None, {"layers": 3})


def test_recordings_two_apart_tell_of_every_second(tmp_path: Path) -> None:
    law = scaling(training, tmp_path, {"layers": 3}, {"layers": 5})
    assert law.at({"layers": 21}).peak_reserved_bytes == peak(training, {"layers": 21})
    with pytest.raises(ConfigError, match="determine every 2 more; expected a recording at 4"):
        law.at({"layers": 6})
    found = law.largest("layers", {}, "2GiB")
    assert found.fitting is not None
    assert found.failing.at["layers"] - found.fitting.at["layers"] == 2


def test_the_most_layers_of_a_device(tmp_path: Path) -> None:
    law = scaling(training, tmp_path, {"layers": 3}, {"layers": 4})
    found = law.largest("layers", {}, "1GiB")
    assert found.fitting is not None
    assert found.fitting == law.at({"layers": found.fitting.at["layers"]}, device_memory="1GiB")
    assert found.failing.at["layers"] == found.fitting.at["layers"] + 1


def test_what_comes_more_often_and_repeats_nothing_is_no_growth(tmp_path: Path) -> None:
    """From some batch on, other kernels run; these rows are not another copy of a part."""

    def program(gpu: CachingAllocator, at: Sizes) -> None:
        for _ in range(3):
            gpu.malloc(at["batch"] * MIB)
            if at["batch"] > 2:
                gpu.free(gpu.malloc(at["batch"] * 300 * KIB))

    with pytest.raises(RecordingError, match=r"differs from .* a law needs the same kernels"):
        scaling(program, tmp_path, {"batch": 2}, {"batch": 3})


def test_a_recording_that_does_not_follow_is_refused_with_its_first_step(tmp_path: Path) -> None:
    def program(gpu: CachingAllocator, at: Sizes) -> None:
        for layer in range(at["layers"]):
            gpu.malloc(3 * MIB)
            gpu.free(gpu.malloc((9 if layer == 4 else 5) * MIB))
            if layer == 4:
                gpu.malloc(MIB)

    runs = [{"layers": layers} for layers in (2, 3, 5)]
    with pytest.raises(
        RecordingError, match=r"the prediction of the others at layers=5, first at .* ends"
    ):
        scaling(program, tmp_path, *runs)


rows = st.lists(st.integers(0, 3), max_size=40)


def likeness(form: list[int]) -> Likeness:
    """Return rows that differ only in their kind and stack."""
    number, none = np.array(form, dtype=np.int64), np.zeros(len(form), dtype=np.int64)
    return Likeness(number, number, none, none, none)


@settings(max_examples=50)
@given(short=rows, more=st.lists(st.tuples(st.integers(0, 40), rows), min_size=1, max_size=3))
def test_insertions_leave_the_shorter_program(
    short: list[int], more: list[tuple[int, list[int]]]
) -> None:
    long = list(short)
    for place, inserted in more:
        long[place:place] = inserted
    assume(len(long) > len(short))
    found = insertions(likeness(short), likeness(long))
    assert found is not None
    left = list(long)
    for each in reversed(found):
        del left[each.start : each.stop]
    assert left == short
    assert len(found) <= len(more)
    assert insertions(likeness([*short, 9]), likeness([*long, 8])) is None
