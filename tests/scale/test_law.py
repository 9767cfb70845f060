"""Laws of constructed programs, where the test chooses the bytes of every request."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim import CachingAllocator, load
from allocsim.errors import ConfigError, RecordingError
from allocsim.fitting.scale import Scaling, scaling_of
from allocsim.recording import Action, Recording, trimmed
from allocsim.units import KIB, MIB

Sized = Callable[[CachingAllocator, Mapping[str, int]], object]


def run(program: Sized, folder: Path, at: Mapping[str, int], memory: str = "64GiB") -> Recording:
    """Return the recording of `program` at some sizes."""
    gpu = CachingAllocator(memory, record_history=True)
    program(gpu, at)
    path = folder / f"{at}.pickle"
    path.write_bytes(pickle.dumps(gpu.snapshot(), protocol=4))
    return load(path)


def scaling(program: Sized, folder: Path, *sizes: dict[str, int]) -> Scaling:
    return scaling_of([(run(program, folder, at), at) for at in sizes])


def peak(program: Sized, at: Mapping[str, int]) -> int:
    """Return the bytes that the program reserves at its peak, at the sizes `at`."""
    gpu = CachingAllocator("64GiB")
    program(gpu, at)
    return gpu.statistics().all.reserved_bytes.peak


Step = tuple[int, int, bool]
"""Fixed bytes of a request, bytes per unit of batch, and True if its block is freed at once."""

steps = st.lists(
    st.tuples(st.integers(0, 8 * MIB), st.integers(1, 3 * MIB), st.booleans()), min_size=1
)


@given(steps=steps, target=st.integers(1, 40))
def test_what_is_affine_is_predicted_to_the_byte(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], target: int
) -> None:
    def program(gpu: CachingAllocator, at: Mapping[str, int]) -> None:
        for fixed, each, is_freed in steps:
            block = gpu.malloc(fixed + each * at["batch"])
            if is_freed:
                gpu.free(block)

    folder = tmp_path_factory.mktemp("runs")
    found = scaling(program, folder, {"batch": 2}, {"batch": 5}).at({"batch": target})
    assert found.peak_reserved_bytes == peak(program, {"batch": target})
    assert found.rounded == 0


def test_two_sizes_act_together(tmp_path: Path) -> None:
    def program(gpu: CachingAllocator, at: Mapping[str, int]) -> None:
        gpu.malloc(at["batch"] * at["length"] * KIB)
        gpu.malloc(at["length"] * MIB)
        gpu.malloc(5 * MIB)

    corners = [{"batch": b, "length": n} for b in (2, 3) for n in (16, 40)]
    far = {"batch": 9, "length": 200}
    assert scaling(program, tmp_path, *corners).at(far).peak_reserved_bytes == peak(program, far)
    with pytest.raises(ConfigError, match="how batch and length act together; expected 4"):
        scaling(program, tmp_path, *corners[:3])


def test_a_size_of_its_own_for_each_run_stays_what_it_was(tmp_path: Path) -> None:
    def program(gpu: CachingAllocator, at: Mapping[str, int]) -> None:
        gpu.malloc(at["batch"] * at["layers"] * MIB)

    law = scaling(program, tmp_path, {"batch": 1, "layers": 4}, {"batch": 2, "layers": 4})
    assert law.at({"batch": 7}).at == {"batch": 7, "layers": 4}
    with pytest.raises(ConfigError, match="every recording is of layers=4"):
        law.at({"batch": 7, "layers": 5})
    with pytest.raises(ConfigError, match="unknown size; the recordings have batch, layers"):
        law.at({"width": 7})
    with pytest.raises(ConfigError, match=r"no value of batch; expected batch=N"):
        law.at({})


def test_a_request_that_would_vanish_follows_no_law(tmp_path: Path) -> None:
    def program(gpu: CachingAllocator, at: Mapping[str, int]) -> None:
        gpu.malloc((10 - at["batch"]) * MIB)

    law = scaling(program, tmp_path, {"batch": 1}, {"batch": 2})
    assert law.at({"batch": 9}).peak_reserved_bytes == 2 * MIB
    with pytest.raises(ConfigError, match=r"request 0 .*follows no law"):
        law.at({"batch": 10})


def test_broken_bytes_are_rounded_up_and_counted(tmp_path: Path) -> None:
    def program(gpu: CachingAllocator, at: Mapping[str, int]) -> None:
        gpu.malloc(at["batch"] ** 2 * 1000 + at["batch"])

    law = scaling(program, tmp_path, {"batch": 2}, {"batch": 4})
    assert law.at({"batch": 3}).rounded == 0
    odd = scaling(lambda gpu, at: gpu.malloc(at["batch"] // 2 + 1), tmp_path, {"batch": 2},
                  {"batch": 5})  # fmt: skip
    assert odd.at({"batch": 3}).rounded == 1


def test_the_first_step_that_differs_is_named(tmp_path: Path) -> None:
    def program(gpu: CachingAllocator, at: Mapping[str, int]) -> None:
        blocks = [gpu.malloc(at["batch"] * MIB) for _ in range(3)]
        gpu.free(blocks[at["batch"] % 2])

    with pytest.raises(RecordingError, match=r"a free of request 1 .*a free of request 0"):
        scaling(program, tmp_path, {"batch": 2}, {"batch": 3})

    def longer(gpu: CachingAllocator, at: Mapping[str, int]) -> None:
        gpu.malloc(at["batch"] * MIB)
        if at["batch"] > 2:
            gpu.malloc(7 * MIB)

    with pytest.raises(RecordingError, match="nothing: the program ends"):
        scaling(longer, tmp_path, {"batch": 2}, {"batch": 3})


def test_a_run_that_failed_tells_of_no_other(tmp_path: Path) -> None:
    def program(gpu: CachingAllocator, at: Mapping[str, int]) -> None:
        for _ in range(at["batch"]):
            try:
                gpu.malloc(600 * MIB)
            except RuntimeError:
                return

    runs = [(run(program, tmp_path, {"batch": b}, "1GiB"), {"batch": b}) for b in (1, 2)]
    with pytest.raises(RecordingError, match="ran out of memory; expected"):
        scaling_of(runs)


def test_nothing_that_grows_has_no_largest(tmp_path: Path) -> None:
    law = scaling(lambda gpu, _: gpu.malloc(MIB), tmp_path, {"batch": 1}, {"batch": 2})
    with pytest.raises(ConfigError, match="makes no difference"):
        law.largest("batch", {}, "1GiB")


def test_not_even_one_may_fit(tmp_path: Path) -> None:
    law = scaling(
        lambda gpu, at: gpu.malloc(at["batch"] * 600 * MIB), tmp_path, {"batch": 2}, {"batch": 3}
    )
    found = law.largest("batch", {}, "512MiB")
    assert (found.fitting, found.failing.at) == (None, {"batch": 1})
    assert law.largest("batch", {}, "2GiB").fitting == law.at({"batch": 3}, device_memory="2GiB")


def from_the_middle(recording: Recording) -> Recording:
    """Return the part of a recording that begins when the first block is already allocated."""
    trace = recording.devices[0]
    first = int(np.flatnonzero(trace.action == Action.ALLOC)[0]) + 1
    return dataclasses.replace(recording, devices=(trimmed(trace, first, len(trace)),))


@pytest.mark.parametrize("grows", [False, True])
def test_what_was_there_before_must_be_the_same_at_every_size(
    tmp_path: Path, *, grows: bool
) -> None:
    def program(gpu: CachingAllocator, at: Mapping[str, int]) -> None:
        weights = gpu.malloc((at["batch"] if grows else 7) * 40 * MIB)
        gpu.malloc(at["batch"] * 30 * MIB)
        gpu.free(weights)

    runs = [(from_the_middle(run(program, tmp_path, {"batch": b})), {"batch": b}) for b in (2, 3)]
    if grows:
        with pytest.raises(RecordingError, match="begins with other blocks in use"):
            scaling_of(runs)
    else:
        found = scaling_of(runs).at({"batch": 9})
        assert found.peak_reserved_bytes == peak(program, {"batch": 9})
