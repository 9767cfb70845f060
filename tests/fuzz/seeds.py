"""Small valid inputs of every form, for fuzzers to change."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import lzma
import pickle
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from allocsim.recording import load, write_npz
from tests.recording.history import Plain, training_step
from tests.recording.profiler_writer import FORMS, random_program, trace_of
from tests.recording.test_packings import page_of, zipped

__all__ = ["seeds"]

_OOM = (
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total "
    b"capacity of 23.64 GiB of which 10.00 MiB is free. Including non-PyTorch memory, this process "
    b"has 23.00 GiB memory in use. Of the allocated memory 21.00 GiB is allocated by PyTorch, and "
    b"1.50 GiB is reserved by PyTorch but unallocated.\n"
)
_STARTED = (
    b"INFO 01-01 model_runner.py: Loading model weights took 14.2 GB\n"
    b"INFO 01-01 worker.py: Available KV cache memory: 6.63 GiB\n"
    b"INFO 01-01 core.py: GPU KV cache size: 49,648 tokens\n"
)
_OPTIONS = (
    b"\x0emax_split_size_mb:64,garbage_collection_threshold:0.8",
    b"\x0eexpandable_segments:True,roundup_power2_divisions:[256:1,512:2,>:8]",
    b"\x02backend:native,roundup_power2_divisions:4,pinned_num_register_threads:8",
)


def seeds(target: str) -> list[bytes]:
    """Return inputs that `target` accepts."""
    found: dict[str, Callable[[], Iterator[bytes]]] = {
        "recording": _recordings,
        "header": _headers,
        "message": _logs,
        "option_string": lambda: iter(_OPTIONS),
    }
    return list(found[target]())


def _logs() -> Iterator[bytes]:
    log = b"step 1\n" + _OOM * 2
    yield from (_OOM, log, _STARTED)
    yield from (pack(log) for pack in (gzip.compress, lzma.compress, zstandard.compress, zipped))


def _snapshot(release: str, times: int = 1) -> Plain:
    snapshot = training_step().snapshot(release)
    entries = snapshot["device_traces"][0] * times
    snapshot["device_traces"][0] = [dict(entry) for entry in entries]
    return snapshot


def _recordings() -> Iterator[bytes]:
    for release in ("2.0", "2.1", "2.6", "2.15"):
        snapshot = _snapshot(release)
        yield pickle.dumps(snapshot, 4)
        yield pickle.dumps(snapshot["segments"], 2)
    snapshot = _snapshot("2.15", times=4)
    file = io.BytesIO()
    pure: Any = importlib.import_module("pickle")
    size, pure._Framer._FRAME_SIZE_TARGET = pure._Framer._FRAME_SIZE_TARGET, 200
    try:
        pure._Pickler(file, 5).dump(snapshot)
    finally:
        pure._Framer._FRAME_SIZE_TARGET = size
    yield file.getvalue()
    yield pickle.dumps(snapshot, 3)
    yield json.dumps(_snapshot("2.15")).encode()
    yield gzip.compress(pickle.dumps(_snapshot("2.15"), 4), 1)
    yield _npz(_snapshot("2.15"))
    whole = pickle.dumps(_snapshot("2.15"), 4)
    for pack in (lzma.compress, zstandard.compress, zipped):
        yield pack(whole)
    yield page_of(whole).encode()
    yield from _requests()


def _requests() -> Iterator[bytes]:
    """Yield files with requests only: profiler traces of every form, a memory timeline, rows."""
    for form in FORMS.values():
        yield json.dumps(trace_of(random_program(1, steps=40), form)).encode()
    yield json.dumps([[i, 1 + i % 2, 512 * (i // 2), i % 8] for i in range(2, 22)]).encode()
    rows = [{"action": "alloc", "addr": 512 * i, "size": 512, "stream": 0} for i in range(1, 20)]
    yield json.dumps(rows).encode()
    yield "\n".join(map(json.dumps, rows)).encode()
    lines = ["action,addr,size,stream", *(f"{r['action']},{r['addr']},{r['size']},0" for r in rows)]
    yield "\n".join(lines).encode()


def _npz(snapshot: Plain) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        path.write_bytes(pickle.dumps(snapshot, 4))
        write_npz(load(path), Path(folder, "b.npz"))
        return Path(folder, "b.npz").read_bytes()


def _headers() -> Iterator[bytes]:
    header = b'{"w":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]},"__metadata__":{"a":"b"}}'
    yield struct.pack("<Q", len(header)) + header + bytes(12)
    key, kind = b"general.alignment", b"token_embd.weight"
    gguf = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
    gguf += struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, 32)
    gguf += struct.pack("<Q", len(kind)) + kind + struct.pack("<IQQIQ", 2, 32, 1, 0, 0)
    yield gguf + bytes(-len(gguf) % 32) + bytes(128)
