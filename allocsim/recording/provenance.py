"""Data that allocsim adds to the snapshots that it records, under the key "allocsim".

Provenance describes the program and its GPU.  Marks are records of calls that PyTorch's history
lacks, such as empty_cache(), and of the beginnings of training steps and phases.
"""

# If the memory of other processes is not recorded, it is estimated: memory in use outside PyTorch,
# minus the usual size of a CUDA context. A context with its libraries took 526 MiB to 870 MiB on an
# H200 (driver 580, CUDA 13): it is smallest before the first kernel, and largest with cuSOLVER and
# a fused optimizer. Smaller GPUs need less.

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from allocsim.recording.fields import INT32_MAX, INT64_MAX, UINT64_MAX, Fields
from allocsim.state import PoolId
from allocsim.units import GIB, KIB, MIB, format_size

if TYPE_CHECKING:
    from allocsim.recording.trace import Trace

MARKS = "marks"
_Value = str | float | int | PoolId | None


class MarkKind(StrEnum):
    """Kind of call or event that has no entry in PyTorch's history and is recorded as a mark."""

    EMPTY_CACHE = "empty_cache"
    FRACTION = "set_per_process_memory_fraction"
    SETTINGS = "_set_allocator_settings"
    POOL_CREATED = "MemPool created"
    POOL_DELETED = "MemPool deleted"
    PEAK_RESET = "reset_peak_memory_stats"
    STEP = "step"
    PHASE = "phase"


_LASTING = (MarkKind.FRACTION, MarkKind.SETTINGS)
"""Kinds of marks that change an allocator option, which keeps its value until a later mark."""
_REPLACING = (MarkKind.STEP, MarkKind.PHASE)
"""Kinds of marks that begin a training step or phase, and so end the previous one."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Call that PyTorch's history lacks, or beginning of a training step or phase, on one device.

    entry: number of entries of the device before the call.
    value: depends on the kind.  FRACTION: memory fraction, 0 to 1.  SETTINGS: value of
        PYTORCH_CUDA_ALLOC_CONF.  POOL_CREATED, POOL_DELETED: pool id.  STEP: number of the step.
        PHASE: "setup", "forward", "backward" or "optimizer".  Other kinds: None.
    """

    entry: int
    kind: MarkKind
    value: _Value = None


def cut_marks(marks: Iterable[Mark], first: int, last: int) -> tuple[Mark, ...]:
    """Return the marks of the entries [first, last), with entries renumbered from 0.

    Marks are records of calls without an entry.  A mark before `first` that is still in effect
    there, such as the start of the current training step, gets entry 0.
    """
    before: dict[MarkKind, Mark] = {}
    kept: list[Mark] = []
    for mark in marks:
        if mark.entry < first and mark.kind in _REPLACING:
            before[mark.kind] = mark
        elif mark.entry <= last and (mark.entry >= first or mark.kind in _LASTING):
            kept.append(mark)
    kept = [*before.values(), *kept]
    return tuple(replace(mark, entry=max(mark.entry - first, 0)) for mark in kept)


def plain_marks(device: int, marks: Iterable[Mark]) -> list[dict[str, object]]:
    return [
        {"device": device, "entry": mark.entry, "kind": str(mark.kind), "value": mark.value}
        for mark in marks
    ]


def read_marks(fields: Fields, size: int) -> dict[int, tuple[Mark, ...]]:
    """Return a dictionary from device index to the device's marks (calls without an entry).

    fields: dictionary that the snapshot has under the key "allocsim".
    size: bytes of the file; a file with more marks than bytes is refused.
    """
    found: dict[int, list[Mark]] = {}
    values = fields.items(MARKS) if MARKS in fields else []
    if len(values) > size:
        fields.wrong(MARKS, values, "no more than the file's size can hold")
    for index, value in enumerate(values):
        row = Fields(fields.path, f"{MARKS}[{index}]", value)
        device, entry = row.integer("device", 0, INT32_MAX), row.integer("entry", 0, INT64_MAX)
        name = row.text("kind")
        if name not in set(MarkKind):
            continue  # a kind that a later release of allocsim has added
        kind = MarkKind(name)
        found.setdefault(device, []).append(Mark(entry, kind, _value(row, kind)))
    # The sort is stable: marks at the same entry keep the order of the calls.
    return {
        device: tuple(sorted(marks, key=lambda mark: mark.entry)) for device, marks in found.items()
    }


