"""Data that `allocsim record` and `allocsim.capture` add to a snapshot, under the key "allocsim".

Rule: the data is optional. A snapshot without it, or without some of its keys, can still be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from allocsim.recording.fields import INT32_MAX, INT64_MAX, Fields
from allocsim.recording.marks import MARKS, plain_marks, read_marks
from allocsim.recording.trace import Trace

__all__ = ["KEY", "Provenance", "marked", "read_provenance"]

KEY = "allocsim"
_UNKNOWN_EXIT = -(1 << 31)
"""Unknown exit code in files of earlier versions."""
_OPTIONAL = ("free_memory", "reserved_memory", "process_memory", "other_memory", "other_processes")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of a recording.

    torch_version: as PyTorch names it, e.g. "2.15.0+cu130".
    device_memory: bytes of the card; 0 if unknown.
    context_memory: bytes held by the CUDA context and other processes; 0 if unknown.
    is_phantom: True if recorded without a GPU.
    command: command line of the program.
    rank: rank in a distributed job; "" for none.
    oom_text: out-of-memory error that ended the program; "" for none.
    stopped_by: limit that ended the program; "" for none.
    reads_back: lines of the program that copied values from a phantom GPU to the host; "" for none
    or unknown.
    guessed: libraries whose workspaces a phantom GPU could only guess; "" for none or unknown.
    free_memory, reserved_memory: free bytes of the card, and bytes reserved by this program's
    PyTorch, when the recording was written; None if unknown.
    process_memory: total bytes of this process, from NVML; None if unknown.
    other_memory, other_processes: bytes and number of other processes; None if unknown
    (`card_memory`).
    routing: choice of experts on a phantom GPU, "balanced" or "skewed", if sizes or values read by
    the host depend on it; "" otherwise or if unknown.
    captured: time when `allocsim.capture` wrote it inside the program, and the missing part of the
    history; "" for other recorders.
    exit_code: exit code of the program; None if unknown.
    conf_at_start: option string at the start of the program; None if it is the last one.
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
    reads_back: str = ""
    guessed: str = ""
    routing: str = ""
    captured: str = ""
    free_memory: int | None = None
    reserved_memory: int | None = None
    process_memory: int | None = None
    other_memory: int | None = None
    other_processes: int | None = None
    exit_code: int | None = None
    conf_at_start: str | None = None

    @property
    def release(self) -> str:
        """Release of PyTorch, e.g. "2.15"; "" if unknown."""
        return ".".join(self.torch_version.split(".")[:2])

    def plain(self, traces: Iterable[Trace] = ()) -> dict[str, object]:
        """Return the dictionary for a snapshot, with the marks of `traces`."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        marks = [mark for trace in traces for mark in plain_marks(trace.device, trace.marks)]
        return values | ({MARKS: marks} if marks else {})


def marked(top: Fields, size: int, traces: Iterable[Trace]) -> tuple[Trace, ...]:
    """Return `traces` with the marks in the dictionary of a snapshot of `size` bytes."""
    fields = _fields(top)
    marks = {} if fields is None else read_marks(fields, size)
    return tuple(replace(trace, marks=marks.get(trace.device, ())) for trace in traces)


def _fields(top: Fields) -> Fields | None:
    if KEY not in top:
        return None
    return Fields(top.path, f"the snapshot's {KEY!r}", top.value(KEY, "a dictionary"))


def read_provenance(top: Fields) -> Provenance | None:
    """Return the provenance in a snapshot's dictionary; None if it has none."""
    fields = _fields(top)
    if fields is None:
        return None
    code = fields.integer("exit_code", _UNKNOWN_EXIT, INT32_MAX) if "exit_code" in fields else None
    texts = (
        "torch_version", "device_name", "command", "rank", "oom_text", "stopped_by", "reads_back",
        "guessed", "routing", "captured",
    )  # fmt: skip
    sizes = ("device_memory", "context_memory", *_OPTIONAL)
    # A capture pads the text of an error that it did not know yet.
    known: dict[str, Any] = {name: fields.text(name).rstrip() for name in texts if name in fields}
    known |= {name: fields.integer(name, 0, INT64_MAX) for name in sizes if name in fields}
    return Provenance(
        **known,
        is_phantom="is_phantom" in fields and fields.boolean("is_phantom"),
        exit_code=None if code == _UNKNOWN_EXIT else code,
        conf_at_start=fields.text("conf_at_start") if "conf_at_start" in fields else None,
    )
