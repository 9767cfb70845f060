"""What `allocsim record` notes beside a snapshot, and PyTorch does not: the key "allocsim".

Rule: it only adds.  A snapshot without it, or with keys of it missing, reads as any other.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from allocsim.trace.fields import INT32_MAX, INT64_MAX, Fields

__all__ = ["KEY", "Provenance", "read_provenance"]

KEY = "allocsim"
_UNKNOWN_EXIT = -(1 << 31)


@dataclass(frozen=True, slots=True)
class Provenance:
    """How a recording was made.

    torch_version: as PyTorch names it, "2.15.0+cu130".
    device_memory: bytes of the card; 0 where unknown.
    context_memory: bytes of it that the CUDA context and other processes held; 0 where unknown.
    is_phantom: recorded without a GPU.
    command: what was run.
    rank: of a distributed job, "" for none.
    oom_text: the out-of-memory error that ended the program, "" for none.
    stopped_by: the guard that ended it, "" for none.
    exit_code: the program's; None if unknown.
    """

    torch_version: str = ""
    device_name: str = ""
    device_memory: int = 0
    context_memory: int = 0
    is_phantom: bool = False
    command: str = ""
    rank: str = ""
    oom_text: str = ""
    stopped_by: str = ""
    exit_code: int | None = None

    @property
    def release(self) -> str:
        """The release that made it, "2.15"; "" if unknown."""
        return ".".join(self.torch_version.split(".")[:2])

    def plain(self) -> dict[str, object]:
        """The dictionary as a snapshot holds it."""
        code = _UNKNOWN_EXIT if self.exit_code is None else self.exit_code
        return asdict(self) | {"exit_code": code}


def read_provenance(top: Fields) -> Provenance | None:
    """The provenance in a snapshot's dictionary; None if it has none."""
    if KEY not in top:
        return None
    fields = Fields(top.path, f"the snapshot's {KEY!r}", top.value(KEY, "a dictionary"))
    code = fields.integer("exit_code", _UNKNOWN_EXIT, INT32_MAX) if "exit_code" in fields else None
    texts = ("torch_version", "device_name", "command", "rank", "oom_text", "stopped_by")
    sizes = ("device_memory", "context_memory")
    known: dict[str, Any] = {name: fields.text(name) for name in texts if name in fields}
    known |= {name: fields.integer(name, 0, INT64_MAX) for name in sizes if name in fields}
    return Provenance(
        **known,
        is_phantom="is_phantom" in fields and fields.boolean("is_phantom"),
        exit_code=None if code == _UNKNOWN_EXIT else code,
    )
