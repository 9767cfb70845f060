"""Files of a capture: snapshots with data about the program, within a limit of disk space.

No file is left half-written.  The oldest files are removed to make room for a new one.  If the new
file is still too large, its oldest entries are left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pickle
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from allocsim.capture.calls import counted_rows, placed_marks
from allocsim.capture.recorder import RECORDER, RecordedHistory
from allocsim.units import format_size

AT_ERROR = "at an out-of-memory error"
PROTOCOL = 4
"""Newest pickle protocol that PyTorch's viewer reads."""
TEXT_ROOM = 4096
"""Bytes reserved in a file for the text of an out-of-memory error.

PyTorch raises the error, and so gives its text, only after the file is written.
"""
SHARES = (1, 4, 16, 64, 0)
"""Divisors to try in turn until the file fits: n keeps the newest 1/n of the entries, 0 none."""

_TOO_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "LOCAL_RANK")
_LIBRARY = "libnvidia-ml.so.1"
_MOST_PROCESSES = 1024
_UNKNOWN = (1 << 64) - 1


class _NoRoomError(Exception):
    pass


@dataclass
class Written:
    """Captured file on the disk.

    size: bytes of the file.
    n_entries: number of entries in the file, of all devices.
    n_dropped: number of older entries that were left out because the file was too large.
    text_at: offset in the file of the bytes reserved for an error's text; -1 if it has none.
    """

    path: Path
    size: int
    n_entries: int
    n_dropped: int
    text_at: int

    def put_text(self, text: str) -> None:
        if self.text_at < 0:
            return
        data = text.encode("utf-8", "replace")[:TEXT_ROOM]
        data = data.decode("utf-8", "ignore").encode()
        with contextlib.suppress(OSError), self.path.open("r+b") as file:
            file.seek(self.text_at)
            file.write(data.ljust(TEXT_ROOM))