def _value(row: Fields, kind: MarkKind) -> _Value:
    if kind in (MarkKind.SETTINGS, MarkKind.PHASE):
        return row.text("value")
    if kind is MarkKind.STEP:
        return row.integer("value", 0, INT64_MAX)
    if kind is MarkKind.FRACTION:
        share = row.number("value")
        if not 0.0 <= share <= 1.0:
            row.wrong("value", share, "a number from 0 to 1")
        return share
    if kind in (MarkKind.EMPTY_CACHE, MarkKind.PEAK_RESET):
        return None
    numbers = [n for n in row.items("value") if type(n) is int and 0 <= n <= UINT64_MAX]
    if len(numbers) != 2:
        row.refuse(f"{row.where} has no pool's two numbers as its value")
    return numbers[0], numbers[1]


@dataclass(frozen=True, slots=True)
class Annotation:
    """Begin or end of a range of the program that has a name, such as an optimizer step.

    stage: "START" or "END".
    time_us: time in microseconds, by the clock of the entries' times.
    """

    name: str
    stage: str
    device: int
    time_us: int

    def plain(self) -> dict[str, object]:
        return asdict(self)


def read_annotations(top: Fields, size: int) -> tuple[Annotation, ...]:
    """Return the annotations (named ranges) of a snapshot; () if it has none.

    top: the snapshot.
    size: bytes of the file, which limit the number of annotations.
    """
    if "external_annotations" not in top:
        return ()
    values = top.items("external_annotations")
    if len(values) > size:
        top.wrong("external_annotations", values, "no more than the file's size can hold")
    found = []
    for index, value in enumerate(values):
        row = Fields(top.path, f"external_annotations[{index}]", value)
        name, stage = row.text("name"), row.text("stage")
        device, time = row.integer("device", -1, INT32_MAX), row.integer("time_us", 0, INT64_MAX)
        found.append(Annotation(name, stage, device, time))
    return tuple(found)


KEY = "allocsim"
_UNKNOWN_EXIT = -(1 << 31)
"""Value that earlier versions of allocsim wrote for an unknown exit code."""
_OPTIONAL = ("free_memory", "reserved_memory", "process_memory", "other_memory", "other_processes")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Program, GPU and circumstances of a recording; "" if a text is unknown or does not apply.

    torch_version: version of PyTorch, e.g. "2.15.0+cu130".
    device_memory: bytes of the GPU; 0 if unknown.
    context_memory: bytes held by the CUDA context and other processes; 0 if unknown.
    is_phantom: True if recorded without a GPU, on stubs of the CUDA libraries (a phantom GPU).
    rank: rank of the process in a distributed job.
    oom_text: out-of-memory error that ended the program.
    stopped_by: limit at which allocsim ended the program: "max-entries" or "max-seconds".
    reads_back: lines of the program that copied values from a phantom GPU to the host.
    guessed: libraries whose workspace sizes on a phantom GPU are guesses.
    routing: assumed distribution of tokens to experts on a phantom GPU, "balanced" or "skewed"; ""
        if no request or value on the host depends on it.
    captured: reason why `allocsim.capture` wrote the recording, such as an error, and the part of
        the history that is missing; "" for other recordings.
    free_memory, reserved_memory: free bytes of the GPU, and bytes reserved by the recorded process
        in PyTorch, when the recording was written; None if unknown.
    process_memory: bytes of GPU memory of the recorded process, from NVML; None if unknown.
    other_memory, other_processes: bytes of GPU memory of other processes, and their number; None
        if unknown.
    conf_at_start: PYTORCH_CUDA_ALLOC_CONF at the start of the program; None if unknown, or equal to
        the value in the snapshot.
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
        """PyTorch release, e.g. "2.15"; "" if unknown."""
        return ".".join(self.torch_version.split(".")[:2])

    def plain(self, traces: Iterable[Trace] = ()) -> dict[str, object]:
        """Return the dictionary to store in a snapshot under the key "allocsim".

        traces: traces whose marks are included.
        """
        values = {name: value for name, value in asdict(self).items() if value is not None}
        marks = [mark for trace in traces for mark in plain_marks(trace.device, trace.marks)]
        return values | ({MARKS: marks} if marks else {})


