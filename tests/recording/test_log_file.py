"""Logs are read from any compression or a pipe, up to the length limit."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from allocsim.errors import RecordingError
from allocsim.recording import load, source
from allocsim.recording.source import read_log
from tests.recording.history import training_step
from tests.recording.test_packings import FORMS, PACKED, zipped

LOG = "step 1\nCUDA out of memory. Tried to allocate 2.00 MiB\n"


@pytest.mark.parametrize("packing", PACKED)
def test_compressed_log_is_read(packing: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(PACKED[packing](LOG.encode()))
    assert read_log(str(path)) == LOG


@pytest.mark.parametrize("packing", ["gzip", "xz", "zstd", "zip"])
def test_compressed_recording_is_not_read_as_a_log(packing: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(PACKED[packing](FORMS["pickle"](training_step().snapshot())))
    assert read_log(str(path)) is None
    assert load(path).layout == "snapshot"


@pytest.mark.parametrize("packing", ["gzip", "xz", "zstd", "zip"])
def test_damaged_log_is_refused_in_one_sentence(packing: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    whole = PACKED[packing](os.urandom(4000).hex().encode())
    path.write_bytes(whole[: len(whole) // 2])
    if packing == "zip":  # without its end it is not an archive, but binary data
        assert read_log(str(path)) is None
        return
    with pytest.raises(RecordingError, match=f"is damaged as a {packing} file"):
        read_log(str(path))


@pytest.mark.parametrize("packing", ["", "gzip", "xz", "zstd", "zip"])
def test_too_long_log_is_not_read_to_its_end(
    packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "LONGEST_LOG", 1 << 21)
    path = tmp_path / "a"
    data = LOG.encode() * 100_000
    path.write_bytes(PACKED[packing](data) if packing else data)
    with pytest.raises(RecordingError, match="has more than 2097152 bytes"):
        read_log(str(path))


def test_archive_with_negative_offsets_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """Found by `python -m tests.fuzz`: a seek that the system refuses."""
    path = tmp_path / "a"
    whole = bytearray(zipped(LOG.encode()))
    at = whole.rindex(b"PK\x05\x06") + 16  # the position of the archive's directory
    whole[at : at + 4] = (len(whole) + 99).to_bytes(4, "little")
    path.write_bytes(whole)
    with pytest.raises(RecordingError, match="cannot be read"):
        read_log(str(path))


def test_unreadable_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be read"):
        read_log(str(tmp_path / "none"))


def test_log_that_is_compressed_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(zipped(PACKED["gzip"](LOG.encode())))
    assert read_log(str(path)) is None
    with pytest.raises(RecordingError, match="gzip inside zip"):
        load(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a system with named pipes")
def test_log_in_a_pipe_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(LOG,))
    writer.start()
    assert read_log(str(path)) == LOG
    writer.join()
