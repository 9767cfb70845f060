"""Broken, foreign and hostile files end in one sentence, within bounded memory."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import struct
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import numpy as np
import pytest

from allocsim.errors import RecordingError
from allocsim.recording import load, write_npz
from tests.recording.history import training_step, write

LIMIT_MIB = 1024
SECONDS = 10


def refusal(path: Path) -> str:
    with pytest.raises(RecordingError) as error:
        load(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert len(message) < 600
    return message


FOREIGN = {
    "empty": (b"", "is empty"),
    "text": (b"epoch 1, loss 2.3\n", "is text that begins with 'epoch 1"),
    "page": (b"<!DOCTYPE html><html>", "is a web page"),
    "binary": (b"\x7fELF\x02\x01\x01\x00", "is binary data that begins with bytes 7f 45 4c 46"),
    "old pickle": (pickle.dumps({}, protocol=0), "a pickle of protocol 0 or 1"),
    "json": (b'{"segments": [', "is neither a pickle nor sound JSON"),
    "deep json": (b"[" * 100_000, "is nested too deeply"),
    "long number": (b'{"segments": ' + b"9" * 10_000 + b"}", "is neither a pickle nor"),
    "not utf-8": (b'{"segments": "\xff"}', "is neither a pickle nor sound JSON"),
    "gzipped text": (gzip.compress(b"hello"), "is text that begins with 'hello'"),
    "gzip twice": (gzip.compress(gzip.compress(b"x")), "is gzip inside gzip"),
    "broken gzip": (gzip.compress(pickle.dumps({"segments": []}))[:-9], "is damaged as a gzip"),
    "protocol 9": (b"\x80\x09.", "is not a pickle of protocol 2 to 5"),
    "one byte": (b"\x80", "is not a pickle of protocol 2 to 5"),
    "broken zip": (b"PK\x03\x04" + b"\0" * 100, "is damaged as a column file"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_file_is_refused_by_its_format(name: str, tmp_path: Path) -> None:
    data, message = FOREIGN[name]
    path = tmp_path / "a.pickle"
    path.write_bytes(data)
    assert message in refusal(path)


def test_load_refuses_a_path_without_a_file(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "missing")
    assert "is a directory" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refusal(tmp_path / "pipe")


def test_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    assert "as torch.save writes it" in refusal(tmp_path / "a.pt")


def test_file_cut_anywhere_is_refused_in_one_sentence(tmp_path: Path) -> None:
    whole = write(training_step().snapshot(), tmp_path / "whole").read_bytes()
    path = tmp_path / "a.pickle"
    for length in [*range(2, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:length])
        refusal(path)


def test_random_bytes_after_a_valid_beginning_are_refused(tmp_path: Path) -> None:
    source = random.Random(7)
    whole = bytearray(write(training_step().snapshot(), tmp_path / "whole").read_bytes())
    path = tmp_path / "a.pickle"
    for _ in range(300):
        data = whole.copy()
        for _ in range(source.randint(1, 8)):
            data[source.randrange(2, len(data))] = source.randrange(256)
        path.write_bytes(data)
        try:
            load(path)
        except RecordingError as error:
            assert "\n" not in str(error)


class Payload:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pwned",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_load_executes_no_pickle(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write({"segments": [Payload()]}, tmp_path / "a.pickle", protocol)
    assert "nothing in it was run" in refusal(path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", 1 << 100, ((1,),), (1, 2, 3), 1j])
def test_read_straight_declines_values_of_no_recording(value: object, tmp_path: Path) -> None:
    path = write({"segments": [], "x": value}, tmp_path / "a.pickle")
    assert "which a recording does not need" in refusal(path)


def billion(levels: int) -> bytes:
    """Return a pickle of nested lists, each with ten references to the next."""
    value: list[object] = []
    for _ in range(levels):
        value = [value] * 10
    return pickle.dumps({"segments": value}, protocol=4)


def repeated() -> bytes:
    """Return one entry repeated a hundred million times, in 45 kB."""
    entries = [training_step().snapshot()["device_traces"][0][0]] * 10_000
    return pickle.dumps({"segments": [], "device_traces": [entries] * 1000}, protocol=4)


def repeated_blocks() -> bytes:
    segment = training_step().snapshot()["segments"][0]
    segment["blocks"] = segment["blocks"] * 5_000
    return pickle.dumps({"segments": [segment] * 10_000}, protocol=4)


def repeated_frames() -> bytes:
    """Return ten thousand stacks, each a separate list of ten thousand known frames."""
    snapshot = training_step().snapshot()
    frame = snapshot["device_traces"][0][0]["frames"][0]
    snapshot["device_traces"] = [
        [{**snapshot["device_traces"][0][1], "frames": [frame] * 200} for _ in range(200)]
    ] * 200
    return pickle.dumps(snapshot, protocol=4)


HEAD = b"\x80\x04"


def bombs() -> dict[str, bytes]:
    return {
        "memo number": HEAD + b"}r\xff\xff\xff\x7f.",
        "memo number in a long file": HEAD + b"}" * 70_000 + b"r\xff\xff\xff\x00.",
        "text length": HEAD + b"X\xff\xff\xff\xffabc.",
        "long text length": HEAD + b"\x8d" + struct.pack("<Q", 1 << 60) + b"a.",
        "bytes length": HEAD + b"\x8e" + struct.pack("<Q", 1 << 60) + b"a.",
        "bytearray length": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"a.",
        "integer length": HEAD + b"\x8b\xff\xff\xff\x7f1.",
        "frame length": HEAD + b"\x95" + struct.pack("<Q", 1 << 62) + b"N.",
        "negative frame": HEAD + b"\x95" + b"\xff" * 8 + b"N.",
        "deep lists": HEAD + b"]" * 1_000_000 + b"a" * 999_999 + b".",
        "deep tuples": HEAD + b")" + b"\x85" * 1_000_000 + b".",
        "deep tuple as a key": HEAD + b"})" + b"\x85" * 1_000_000 + b"Ns.",
        "dictionaries": HEAD + b"}" * 30_000_000 + b".",
        "lists": HEAD + b"]" * 30_000_000 + b".",
        "marks": HEAD + b"(" * 30_000_000 + b".",
        "nothing": HEAD + b"N" * 30_000_000 + b".",
        "list that holds itself": HEAD + b"}\x8c\x08segments]\x94h\x00as.",
        "gzip of dictionaries": gzip.compress(HEAD + b"}" * 200_000_000 + b".", 1),
        "gzip of zeros": gzip.compress(b"\0" * 200_000_000, 1),
        "gzip of JSON": gzip.compress(b"[" + b"{}," * 60_000_000 + b"{}]", 1),
        "JSON objects": b"[" + b"{}," * 12_000_000 + b"{}]",
        "stack underflow": HEAD + b"aaaa.",
        "unhashable key": HEAD + b"}]Ns.",
        "append to a number": HEAD + b"K\x01Na.",
        "unknown memo": HEAD + b"h\x09.",
        "billion laughs": billion(12),
        "repeated entries": repeated(),
        "repeated blocks": repeated_blocks(),
        "repeated frames": repeated_frames(),
    }


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_compression_bombs_need_bounded_memory(tmp_path: Path) -> None:
    """All in one process with limited memory, so that excessive use ends it."""
    for number, data in enumerate(bombs().values()):
        (tmp_path / f"{number}.bomb").write_bytes(data)
    program = textwrap.dedent(f"""
        import pathlib, resource, time
        resource.setrlimit(resource.RLIMIT_AS, ({4 * LIMIT_MIB} << 20, {4 * LIMIT_MIB} << 20))
        from allocsim.errors import RecordingError
        from allocsim.recording import find_defects, load
        for path in sorted(pathlib.Path({str(tmp_path)!r}).glob("*.bomb")):
            began = time.process_time()
            try:
                found = find_defects(load(path))
                assert found, path
            except RecordingError as error:
                assert "\\n" not in str(error)
            assert time.process_time() - began < {SECONDS}, path
        # ru_maxrss would begin with the parent's; the kernel's own mark begins anew.
        status = pathlib.Path("/proc/self/status").read_text()
        print(int(status.partition("VmHWM:")[2].split()[0]) >> 10)
    """)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < LIMIT_MIB


def column_file(path: Path, **members: bytes) -> Path:
    write_npz(load(write(training_step().snapshot(), path.with_suffix(".pickle"))), path)
    with zipfile.ZipFile(path) as archive:
        whole = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (whole | {f"{k}.npy": v for k, v in members.items()}).items():
            if data:
                archive.writestr(name, data)
    return path


def npy(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array), allow_pickle=True)
    return file.getvalue()


HUGE = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,), }"


@pytest.mark.parametrize(
    ("member", "data", "message"),
    [
        ("0.addr", npy([1, 2]), "the column 0.addr is of int64, expected uint64"),
        ("0.addr", npy(np.zeros(2, np.uint64)), "differ in length"),
        ("0.addr", npy(np.array([{}])), "has the column '0.addr.npy' of object"),
        ("0.addr", npy(np.zeros((2, 2), np.uint64)), "expected one row of integers"),
        ("0.addr", b"", "the column 0.addr is missing"),
        ("0.action", npy(np.full(8, 77, np.uint8)), "runs from 77 to 77, expected 0 to 9"),
        ("0.frames", npy(np.full(8, 99, np.int32)), "runs from 99 to 99"),
        ("stacks.offsets", npy(np.array([0, 9])), "column stacks.offsets runs from 0 to 9"),
        ("recording", npy(np.frombuffer(b"[1", np.uint8)), "is damaged as a column file"),
        ("recording", npy(np.frombuffer(b"[]", np.uint8)), "the header is a list of 0"),
        ("recording", npy(np.frombuffer(b"{}", np.uint8)), "the header has no version"),
        ("0.addr", b"junk", "is damaged as a column file"),
        (
            "0.addr",
            b"\x93NUMPY\x01\x00" + struct.pack("<H", len(HUGE)) + HUGE,
            "expected one row of integers",
        ),
    ],
)
def test_damaged_column_file_is_refused(
    member: str, data: bytes, message: str, tmp_path: Path
) -> None:
    path = column_file(tmp_path / "a.npz", **{member: data})
    assert message in refusal(path)


def test_column_file_with_compressed_members_is_refused(tmp_path: Path) -> None:
    path = column_file(tmp_path / "a.npz")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\0" * 1_000_000)
    assert "compressed, expected it stored" in refusal(path)
