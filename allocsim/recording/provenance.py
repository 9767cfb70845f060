"""Data about the program and its GPU, which allocsim adds to the snapshots that it records.

`allocsim record` and `allocsim.capture` write it under the key "allocsim". Rule: a snapshot without
this key, or without some of its values, can still be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from allocsim.recording.fields import INT32_MAX, INT64_MAX, Fields
from allocsim.recording.marks import MARKS, plain_marks, read_marks
from allocsim.recording.trace import Trace

KEY = "allocsim"
_UNKNOWN_EXIT = -(1 << 31)
"""Unknown exit code in files of earlier versions."""
_OPTIONAL = ("free_memory", "reserved_memory", "process_memory", "other_memory", "other_processes")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of a recording.  An empty text means that the value does not apply or is unknown.

    torch_version: version of PyTorch, e.g. "2.15.0+cu130".
    device_name: name of the GPU.
    device_memory: bytes of the GPU; 0 if unknown.
    context_memory: bytes held by the CUDA context and other processes; 0 if unknown.
    is_phantom: True if recorded on a phantom GPU.
    command: command line of the program.
    rank: rank of the process in a distributed job.
    oom_text: out-of-memory error that ended the program.
    stopped_by: limit of allocsim that ended the program.
    reads_back: lines of the program that copied values from a phantom GPU to the host.
    guessed: libraries whose workspace sizes on a phantom GPU are guesses.
    routing: how a phantom GPU distributed tokens to experts, "balanced" or "skewed", if sizes of
        requests or values on the host depend on it.
    captured: time when `allocsim.capture` wrote the recording inside the program, and the missing
        part of the history.
    free_memory, reserved_memory: free bytes of the GPU, and bytes reserved by this program's
        PyTorch, when the recording was written; None if unknown.
    process_memory: bytes of GPU memory of this process, from NVML; None if unknown.
    other_memory, other_processes: GPU memory and number of other processes; None if unknown.
    exit_code: exit code of the program; None if unknown.
    conf_at_start: conf at the start of the program; None if it did not change until the end.
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
        """Return the dictionary to store in a snapshot, including the marks of `traces`."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        marks = [mark for trace in traces for mark in plain_marks(trace.device, trace.marks)]
        return values | ({MARKS: marks} if marks else {})


def marked(top: Fields, size: int, traces: Iterable[Trace]) -> tuple[Trace, ...]:
    """Return `traces` with the marks that the snapshot stores.

    top: dictionary of the snapshot.
    size: bytes of its file, which limit the number of marks.
    """
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
    # A capture reserves spaces for the text of an error that may follow.
    known: dict[str, Any] = {name: fields.text(name).rstrip() for name in texts if name in fields}
    known |= {name: fields.integer(name, 0, INT64_MAX) for name in sizes if name in fields}
    return Provenance(
        **known,
        is_phantom="is_phantom" in fields and fields.boolean("is_phantom"),
        exit_code=None if code == _UNKNOWN_EXIT else code,
        conf_at_start=fields.text("conf_at_start") if "conf_at_start" in fields else None,
    )
