"""Size, digest and format of a file.

The format is detected from the first bytes, as `load` does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from allocsim.recording.source import HEAD, Kind, kind_of, open_source, packing_in

__all__ = ["FileForm", "form_of", "sha256_of"]


@dataclass(frozen=True, slots=True)
class FileForm:
    """Size, digest and format of one file.

    size: bytes on disk.
    sha256: digest of the bytes on disk, in hexadecimal.
    kind: value of a `Kind`, such as "pickle".
    packing: compression, "gzip", "xz", "zstd" or "zip"; "" for an uncompressed file.
    protocol: protocol of a pickle; None for other kinds of file.
    """

    size: int
    sha256: str
    kind: str
    packing: str
    protocol: int | None

    def __str__(self) -> str:
        """Return the format in words, e.g. "pickle, protocol 4, gzip"."""
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
    """Return the SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
