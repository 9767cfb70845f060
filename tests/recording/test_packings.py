"""Compressed recordings are read like plain ones; errors are one sentence, within bounds."""

from __future__ import annotations

import base64
import bz2
import contextlib
import gzip
import io
import json
import lzma
import pickle
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from allocsim.errors import RecordingError
from allocsim.recording import load
from tests.recording.history import training_step
from tests.recording.test_hostile import refusal


def zipped(data: bytes, name: str = "snapshot.pickle", method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr(name, data)
    return file.getvalue()


def in_two(pack: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return a compressor that writes two consecutive streams, as `cat` produces them."""
    return lambda data: pack(data[: len(data) // 2]) + pack(data[len(data) // 2 :])


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "zstd": zstandard.compress,
    "zip": zipped,
    "stored zip": lambda data: zipped(data, method=zipfile.ZIP_STORED),
    "two xz streams": in_two(lzma.compress),
    "two zstd frames": in_two(zstandard.compress),
    "two gzip members": in_two(gzip.compress),
    "padded xz": lambda data: lzma.compress(data) + bytes(8),
}
FORMS: dict[str, Callable[[object], bytes]] = {
    "pickle": lambda value: pickle.dumps(value, protocol=4),
    "json": lambda value: json.dumps(value).encode(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("packing", PACKED)
def test_compression_is_detected_from_the_first_bytes(
    packing: str, form: str, tmp_path: Path
) -> None:
    plain = FORMS[form](training_step().snapshot())
    (tmp_path / "plain").write_bytes(plain)
    (tmp_path / "a.pickle").write_bytes(PACKED[packing](plain))
    left, right = load(tmp_path / "plain"), load(tmp_path / "a.pickle")
    assert list(left.devices[0]) == list(right.devices[0])
    assert left.devices[0].segments == right.devices[0].segments


@pytest.mark.parametrize("packing", ["gzip", "xz", "zstd", "zip"])
@pytest.mark.parametrize("kept", [0.3, 0.9, 0.99])
def test_truncated_compressed_file_is_refused(packing: str, kept: float, tmp_path: Path) -> None:
    whole = PACKED[packing](pickle.dumps(training_step().snapshot(), protocol=4))
    path = tmp_path / "a"
    path.write_bytes(whole[: int(len(whole) * kept)])
    message = refusal(path)
    assert f"is damaged as a {packing} file" in message or "is damaged as a column file" in message


@pytest.mark.parametrize("packing", ["gzip", "xz", "zstd", "zip"])
def test_compression_bomb_ends_at_the_limit_in_the_error(
    packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allocsim.recording.packings._MIN_UNPACKED", 1 << 20)
    monkeypatch.setattr("allocsim.recording.packings._MAX_RATIO", 8)
    path = tmp_path / "a"
    path.write_bytes(PACKED[packing](b"[" + b" " * (1 << 22)))
    assert "unpacks to more than 1048576 bytes, too many for its own size" in refusal(path)


def checked(header: bytes) -> bytes:
    return header + zlib.crc32(header).to_bytes(4, "little")


XZ_OF_2_GIB = b"\xfd7zXZ\x00" + checked(b"\0\0") + checked(b"\x02\0\x21\x01\x26\0\0\0") + bytes(64)
"""Stream header, and header of a block with a dictionary of 2 GiB (property 38)."""
ZSTD_OF_1_GIB = bytes.fromhex("28b52ffd 00 a0 010000")
"""Empty frame whose window is 2 to the power of 10 + 20 bytes."""


def test_decompression_tables_of_a_small_file_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(XZ_OF_2_GIB)
    assert "is damaged as a xz file (Memory usage limit exceeded)" in refusal(path)
    path.write_bytes(ZSTD_OF_1_GIB)
    assert "is damaged as a zstd file" in refusal(path)


def test_file_that_is_compressed_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(lzma.compress(b"x")))
    assert "is xz inside gzip" in refusal(path)
    path.write_bytes(zipped(gzip.compress(b"x")))
    assert "is gzip inside zip" in refusal(path)


def test_archive_of_several_files_or_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.pickle", b"x")
        archive.writestr("b.pickle", b"x")
    assert "is a zip archive, expected a PyTorch memory snapshot" in refusal(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.mkdir("folder")
    assert "is a zip archive" in refusal(path)


def test_archive_with_another_compression_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        path.write_bytes(zipped(b"[]", method=method))
        assert "packed by other means than deflate" in refusal(path)
    path.write_bytes(bz2.compress(b"[]"))
    assert "is binary data that begins with bytes 42 5a 68" in refusal(path)


@pytest.mark.parametrize("name", ["../../slip.pickle", "/slip.pickle", "..\\slip.pickle"])
def test_name_of_a_zip_member_is_not_used_as_a_path(name: str, tmp_path: Path) -> None:
    """The contents are read, and nothing is written under the member's name."""
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    path = folder / "snapshot.zip"
    path.write_bytes(zipped(pickle.dumps(training_step().snapshot(), protocol=4), name))
    assert len(load(path).devices) == 1
    assert [each.name for each in tmp_path.rglob("*") if each.is_file()] == ["snapshot.zip"]
    assert not Path("/slip.pickle").exists()


@pytest.mark.parametrize("name", ["\0", "\0\0", "/", "x\0y"])
def test_zip_member_with_an_empty_name_is_refused(name: str, tmp_path: Path) -> None:
    """The module zipfile cuts names at a NUL, so a name may be empty."""
    path = tmp_path / "a.zip"
    data = zipped(b"[]", "n" * len(name)).replace(b"n" * len(name), name.encode())
    path.write_bytes(data)
    with contextlib.suppress(RecordingError):
        assert load(path).devices == ()


@pytest.mark.parametrize(
    "name", ["../../escaped", "/escaped-allocsim", "a/../../escaped", "..\\escaped"]
)
def test_name_in_an_archive_is_not_used_as_a_path(name: str, tmp_path: Path) -> None:
    inside = tmp_path / "deep" / "er"
    inside.mkdir(parents=True)
    path = inside / "a.zip"
    path.write_bytes(zipped(pickle.dumps(training_step().snapshot(), protocol=4), name))
    load(path)
    assert [each.name for each in tmp_path.rglob("*") if each.is_file()] == ["a.zip"]


def test_zstd_without_its_package_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "a.zst"
    path.write_bytes(zstandard.compress(b"[]"))
    assert "pip install zstandard" in refusal(path)


# -- the page of trace_plot ----------------------------------------------------------------

PAGE = """
<!DOCTYPE html>
<html>
<body>
<script type="module">
import {add_local_files} from "https://example.org/MemoryViz.js"
const local_files = %s
add_local_files(local_files, 'Active Memory Timeline')
</script>
</body>
"""


def page_of(*pickles: bytes) -> str:
    """Return a page with pickles as `trace_plot` embeds them: padded, in base64."""
    files = [
        {"name": "snapshot.pickle", "base64": base64.b64encode(p + bytes(3 - len(p) % 3)).decode()}
        for p in pickles
    ]
    return PAGE % json.dumps(files)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_snapshot_in_a_page_is_read(protocol: int, tmp_path: Path) -> None:
    value = training_step().snapshot()
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(value, protocol=4))
    (tmp_path / "a.html").write_text(page_of(pickle.dumps(value, protocol=protocol)))
    left, right = load(tmp_path / "a.pickle"), load(tmp_path / "a.html")
    assert list(left.devices[0]) == list(right.devices[0])
    assert left.devices[0].segments == right.devices[0].segments


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("allocsim-was-here"),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html>nothing</html>", "is a web page or XML file"),
        (page_of(pickle.dumps({"segments": []}), pickle.dumps([])), "several snapshots"),
        (PAGE % '[{"base64": "AAAA*"}]', "without the snapshot in it"),
        (PAGE % '[{"base64": "AAAAA"}]', "whose snapshot is damaged"),
        (PAGE % '[{"base64": ""}]', "an empty snapshot"),
        (page_of(pickle.dumps(Evil())), "nothing in it was run"),
        (
            "<html><title>GPU Memory Timeline HTML</title><img src='data:image/png;base64,x'>",
            "the page of PyTorch's memory timeline, a picture without numbers",
        ),
        ("<title>a: allocsim report</title>", "is a page that allocsim wrote"),
    ],
)
def test_page_without_a_valid_snapshot_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text(text)
    assert message in refusal(path)


def test_page_with_segments_only_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text(page_of(pickle.dumps(training_step().snapshot()["segments"])))
    assert load(path).layout == "segment list"
    with pytest.raises(RecordingError):
        load(tmp_path)