def marked(top: Fields, size: int, traces: Iterable[Trace]) -> tuple[Trace, ...]:
    """Return copies of `traces` that have the marks (calls without an entry) of their device.

    top: the snapshot, which contains the marks.
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
    fields = _fields(top)
    if fields is None:
        return None
    code = fields.integer("exit_code", _UNKNOWN_EXIT, INT32_MAX) if "exit_code" in fields else None
    texts = (
        "torch_version", "device_name", "command", "rank", "oom_text", "stopped_by", "reads_back",
        "guessed", "routing", "captured",
    )  # fmt: skip
    sizes = ("device_memory", "context_memory", *_OPTIONAL)
    # A capture reserves spaces for the text of an error; they are removed.
    known: dict[str, Any] = {name: fields.text(name).rstrip() for name in texts if name in fields}
    known |= {name: fields.integer(name, 0, INT64_MAX) for name in sizes if name in fields}
    return Provenance(
        **known,
        is_phantom="is_phantom" in fields and fields.boolean("is_phantom"),
        exit_code=None if code == _UNKNOWN_EXIT else code,
        conf_at_start=fields.text("conf_at_start") if "conf_at_start" in fields else None,
    )


CONTEXT = (526 * MIB, 870 * MIB)
"""Smallest and largest usual size of a CUDA context in GPU memory, in bytes."""
_NOTABLE_BYTES = GIB
_NOTABLE_SHARE = 0.05
_OTHER = re.compile(r"Process \d+ has (\d+\.\d+|\d+) (bytes|[KMG]iB) memory in use")
_OWN = re.compile(r"this process has (\d+\.\d+|\d+) (bytes|[KMG]iB) memory in use")
_UNITS = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}


@dataclass(frozen=True, slots=True)
class CardMemory:
    """Memory of a GPU when a recording was written, in bytes.

    total: capacity of the GPU.
    outside: all memory in use, minus the memory that the recorded process has reserved in PyTorch.
    others_low, others_high: lowest and highest possible memory of other processes.
    processes: number of other processes; None if unknown.
    is_estimated: True if the memory of other processes is estimated as `outside` minus the usual
        size of a CUDA context.
    """

    total: int
    outside: int
    others_low: int
    others_high: int
    processes: int | None
    is_estimated: bool

    @property
    def others(self) -> int:
        """Bytes of other processes; if estimated, the mean of `others_low` and `others_high`."""
        return (self.others_low + self.others_high) // 2

    @property
    def context(self) -> int:
        """Bytes that the recorded process uses outside PyTorch's allocator: its CUDA context."""
        return max(self.outside - self.others, 0)

    @property
    def is_shared(self) -> bool:
        """True if other processes hold a notable part of the GPU's memory.

        A known size is notable from 1 GiB or from 5 % of the GPU's memory on; an estimated size
        must reach both.
        """
        limits = _NOTABLE_BYTES, int(_NOTABLE_SHARE * self.total)
        return self.others_low >= (max(limits) if self.is_estimated else min(limits))

    @property
    def sentence(self) -> str:
        """Sentence about the memory of other processes for the user; "" unless `is_shared`."""
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
    """Return the use of the GPU's memory when the recording was written; None if unknown.

    made: provenance of the recording.
    """
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
