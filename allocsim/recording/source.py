"""Open recordings, and text logs that a user passes in place of a recording.

The format is detected from the first bytes.  Compressed files are unpacked to a temporary file.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import BinaryIO

from allocsim.errors import RecordingError
from allocsim.recording.packings import (
    ZIP_MAGIC,
    Compression,
    is_archive_of_one,
    packing_of,
    unpacked,
)

HEAD = 1 << 16
"""Number of bytes at the beginning of a file from which its format is detected."""

_MAGIC = 8
_LINES = re.compile(rb"\{[^\n]*\}[ \t\r]*\n\s*\{")
_ROW = re.compile(rb'\{[^\n]*"(?:action|event|op)"', re.IGNORECASE)
_CSV = re.compile(rb"[^\n]*\baction\b[^\n]*(?:\r?\n|$)", re.IGNORECASE)
_SEPARATORS = b",;\t"
_NAMED = re.compile(
    rb'"(?:device_traces|segments|segment_type|traceEvents|action|\[memory\])"', re.IGNORECASE
)
_LIST = re.compile(rb"\[\s*(?:[\[{\"\]]|-?\d[\d.eE+-]*\s*[,\]]|\Z)")
_NUMBERS = re.compile(rb"\[\s*\[\s*-?\d")


class Kind(Enum):
    """Format of a file, detected before its contents are parsed."""

    PICKLE = "pickle"
    JSON = "json"
    LINES = "JSON lines"
    CSV = "csv"
    PAGE = "page"
    ZIP = "zip"


def packing_in(file: BinaryIO) -> Compression | None:
    """Return the compression of an open file; None if it is not compressed."""
    packing = packing_of(file.read(_MAGIC))
    if packing is not None and packing.magic == ZIP_MAGIC and not is_archive_of_one(file):
        return None
    return packing


@contextmanager
def open_source(path: str, enough: int | None = None) -> Iterator[BinaryIO]:
    """Yield the file at `path`, open at its start and unpacked if it is compressed.

    enough: number of unpacked bytes that the caller needs at least; None for the whole file.
    """
    with ExitStack() as files:
        try:
            file = files.enter_context(_regular(path))
            if (packing := packing_in(file)) is not None:
                check = partial(_check_unpacked, path, packing)
                file = files.enter_context(unpacked(path, packing, file, check, enough))
            file.seek(0)
        except FileNotFoundError:
            raise RecordingError(path, "does not exist, expected a recording's file") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise RecordingError(path, f"cannot be read ({reason})") from None
        yield file


def _regular(path: str) -> BinaryIO:
    if Path(path).exists() and not Path(path).is_file():
        # Opening a named pipe would wait for a writer.
        what = "a directory" if Path(path).is_dir() else "not a regular file"
        raise RecordingError(path, f"is {what}, expected a recording's file")
    return Path(path).open("rb")


def _check_unpacked(path: str, packing: Compression, head: bytes) -> None:
    again = packing_of(head)
    if again is not None and not (again.magic == ZIP_MAGIC and packing.magic != ZIP_MAGIC):
        what = f"is {again.name} inside {packing.name}"
        raise RecordingError(path, f"{what}, expected a PyTorch snapshot")
    kind_of(path, head[:HEAD])


def kind_of(path: str, head: bytes) -> Kind:
    if not head:
        raise RecordingError(path, "is empty (0 bytes), expected a PyTorch snapshot")
    if head[:1] == b"\x80":
        return Kind.PICKLE
    if head.startswith(ZIP_MAGIC):
        return Kind.ZIP
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _is_json(text) and _LINES.match(text) is None:
        return Kind.JSON
    if _is_json(text) and _ROW.match(text) is not None:
        return Kind.LINES
    if text[:1] == b"<":
        return Kind.PAGE
    if _is_table(text):
        return Kind.CSV
    raise RecordingError(path, _refusal(head, text))


def is_recording(head: bytes) -> bool:
    """Return True if a file is a recording, and False if it is a log.

    head: first bytes of the file, unpacked.
    """
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head[:1] == b"\x80" or packing_of(head) is not None:
        return True
    if text[:1] == b"<":  # other pages, such as a saved forum thread, count as logs
        return b'"base64"' in head
    if _is_json(text):
        return bool(_NAMED.search(head) or _NUMBERS.match(text))
    return _is_table(text)


def _is_json(text: bytes) -> bool:
    # A "[" alone is not JSON: a log may begin with "[INFO]".
    return text[:1] == b"{" or _LIST.match(text) is not None


def _is_table(text: bytes) -> bool:
    header = _CSV.match(text)
    return header is not None and any(byte in _SEPARATORS for byte in header[0])


def _refusal(head: bytes, text: bytes) -> str:
    expected = "expected a PyTorch snapshot"
    if head[:2] in (b"(d", b"(l", b"}q", b"]q"):
        return f"is a pickle of protocol 0 or 1 (PyTorch writes 2 or later), {expected}"
    if all(byte >= 32 or byte in b"\t\r\n\f\x1b" for byte in head):
        what = next((what for _, what, words in TEXTS if re.search(words, text)), None)
        if what is not None:
            return f"is {what}, {expected}; run allocsim explain FILE to read its figures"
        return f"is text that begins with {text[:24].decode('utf-8', 'replace')!a}, {expected}"
    return f"is binary data that begins with bytes {head[:4].hex(' ')}, {expected}"


TEXTS = (
    ("memory_summary", "a table of torch.cuda.memory_summary()", rb"PyTorch CUDA memory summary"),
    ("oom", "text with an out-of-memory error",
     rb"OutOfMemoryError|\b(?:CUDA|HIP|XPU|NPU) out of memory"),
    ("vllm", "a start-up log of vLLM",
     rb"GPU KV cache size:|Available KV cache memory|[Mm]odel weights take"
     rb"|# (?:GPU|cuda) blocks:|[Mm]odel loading took|Loading model weights took"
     rb"|Free memory on device|max seq len \(|memory for the cache blocks|warming up sampler"
     rb"|LLM engine \(v\d|Starting to load model "),
    ("sglang", "a start-up log of SGLang",
     rb"KV Cache is allocated|Load weight (?:begin|end)\b|max_total_num_tokens="
     rb"|--mem-fraction-static"),
    ("llama.cpp", "a start-up log of llama.cpp",
     rb"(?:llm_load_tensors|load_tensors|llama_kv_cache\w*|llama_new_context_with_model"
     rb"|llama_context|ggml_\w{1,40}|llama_model_load\w*):"
     rb'|ggml-cuda|llama runner process|msg="(?:offloaded )?model weights'),
)  # fmt: skip
"""Known kinds of logs and tables: (short name, description, pattern of the text)."""


@dataclass(frozen=True, slots=True)
class FileForm:
    """Size, digest and format of one file.

    size: bytes on disk.
    sha256: digest of the bytes on disk, in hexadecimal.
    kind: format, such as "pickle".
    packing: compression, "gzip", "xz", "zstd" or "zip"; "" for an uncompressed file.
    protocol: protocol number of a pickle; None for other formats.
    """

    size: int
    sha256: str
    kind: str
    packing: str
    protocol: int | None

    def __str__(self) -> str:
        """Return the format as text, e.g. "pickle, protocol 4, gzip"."""
        parts = [self.kind]
        parts += [f"protocol {self.protocol}"] * (self.protocol is not None)
        return ", ".join([*parts, *[self.packing] * bool(self.packing)])


def form_of(path: str) -> FileForm:
    """Return size, digest and format of a file; raise RecordingError if it cannot be read."""
    with open_source(path, enough=HEAD) as file:
        head = file.read(HEAD)
    with Path(path).open("rb") as file:
        packing = packing_in(file)
    kind = kind_of(path, head)
    return FileForm(
        size=Path(path).stat().st_size,
        sha256=sha256_of(path),
        kind=kind.value,
        packing="" if packing is None else packing.name,
        protocol=head[1] if kind is Kind.PICKLE else None,
    )


def sha256_of(path: str) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


ENDINGS = (".pickle", ".pkl", ".json", ".npz")
"""File name endings of recordings; an ending of a compression, such as .gz, may follow."""
_PACKED = (".gz", ".xz", ".zst", ".zip")


def recordings_in(folder: Path) -> list[Path]:
    """Return the paths of recordings in `folder` and its subfolders, sorted by path.

    Recordings are recognised by the endings of their names.  Return [] if there is no such folder.
    """
    found = [
        path
        for path in folder.rglob("*")
        if (path.stem if path.suffix in _PACKED else path.name).endswith(ENDINGS) and path.is_file()
    ]
    return sorted(found, key=str)


LONGEST_LOG = 1 << 28
"""Largest log that is read, in bytes."""

_LOG_HEAD = 1 << 20
_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_log(path: str) -> str | None:
    """Return the text of the log at `path`; None if the file is a recording."""
    try:
        with Path(path).open("rb") as file:
            packing = packing_in(file) if file.seekable() else None
            if packing is not None:
                if is_recording(_unpacked(path, packing, file, _LOG_HEAD)):
                    return None
                return decoded(_unpacked(path, packing, file, LONGEST_LOG + 1), path)
            if file.seekable():
                file.seek(0)
            head = file.read(_LOG_HEAD)
            if is_recording(head):
                return None
            return decoded(head + file.read(LONGEST_LOG + 1 - len(head)), path)
    except OSError as error:
        raise RecordingError(path, f"cannot be read ({error.strerror or error})") from None


def _unpacked(path: str, packing: Compression, file: BinaryIO, enough: int) -> bytes:
    with unpacked(path, packing, file, lambda _: None, enough) as plain:
        return plain.read(enough)


def decoded(log: bytes, name: str) -> str:
    """Return the text of a log in UTF-8, or in UTF-16 as Windows shells write it.

    name: path of the log, for errors.
    """
    if len(log) > LONGEST_LOG:
        raise RecordingError(name, f"has more than {LONGEST_LOG} bytes; cut the error out of it")
    if not log.strip():
        raise RecordingError(name, "is empty; expected an error's text")
    if is_recording(log[:_LOG_HEAD]):
        raise RecordingError(name, "is no text; give the recording's file as an argument")
    if log.startswith(_BOMS):
        return log.decode("utf-16", "replace")
    if b"\0" in log:
        raise RecordingError(name, "is neither text nor a recording")
    return log.decode("utf-8-sig", "replace")
