"""Report of the lines where a program reads values back from a phantom device."""

from __future__ import annotations

import ctypes
import inspect
from pathlib import Path

import pytest

from allocsim.phantom import Stubs
from allocsim.phantom.at_exit import Site, places_of, read_sites, reads_text, watch_reads
from allocsim.recording import Provenance
from allocsim.replaying import replay
from tests.recording.test_provenance import snapshot, written


@pytest.fixture(scope="module")
def cudart(libraries: Stubs) -> ctypes.CDLL:
    # The device is found as in a program that preloads it.
    ctypes.CDLL(str(libraries.device), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(libraries.cudart))


def test_read_sites_have_each_line_that_copies_to_the_host(cudart: ctypes.CDLL) -> None:
    on_device, on_host = ctypes.c_void_p(), ctypes.create_string_buffer(b"\xff" * 64, 64)
    cudart.cudaMalloc(ctypes.byref(on_device), ctypes.c_size_t(64))

    def copy(to: object, source: object, size: int) -> None:
        cudart.cudaMemcpy(to, source, ctypes.c_size_t(size), 4)

    copy(on_host, on_device, 8)  # not recorded yet
    assert on_host.raw[:9] == bytes(8) + b"\xff"
    assert watch_reads(True)
    line = inspect.currentframe().f_lineno  # type: ignore[union-attr]
    for _ in range(3):
        copy(on_host, on_device, 8)
    copy(on_device, on_host, 64)
    times_and_sizes = {(times, most) for times, most, _ in read_sites()}
    assert times_and_sizes == {(3, 8)}
    ((_, _, frames),) = read_sites()
    here = (__file__, line + 2)
    assert frames[1] == here
    assert frames[0][1] < here[1]


def sites(*reads: tuple[int, int, str, int]) -> list[Site]:
    library = ("/lib/python3/site-packages/torch/nn/modules/module.py", 1500)
    return [(times, most, [library, (file, line)]) for times, most, file, line in reads]


def test_places_of_reads_name_the_program_and_no_library() -> None:
    found = sites((1, 8, "/x/train.py", 31), (2, 8, "/x/train.py", 31), (1, 4096, "/x/eval.py", 7))
    assert places_of(found) == [("/x/train.py:31", 3), ("/x/eval.py:7", 1)]
    alone = [(1, 8, [("/lib/python3/site-packages/run.py", 9)])]
    assert places_of(alone) == [("/lib/python3/site-packages/run.py:9", 1)]


def test_places_of_reads_have_a_logged_loss_last(tmp_path: Path) -> None:
    """A mask's count also has four bytes, so the line distinguishes the two."""
    program = tmp_path / "train.py"
    program.write_text("log(loss.item())\nx = x[mask]\n")
    loss, mask = (100, 4, str(program), 1), (1, 4, str(program), 2)
    assert [place[-2:] for place, _ in places_of(sites(loss, mask))] == [":2", ":1"]


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ([], ""),
        ([("train.py:31", 1)], "train.py:31"),
        ([("a.py:1", 1200), ("a.py:2", 1)], "a.py:1 (1,200 times), a.py:2"),
        ([(f"a.py:{n}", 1) for n in range(1, 6)], "a.py:1, a.py:2, a.py:3, 2 more places"),
        ([(f"a.py:{n}", 1) for n in range(1, 5)], "a.py:1, a.py:2, a.py:3, 1 more place"),
    ],
)
def test_reads_text_names_three_places(places: list[tuple[str, int]], text: str) -> None:
    assert reads_text(places) == text


def test_replay_reports_values_unknown_to_the_phantom(tmp_path: Path) -> None:
    made = Provenance(is_phantom=True, reads_back="train.py:31 (3 times)", guessed="cuDNN, cuFFT")
    recording = written(tmp_path / "a.pickle", snapshot(allocsim=made.plain()))
    notes = replay(recording).devices[0].notes
    assert (
        "the program read values back at train.py:31 (3 times): they are zero on a phantom GPU, so "
        "sizes that depend on them may be wrong"
    ) in notes
    assert (
        "workspaces of cuDNN, cuFFT have the smallest possible size on a phantom GPU; a real GPU "
        "may use more"
    ) in notes
