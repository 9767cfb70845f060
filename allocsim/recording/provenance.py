"""Data about the program and its GPU, which allocsim adds to the snapshots that it records.

`allocsim record` and `allocsim.capture` write it under the key "allocsim".  A snapshot without this
key, or without some of its values, can still be read.

`card_memory` returns the use of the GPU's memory from these data. Recorded numbers are used
unchanged. If they are missing, the usual size of a CUDA context is subtracted from the memory in
use outside PyTorch, which gives a range for the other processes. A CUDA context with its libraries
took 526 MiB to 870 MiB on an H200 (driver 580, CUDA 13): it is smallest before the first kernel,
and largest with cuSOLVER and a fused optimizer. Smaller GPUs need less.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from allocsim.recording.fields import INT32_MAX, INT64_MAX, Fields
from allocsim.recording.marks import MARKS, plain_marks, read_marks
from allocsim.recording.trace import Trace
from allocsim.units import GIB, KIB, MIB, format_size

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
    """Read the marks in a snapshot, and return `traces` with the marks of each device added.

    top: the snapshot's dictionary.
    size: bytes of the file, which limit the number of marks.
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


CONTEXT = (526 * MIB, 870 * MIB)
"""Lowest and highest bytes of a CUDA context."""
_NOTABLE_BYTES = GIB
_NOTABLE_SHARE = 0.05
_OTHER = re.compile(r"Process \d+ has (\d+\.\d+|\d+) (bytes|[KMG]iB) memory in use")
_OWN = re.compile(r"this process has (\d+\.\d+|\d+) (bytes|[KMG]iB) memory in use")
_UNITS = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}


@dataclass(frozen=True, slots=True)
class CardMemory:
    """Memory of a GPU when a recording was written, in bytes.

    total: capacity of the GPU.
    outside: memory in use that this program's PyTorch did not reserve.
    others_low, others_high: lowest and highest possible memory of other processes.
    processes: number of other processes; None if unknown.
    is_estimated: True if the range follows from the usual size of a context, and not from a
        recorded number.
    """

    total: int
    outside: int
    others_low: int
    others_high: int
    processes: int | None
    is_estimated: bool

    @property
    def others(self) -> int:
        """Memory of other processes; the middle of the range if it is estimated."""
        return (self.others_low + self.others_high) // 2

    @property
    def context(self) -> int:
        """Memory of this program outside PyTorch: its CUDA context."""
        return max(self.outside - self.others, 0)

    @property
    def is_shared(self) -> bool:
        """True if other processes hold a notable part of the GPU's memory.

        A recorded number is notable from 1 GiB or 5 % of the GPU on, whichever is less.
        An estimate is notable from the larger of the two on, because libraries such as NCCL also
        hold memory outside PyTorch.
        """
        limits = _NOTABLE_BYTES, int(_NOTABLE_SHARE * self.total)
        return self.others_low >= (max(limits) if self.is_estimated else min(limits))

    @property
    def sentence(self) -> str:
        """Sentence about the GPU memory of other processes; "" if they hold little or nothing."""
        if not self.is_shared:
            return ""
        total = format_size(self.total)
        who = "another process holds"
        if self.processes is not None and self.processes > 1:
            who = f"{self.processes} other processes hold"
        if not self.is_estimated:
            left = format_size(self.total - self.others)
            held = format_size(self.others)
            return f"{who} {held} of {total} on this card; {left} were left for this program"
        held, left = f"{self.others / GIB:.1f} GiB", f"{(self.total - self.others) / GIB:.1f} GiB"
        return (
            f"{who} about {held} of {total} on this card, or several do together; about {left} "
            "were left for this program (estimated: what is in use outside PyTorch, less a usual "
            "CUDA context)"
        )


def card_memory(made: Provenance | None) -> CardMemory | None:
    """Return the use of the GPU's memory; None if the recording does not contain it."""
    if made is None or not made.device_memory:
        return None
    total, outside = made.device_memory, made.context_memory
    if made.other_memory is not None:
        others = min(made.other_memory, total)
        return CardMemory(
            total, max(outside, others), others, others, made.other_processes, is_estimated=False
        )
    if not outside:
        return None
    if made.is_phantom:
        return CardMemory(total, outside, 0, 0, 0, is_estimated=False)
    printed = _printed(made.oom_text, total)
    if printed is not None:
        others = min(sum(printed), outside)
        return CardMemory(total, outside, others, others, len(printed), is_estimated=False)
    low, high = (max(outside - each, 0) for each in reversed(CONTEXT))
    return CardMemory(total, outside, low, high, None, is_estimated=True)


def _printed(text: str, total: int) -> list[int] | None:
    if not _OWN.search(text):
        return None
    found = [int(float(size) * _UNITS[unit]) for size, unit in _OTHER.findall(text)]
    return found if sum(found) <= total else None
