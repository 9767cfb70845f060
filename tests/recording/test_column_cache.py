"""Cached columns equal the source or are ignored, and never cause an error."""

from __future__ import annotations

import os
import pickle
import time
import zipfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allocsim.errors import RecordingError
from allocsim.recording import Recording, load, store, write_npz
from allocsim.recording.files import _load
from allocsim.workload import oom, streams, write_recording
from tests.recording.history import training_step

Reads = list[str]


def same(left: Any, right: Any) -> bool:
    """Return True if two values are equal in every field."""
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and bool(np.array_equal(left, right))
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if hasattr(left, "__dataclass_fields__"):
        names = [part.name for part in fields(left)]
        return all(same(getattr(left, name), getattr(right, name)) for name in names)
    return bool(left == right)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache folder of this test, which also caches small recordings."""
    monkeypatch.delenv("ALLOCSIM_NO_CACHE")
    monkeypatch.setenv("ALLOCSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "_LONG", 1)
    return tmp_path / "cache" / "columns"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Return the list of sources that are read."""
    found: Reads = []

    def read(path: str) -> Recording:
        found.append(path)
        return _load(path)

    monkeypatch.setattr("allocsim.recording.files._load", read)
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "run.pickle"
    history = training_step()
    history.oom(1 << 30, 5)
    path.write_bytes(pickle.dumps(history.snapshot(), protocol=4))
    return path


def test_second_load_reads_only_the_cache(folder: Path, reads: Reads, source: Path) -> None:
    first = load(source)
    assert len(list(folder.iterdir())) == 1
    second = load(source)
    assert reads == [str(source)]
    assert same(first, second)
    assert second.path == str(source)


@pytest.mark.parametrize("make", [oom, streams])
def test_cached_columns_are_the_whole_recording(
    folder: Path, reads: Reads, tmp_path: Path, make: Callable[[], Recording]
) -> None:
    path = tmp_path / "made.pickle.gz"
    write_recording(make(), path)
    assert same(load(path), load(path))
    assert len(reads) == 1
    assert folder.is_dir()


def test_cache_keeps_a_zipped_snapshot_but_no_column_file(
    folder: Path, reads: Reads, source: Path
) -> None:
    """Both begin with the same bytes, but columns load quickly without the cache."""
    packed, columns = source.with_name("a.zip"), source.with_name("a.npz")
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(source, "run.pickle")
    write_npz(_load(str(source)), columns)
    for path in (packed, columns):
        assert same(load(path).devices, load(path).devices)
    assert reads == [str(packed), str(columns), str(columns)]
    assert len(list(folder.iterdir())) == 1


def test_changed_source_is_read_again(folder: Path, reads: Reads, source: Path) -> None:
    load(source)
    history = training_step()
    history.alloc(12345)
    source.write_bytes(pickle.dumps(history.snapshot(), protocol=4))
    assert len(load(source).devices[0]) == len(history.snapshot()["device_traces"][0])
    assert len(reads) == 2
    load(source)
    assert len(reads) == 2
    assert len(list(folder.iterdir())) == 1