class Files:
    """Files that one capture has written in one process.

    path: file name, to which rank and occasion are added, or a folder.
    most: largest total size of the files, in bytes.
    written: written files that still exist, oldest first.
    n_removed: number of files that were removed to make room.
    """

    def __init__(self, path: str | os.PathLike[str], most: int) -> None:
        given = Path(path)
        is_folder = given.is_dir() or str(path).endswith(("/", os.sep))
        given = given / "capture.pickle" if is_folder else given
        self.folder = Path.cwd() / given.parent
        self.suffix = given.suffix or ".pickle"
        self.stem = given.name[: -len(given.suffix)] if given.suffix else given.name
        self.most = most
        self.written: list[Written] = []
        self.n_removed = 0

    def name(self, *parts: str) -> str:
        return "-".join((self.stem, *filter(None, parts))) + self.suffix

    def save(self, name: str, snapshot: Any, describe: Callable[[Any, int], Any]) -> Written:
        """Write `snapshot` with as many of its newest entries as fit; return data about the file.

        The folder for temporary files is used if the capture's folder cannot be written to.

        describe: function that returns the object to pickle.  Its arguments are the snapshot with
            the kept entries, and the number of entries left out.

        Raises OSError if neither folder has room.
        """
        failure: OSError | None = None
        for folder in (self.folder, Path(tempfile.gettempdir())):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                return self._save_in(folder, name, snapshot, describe)
            except OSError as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def _save_in(
        self, folder: Path, name: str, snapshot: Any, describe: Callable[[Any, int], Any]
    ) -> Written:
        place, part = folder / name, folder / (name + ".part")
        refusal = OSError(errno.ENOSPC, "no room for a snapshot", str(place))
        for share in SHARES:
            kept = _with_newest(snapshot, share)
            n_entries = _n_entries(kept)
            n_dropped = _n_entries(snapshot) - n_entries
            if share > 1 and not n_entries:
                continue
            try:
                room = self._room(folder, place, share == 0)
                size = self._write(part, describe(kept, n_dropped), room)
            except _NoRoomError:
                continue
            except OSError as error:
                if error.errno not in _TOO_FULL:
                    raise
                refusal = error
                continue
            finally:
                with contextlib.suppress(OSError):
                    part.unlink()
            written = Written(place, size, n_entries, n_dropped, _room_for_text(place))
            self.written = [old for old in self.written if old.path != place] + [written]
            return written
        raise refusal

    def _room(self, folder: Path, place: Path, is_least: bool) -> int:
        # Returns the bytes that the file may have, after removing old files if they are too many.
        # `is_least`: True if the file has no entries.
        others = [old for old in self.written if old.path != place]
        expected = max((old.size for old in self.written), default=0)
        while others and self.most - sum(old.size for old in others) < expected:
            with contextlib.suppress(OSError):
                others[0].path.unlink()
            self.n_removed += 1
            self.written.remove(others.pop(0))
        free = shutil.disk_usage(folder).free
        room = self.most - sum(old.size for old in others)
        # A file without entries is small and may use all free space.
        return min(room, free if is_least else free // 2)

    def _write(self, part: Path, snapshot: Any, most: int) -> int:
        with part.open("wb") as file:
            bounded = _Bounded(file, most)
            pickle.dump(snapshot, bounded, protocol=PROTOCOL)
        part.replace(part.with_name(part.name[: -len(".part")]))
        return bounded.size


class _Bounded:
    def __init__(self, file: BinaryIO, most: int) -> None:
        self.file = file
        self.most = most
        self.size = 0

    def write(self, data: Any) -> int:
        self.size += len(data)
        if self.size > self.most:
            raise _NoRoomError
        return self.file.write(data)


def _with_newest(snapshot: Any, share: int) -> Any:
    def newest(trace: list[Any]) -> list[Any]:
        return trace[len(trace) - len(trace) // share :] if share else []

    host = {"host_traces": newest(snapshot["host_traces"])} if "host_traces" in snapshot else {}
    return {**snapshot, "device_traces": [*map(newest, snapshot["device_traces"])], **host}


def _n_entries(snapshot: Any) -> int:
    return sum(map(len, (*snapshot["device_traces"], snapshot.get("host_traces", ()))))


def _room_for_text(path: Path) -> int:
    with path.open("rb") as file:
        # The reserved text is the last value of the pickle, near the end of the file.
        start = max(file.seek(0, os.SEEK_END) - 4 * TEXT_ROOM, 0)
        file.seek(start)
        at = file.read().rfind(b" " * TEXT_ROOM)
    return start + at if at >= 0 else -1


def rank_of(torch: Any) -> str:
    """Return the rank of this process in its distributed job; "" without one."""
    with contextlib.suppress(Exception):
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return str(int(torch.distributed.get_rank()))
    ranks = (os.environ.get(name, "") for name in _RANKS)
    return next((rank for rank in ranks if rank.isdigit()), "")


@dataclass(frozen=True)
class About:
    """Facts about a captured file that its snapshot does not contain.

    occasion: reason for writing the file, as text, such as "at an out-of-memory error of step 3".
    device: index of the device of the out-of-memory error; -1 without an error.
    free: bytes that the driver reported as free at the out-of-memory error; None without an error.
    rank: rank of the process in its distributed job; "" without one.
    max_entries: number of entries that PyTorch's history can hold.
    exit_code: exit code of the program; None if unknown.
    """

    occasion: str
    device: int
    free: int | None
    rank: str
    max_entries: int
    exit_code: int | None = None

    @property
    def is_error(self) -> bool:
        return self.occasion.startswith(AT_ERROR)


def described(
    about: About, history: RecordedHistory, snapshot: dict[str, Any], n_dropped: int
) -> dict[str, Any]:
    """Return a copy of `snapshot` that has data about the capture under the key "allocsim".

    about, history: sources of the data.
    snapshot: `history.snapshot` without the oldest entries that do not fit on the disk.
    n_dropped: number of entries left out of `snapshot`.
    """
    traces = snapshot["device_traces"]
    device = about.device if about.device >= 0 else _largest(snapshot["segments"])
    card = RECORDER.gpu.get_device_properties(device)
    total = int(card.total_memory)
    values: dict[str, Any] = {
        "torch_version": str(RECORDER.torch.__version__),
        "device_name": str(card.name),
        "device_memory": total,
        **_memory(about, device, card),
        "is_phantom": "ALLOCSIM_PHANTOM_MEMORY" in os.environ,
        "command": shlex.join(getattr(sys, "orig_argv", sys.argv)),
        "rank": about.rank,
        "captured": _text(about, history, n_dropped),
    }
    if about.exit_code is not None:
        values["exit_code"] = about.exit_code
    if history.conf_at_start is not None:
        values["conf_at_start"] = history.conf_at_start
    marks = placed_marks(history.marks, traces, _lost(history, traces))
    if marks:
        values["marks"] = marks
    # This value is last because it is overwritten in the file when the error's text is known.
    values["oom_text"] = " " * TEXT_ROOM if about.is_error else ""
    return {**snapshot, "allocsim": values}


def _lost(history: RecordedHistory, traces: list[Any]) -> list[int | None]:
    # Returns for each device the number of counted entries before `traces`; None if unknown.
    lost: list[int | None] = []
    for device, rest in enumerate(traces):
        before, whole = history.lost[device], history.snapshot["device_traces"][device]
        cut = counted_rows(whole[: len(whole) - len(rest)])
        lost.append(None if before is None else before + len(cut))
    return lost


def _largest(segments: list[Any]) -> int:
    held: dict[int, int] = {}
    for segment in segments:
        device = segment.get("device", 0)
        held[device] = held.get(device, 0) + segment["total_size"]
    return max(held, key=lambda device: held[device]) if held else 0


def _memory(about: About, device: int, card: Any) -> dict[str, int]:
    # The keys are field names of `Provenance`.  Memory that is neither free nor reserved by PyTorch
    # counts as context_memory.
    total, free = int(card.total_memory), about.free
    try:
        if free is None:
            free = int(RECORDER.gpu.mem_get_info(device)[0])
        stats = RECORDER.gpu.memory_stats(device)
    except Exception:
        return {"context_memory": 0}
    reserved = int(stats.get("reserved_bytes.all.current", 0))
    known = {
        "context_memory": max(total - free - reserved, 0),
        "free_memory": free,
        "reserved_memory": reserved,
    }
    if "ALLOCSIM_PHANTOM_MEMORY" not in os.environ:
        known |= processes_memory(card, total - free)
    return known


def _text(about: About, history: RecordedHistory, n_dropped: int) -> str:
    text = about.occasion
    if history.missed:
        text += (
            f"; its ring of {about.max_entries:,} entries was full, and {history.missed:,} older "
            "ones are lost"
        )
    if n_dropped:
        text += f"; {n_dropped:,} older entries are left out, because the disk had no room"
    if history.held:
        text += f"; recording began when {format_size(history.held)} were allocated"
    return text


class _Process(ctypes.Structure):
    """NVML's struct nvmlProcessInfo_t, in versions 2 and 3 of the struct."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def processes_memory(
    card: Any, used: int, load: Callable[[str], Any] = ctypes.CDLL
) -> dict[str, int]:
    """Return the GPU memory of this process and of all others, as reported by NVML.

    The keys are "process_memory" and "other_memory", in bytes, and "other_processes", the number of
    other processes.  The result is empty if NVML does not report the values, as in a container.

    card: properties of the GPU, as torch.cuda.get_device_properties() returns them.
    used: bytes of the GPU that are not free; `other_memory` is `used` less the process's memory.
    load: function that loads a shared library.
    """
    # A call of CUDA could break a CUDA graph that the program is capturing; NVML cannot.
    with contextlib.suppress(Exception):
        held = _processes(load(_LIBRARY), card)
        own = held.pop(os.getpid(), _UNKNOWN)
        if own != _UNKNOWN:
            return {
                "process_memory": own,
                "other_memory": max(used - own, 0),
                "other_processes": len(held),
            }
    return {}


def _processes(library: Any, card: Any) -> dict[int, int]:
    _check(library.nvmlInit_v2())
    try:
        device = ctypes.c_void_p()
        bus = f"{card.pci_domain_id:08x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"
        _check(library.nvmlDeviceGetHandleByPciBusId_v2(bus.encode(), ctypes.byref(device)))
        call = getattr(library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        call = call or library.nvmlDeviceGetComputeRunningProcesses_v2
        count, rows = ctypes.c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
        _check(call(device, ctypes.byref(count), rows))
        return {row.pid: row.used_memory for row in rows[: count.value]}
    finally:
        library.nvmlShutdown()


def _check(error: int) -> None:
    if error:
        raise OSError(error)
