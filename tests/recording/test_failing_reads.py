"""Memory and disk errors at every read of every reader end in one sentence."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from allocsim.errors import RecordingError
from allocsim.recording import load, write_npz
from tests.recording.history import training_step, write

LOAD = importlib.import_module("allocsim.recording.files")
SNAPSHOT = importlib.import_module("allocsim.recording.snapshot")
SOURCE = importlib.import_module("allocsim.recording.source")
UNPICKLE = importlib.import_module("allocsim.recording.unpickle")

Fault = Callable[[bytes], bytes]


def no_memory(_: bytes) -> bytes:
    raise MemoryError


def no_disk(_: bytes) -> bytes:
    raise OSError(5, "Input/output error")


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def nothing(_: bytes) -> bytes:
    return b""


class Failing(io.BufferedReader):
    """File whose read number `at` fails."""

    def __init__(self, path: str, at: int, fault: Fault) -> None:
        super().__init__(io.FileIO(path))
        self.reads, self._wrong, self._fault = 0, at, fault

    def _count(self, data: bytes) -> bytes:
        self.reads += 1
        return self._fault(data) if self.reads == self._wrong + 1 else data

    def read(self, size: int | None = -1) -> bytes:
        return self._count(super().read(size))

    def read1(self, size: int = -1) -> bytes:
        return self._count(super().read1(size))

    def readinto(self, buffer: Any) -> int:
        data = self._count(super().read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def readline(self, size: int | None = -1) -> bytes:
        return self._count(super().readline(size))


def files(folder: Path) -> Iterator[Path]:
    """Yield the same recording in every format."""
    snapshot = training_step().snapshot()
    snapshot["device_traces"][0] = [dict(row) for row in snapshot["device_traces"][0] * 6]
    plain = write(snapshot, folder / "plain.pickle")
    yield plain
    yield write(snapshot, folder / "old.pickle", protocol=2)
    (folder / "a.json").write_text(json.dumps(snapshot))
    yield folder / "a.json"
    (folder / "packed.pickle").write_bytes(gzip.compress(plain.read_bytes()))
    yield folder / "packed.pickle"
    write_npz(load(plain), folder / "a.npz")
    yield folder / "a.npz"


@pytest.mark.parametrize("fault", [no_memory, no_disk, half, nothing])
@pytest.mark.parametrize("large", [0, 1 << 60], ids=["straight", "as objects"])
def test_load_reports_a_read_fault_anywhere_in_a_sentence(
    fault: Fault, large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Failing] = []
    monkeypatch.setattr(LOAD, "_LARGE", large)
    monkeypatch.setattr(LOAD, "_BYTES_AN_OPERATION", 1)
    for path in list(files(tmp_path)):
        whole, at = load(path), 0
        while True:

            def failing(name: str, at: int = at) -> BinaryIO:
                opened.append(Failing(name, at, fault))
                return opened[-1]

            with monkeypatch.context() as patch:
                patch.setattr(SOURCE, "_regular", failing)
                try:
                    found = load(path)
                    assert len(found.device(0)) == len(whole.device(0)), "less, without a word"
                except RecordingError as error:
                    assert str(error).isprintable()
            if opened[-1].reads <= at:
                break
            at += 1
        assert at > 0, path


def test_load_reports_memory_that_runs_out_between_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail while objects or columns are created."""

    def no_room(*_: object, **__: object) -> None:
        raise MemoryError

    path = write(training_step().snapshot(), tmp_path / "a.pickle")
    (tmp_path / "a.json").write_text(json.dumps(training_step().snapshot()))
    for module, name, file in [
        (UNPICKLE, "scan", path),
        (UNPICKLE, "_PlainUnpickler", path),
        (SNAPSHOT, "_read_trace", path),
        (SNAPSHOT, "_read_trace", tmp_path / "a.json"),
        (SNAPSHOT, "SegmentReader", path),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, no_room)
            with pytest.raises(RecordingError, match="does not fit in this machine's memory"):
                load(file)


def test_read_straight_reports_memory_that_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise MemoryError

    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(training_step().snapshot(), 4))
    monkeypatch.setattr(LOAD, "_LARGE", 0)
    monkeypatch.setattr(LOAD, "read_straight", no_room)
    with pytest.raises(RecordingError, match="does not fit in this machine's memory"):
        load(path)