def test_cache_detects_a_change_hidden_by_size_and_time(
    folder: Path, reads: Reads, source: Path
) -> None:
    before, found = load(source), source.stat()
    data = source.read_bytes()
    changed = data.replace((1000).to_bytes(2, "little"), (1001).to_bytes(2, "little"))
    assert changed != data
    source.write_bytes(changed)
    os.utime(source, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert source.stat().st_size == found.st_size
    after = load(source)
    assert len(reads) == 2
    assert not same(before, after)
    assert folder.is_dir()


def test_cache_treats_a_copy_as_another_source(folder: Path, reads: Reads, source: Path) -> None:
    load(source)
    copy = source.with_name("copy.pickle")
    copy.write_bytes(source.read_bytes())
    assert load(copy).path == str(copy)
    assert reads == [str(source), str(copy)]
    assert len(list(folder.iterdir())) == 2


def test_cache_of_another_reader_version_is_not_used(
    folder: Path, reads: Reads, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(source)
    monkeypatch.setattr(store, "_readers", lambda: "another version")
    load(source)
    load(source)
    assert len(reads) == 2
    assert len(list(folder.iterdir())) == 1


@given(data=st.data())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damaged_cache_file_is_ignored(folder: Path, source: Path, data: st.DataObject) -> None:
    truth = load(source)
    (kept,) = folder.iterdir()
    content = bytearray(kept.read_bytes())
    damage = data.draw(st.sampled_from(["flip", "cut", "cut out", "put in", "other"]))
    at = data.draw(st.integers(0, len(content) - 1))
    if damage == "flip":
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    elif damage == "cut":
        del content[at:]
    elif damage == "cut out":
        del content[at : at + data.draw(st.integers(1, 40))]
    elif damage == "put in":
        content[at:at] = data.draw(st.binary(min_size=1, max_size=40))
    else:
        content = bytearray(data.draw(st.binary(max_size=200)))
    kept.write_bytes(content)
    assert same(load(source), truth)
    kept.unlink(missing_ok=True)


def test_cache_ignores_a_file_with_another_key(folder: Path, source: Path) -> None:
    """The file is complete and valid, but of another recording."""
    truth = load(source)
    (kept,) = folder.iterdir()
    other = source.with_name("other.pickle")
    write_recording(oom(), other)
    load(other)
    (others,) = (path for path in folder.iterdir() if path != kept)
    kept.write_bytes(others.read_bytes())
    assert same(load(source), truth)


@pytest.mark.parametrize(
    "key", [b"{}", b"[1]", b"null", b'{"size":' + b"9" * 5000 + b"}", b"[" * 4000]
)
def test_cache_ignores_an_invalid_key(folder: Path, source: Path, key: bytes) -> None:
    truth = load(source)
    (kept,) = folder.iterdir()
    kept.write_bytes(b"allocsim columns 1\n" + key + b"\n")
    assert same(load(source), truth)


def test_broken_source_is_refused_and_not_cached(folder: Path, source: Path) -> None:
    load(source)
    (kept,) = folder.iterdir()
    source.write_bytes(b"\x80\x04nonsense")
    for _ in range(2):
        with pytest.raises(RecordingError, match=str(source)):
            load(source)
    source.unlink()
    with pytest.raises(RecordingError, match="does not exist"):
        load(source)
    assert list(folder.iterdir()) == [kept]


def test_small_recordings_and_column_files_are_not_cached(
    folder: Path, reads: Reads, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = source.with_name("run.npz")
    write_npz(load(source), columns)
    (kept,) = folder.iterdir()
    load(columns)
    assert list(folder.iterdir()) == [kept]
    kept.unlink()
    monkeypatch.setattr(store, "_LONG", 1000)
    load(source)
    assert not list(folder.iterdir())
    assert len(reads) == 3


def test_cache_can_be_switched_off(
    folder: Path, reads: Reads, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLOCSIM_NO_CACHE", "1")
    load(source)
    assert not folder.exists()
    monkeypatch.delenv("ALLOCSIM_NO_CACHE")
    load(source)
    monkeypatch.setenv("ALLOCSIM_NO_CACHE", "1")
    load(source)
    assert len(reads) == 3


def test_load_works_where_the_cache_cannot_be_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALLOCSIM_NO_CACHE")
    monkeypatch.setattr(store, "_LONG", 1)
    (tmp_path / "file").write_text("not a folder")
    for place in (tmp_path / "file", "/dev/null", "\0"):
        if "\0" in str(place):
            monkeypatch.setattr(Path, "home", lambda: Path("\0"))
            monkeypatch.delenv("ALLOCSIM_CACHE")
        else:
            monkeypatch.setenv("ALLOCSIM_CACHE", str(place))
        assert len(load(source).devices) == 1


def test_whole_file_leaves_nothing_on_a_full_disk(
    folder: Path, reads: Reads, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Recording, file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "dump_npz", full)
    assert load(source).devices
    assert not list(folder.iterdir())
    assert len(reads) == 1


def test_cache_deletes_the_least_recently_used_file_first(
    folder: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(source)
    (first,) = folder.iterdir()
    monkeypatch.setattr(store, "_MOST_BYTES", int(2.5 * first.stat().st_size))
    second, third = tmp_path / "2.pickle", tmp_path / "3.pickle"
    for path in (second, third):
        path.write_bytes(source.read_bytes())
    load(second)
    os.utime(first, ns=(1, 1))
    load(source)  # used, so that the second is now the oldest
    assert first.stat().st_mtime_ns > 1
    (other,) = (path for path in folder.iterdir() if path != first)
    os.utime(other, ns=(1, 1))
    load(third)
    assert first in folder.iterdir()
    assert other not in folder.iterdir()
    assert len(list(folder.iterdir())) == 2


def test_cache_is_readable_by_the_user_only(folder: Path, source: Path) -> None:
    load(source)
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_cached_load_is_faster(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording with 250,000 entries, the smallest that is cached, loads faster."""
    from allocsim.workload import training  # noqa: PLC0415

    monkeypatch.undo()
    monkeypatch.delenv("ALLOCSIM_NO_CACHE")
    monkeypatch.setenv("ALLOCSIM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "big.pickle"
    write_recording(training(entries=store._LONG, ragged=True), path)
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        found = load(path)
        seconds.append(time.perf_counter() - begin)
    assert len(found.devices[0]) >= store._LONG
    assert len(list(folder.iterdir())) == 1
    assert seconds[1] < seconds[0] / 2
