"""Arriving recordings: each is read once when complete, and invalid files are reported."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from allocsim import CachingAllocator
from allocsim.analysis.watch import Arrival, Arrivals, Unreadable
from allocsim.units import MIB

LONG_AFTER = 1e12


def asks(gpu: CachingAllocator) -> None:
    gpu.malloc(30 * MIB)


def test_scan_reads_a_recording_once_until_it_changes(
    tmp_path: Path, write: Callable[..., Path]
) -> None:
    arrivals = Arrivals(tmp_path)
    assert not list(arrivals.scan(LONG_AFTER))
    path = write(asks, name="run.pickle")
    (found,) = arrivals.scan(LONG_AFTER)
    assert isinstance(found, Arrival)
    assert (found.path, found.ooms, found.has_failed) == (str(path), 0, False)
    assert (found.reserved_bytes, found.allocated_bytes) == (30 * MIB, 30 * MIB)
    assert not list(arrivals.scan(LONG_AFTER))
    os.utime(path, (5, 5))
    assert len(list(arrivals.scan(LONG_AFTER))) == 1
    (tmp_path / "below").mkdir()
    write(asks, name="below/run.pickle")
    assert len(list(arrivals.scan(LONG_AFTER))) == 1


def test_scan_waits_for_a_growing_file(tmp_path: Path, write: Callable[..., Path]) -> None:
    path = write(asks, name="run.pickle")
    whole = path.read_bytes()
    now = path.stat().st_mtime
    arrivals = Arrivals(tmp_path)
    for part in (3, 2):
        path.write_bytes(whole[: len(whole) // part])
        os.utime(path, (now, now))
        assert not list(arrivals.scan(now + 0.5))
        assert arrivals.waits
    path.write_bytes(whole)
    os.utime(path, (now, now))
    assert not list(arrivals.scan(now + 1)), "it has grown since the last scan"
    (found,) = arrivals.scan(now + 1.5)
    assert isinstance(found, Arrival) and not arrivals.waits


def test_unreadable_file_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "bad.pickle").write_bytes(b"\x80\x04no")
    (tmp_path / "notes.txt").write_text("nothing of ours")
    (tmp_path / "half.pickle.part").write_bytes(b"\x80")
    (tmp_path / "gone.pickle").symlink_to("nowhere")
    arrivals = Arrivals(tmp_path)
    (found,) = arrivals.scan(LONG_AFTER)
    assert isinstance(found, Unreadable) and "bad.pickle" in found.reason
    assert not list(arrivals.scan(LONG_AFTER))


def test_scan_of_a_deleted_folder_finds_nothing(tmp_path: Path) -> None:
    assert not list(Arrivals(tmp_path / "nowhere").scan(LONG_AFTER))


@pytest.mark.parametrize("has_room", [True, False])
def test_recording_with_an_error_is_reported_as_failed(
    tmp_path: Path, write: Callable[..., Path], has_room: bool
) -> None:
    def fails(gpu: CachingAllocator) -> None:
        gpu.malloc(30 * MIB)
        with contextlib.suppress(RuntimeError):
            gpu.malloc(90 * MIB)

    write(fails, name="run.pickle", memory="200MiB" if has_room else "100MiB")
    (found,) = Arrivals(tmp_path).scan(LONG_AFTER)
    assert isinstance(found, Arrival) and found.has_failed is not has_room
