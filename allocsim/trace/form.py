"""What a file is, before anybody asks what it holds: its size, its digest, its form.

Rule: the form is told from the first bytes, as for `load`; nothing is unpacked but a head.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

from allocsim.errors import RecordingError
from allocsim.trace.source import PICKLE, kind_of

__all__ = ["FileForm", "form_of"]

_GZIP_MAGIC = b"\x1f\x8b"
_HEAD = 512


@dataclass(frozen=True, slots=True)
class FileForm:
    """One file.

    size: bytes, as it lies on the disk.  sha256: of those bytes, in hexadecimal.
    kind: "pickle", "json" or "zip" (of allocsim's own columns).  packing: "gzip", "" for none.
    protocol: of a pickle, None of anything else.
    """

    size: int
    sha256: str
    kind: str
    packing: str
    protocol: int | None

    def __str__(self) -> str:
        """ "pickle, protocol 4, gzip"."""
        told = [self.kind]
        told += [f"protocol {self.protocol}"] * (self.protocol is not None)
        return ", ".join([*told, *[self.packing] * bool(self.packing)])


def form_of(path: str) -> FileForm:
    """The form of the file at `path`.  Raises RecordingError if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
            file.seek(0)
            head = file.read(_HEAD)
        is_gzip = head.startswith(_GZIP_MAGIC)
        if is_gzip:
            with gzip.open(path) as stream:
                head = stream.read(_HEAD)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RecordingError(path, f"cannot be read ({reason})") from None
    kind = kind_of(path, head)
    return FileForm(
        size=size,
        sha256=digest,
        kind=kind,
        packing="gzip" if is_gzip else "",
        protocol=head[1] if kind == PICKLE else None,
    )
