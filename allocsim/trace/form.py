"""What a file is, before anybody asks what it holds: its size, its digest, its form.

Rule: the form is told from the first bytes, as it is for `load`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from allocsim.trace.packings import ZIP_MAGIC, packing_of
from allocsim.trace.source import HEAD, Kind, kind_of, open_source

__all__ = ["FileForm", "form_of"]

_MAGIC = 8


@dataclass(frozen=True, slots=True)
class FileForm:
    """One file.

    size: bytes, as it lies on the disk.  sha256: of those bytes, in hexadecimal.
    kind: the value of a `Kind`, as "pickle".  packing: "gzip", "xz", "zstd" or "zip", "" for none.
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
    with open_source(path) as file:
        head = file.read(HEAD)
    with Path(path).open("rb") as file:
        packing = packing_of(file.read(_MAGIC))
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
    kind = kind_of(path, head)
    is_packed = packing is not None and not (packing.magic == ZIP_MAGIC and kind is Kind.ZIP)
    return FileForm(
        size=size,
        sha256=digest,
        kind=kind.value,
        packing=packing.name if packing is not None and is_packed else "",
        protocol=head[1] if kind is Kind.PICKLE else None,
    )
