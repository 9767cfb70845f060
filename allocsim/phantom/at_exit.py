"""Write the recordings when the processes of a program end.

The hook (hook/sitecustomize.py) loads this file by its path into the interpreter of the recorded
program, so it imports only the standard library and is compatible with Python 3.9.

A process that `multiprocessing` forked does not run the functions registered with atexit, and a
serving engine may kill its process before the recording is written, so a file marks each process
that records.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import linecache
import os
import signal
import time
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

WRITE_S = 120.0
"""Longest time that the patched os.kill waits for a process to write its recording, in seconds."""
_POLL_S = 0.02


def mark_recording(folder: str) -> None:
    with contextlib.suppress(OSError):
        _marker(folder, os.getpid()).touch()


def end(folder: str) -> None:
    with contextlib.suppress(OSError):
        _marker(folder, os.getpid()).unlink()


def _marker(folder: str, pid: int) -> Path:
    return Path(folder) / f"{pid}.recording"


def wait_before_kill(folder: str) -> None:
    """Patch os.kill to wait until a terminated process has written its recording to `folder`."""
    kill, terminated = os.kill, set()

    @functools.wraps(kill)
    def kill_later(pid: int, number: int) -> None:
        if number == signal.SIGTERM:
            terminated.add(pid)
        elif number == signal.SIGKILL and pid in terminated:
            until = time.monotonic() + WRITE_S
            while _marker(folder, pid).exists() and time.monotonic() < until and _is_alive(pid):
                time.sleep(_POLL_S)
        kill(pid, number)

    os.kill = kill_later


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def call_in_forks(owner: Any, function: Callable[[Any], None], util: Any) -> None:
    """Call `function(owner)` at the end of each process that multiprocessing forks.

    util: the module multiprocessing.util, which calls functions in forked processes.
    """

    def at_end(owner: Any) -> None:
        util.Finalize(None, function, (owner,), exitpriority=0)

    util.register_after_fork(owner, at_end)


Frame = tuple[str, int]
"""Frame of a Python stack: file and line number."""

Site = tuple[int, int, list[Frame]]
"""Call stack that copies values from a phantom GPU to the host, as a tuple.

(number of copies, bytes of the largest copy, frames, innermost first)"""

SHOWN = 3
_OF_A_FLOAT = frozenset({2, 4})
"""Bytes of a copy to the host that may be one floating-point number, such as a printed loss."""


class _ReadFrame(ctypes.Structure):
    _fields_ = (("code", ctypes.py_object), ("line", ctypes.c_int))


class _ReadSite(ctypes.Structure):
    _fields_ = (("times", ctypes.c_size_t), ("most", ctypes.c_size_t), ("depth", ctypes.c_size_t))

    times: int
    most: int
    depth: int

    def frames(self) -> list[Frame]:
        start = ctypes.addressof(self) + ctypes.sizeof(self)
        frames = (_ReadFrame * self.depth).from_address(start)
        return [(frame.code.co_filename, frame.line) for frame in frames]


def watch_reads(wanted: bool) -> bool:
    """Start or stop counting copies to the host; return True if they were counted before."""
    return bool(ctypes.CDLL(None).device_watch_reads(wanted))


def read_sites() -> list[Site]:
    """Stop counting copies to the host; return the call stacks that made the counted ones."""
    watch_reads(False)
    first = ctypes.POINTER(ctypes.POINTER(_ReadSite))()
    ask = ctypes.CDLL(None).device_read_sites
    ask.restype = ctypes.c_size_t
    sites = [first[i].contents for i in range(ask(ctypes.byref(first)))]
    return [(site.times, site.most, site.frames()) for site in sites]


def guesses() -> str:
    ask = ctypes.CDLL(None).device_guesses
    ask.restype = ctypes.c_char_p
    return str(ask().decode())


def device_peak_bytes() -> int:
    ask = ctypes.CDLL(None).device_peak_bytes
    ask.restype = ctypes.c_size_t
    return int(ask())


_COUNTED = (
    *("kernels", "graphs", "nodes", "stack", "settled", "collective_graphs", "graph_bytes"),
)
"""Names of the numbers in device_driver, a C struct of the stubs, in its order."""


def driver_counts() -> dict[str, int]:
    """Return counts and sizes, by name, that the simulated CUDA driver kept for this process.

    "kernels": loaded kernels.  "graphs", "nodes": instantiated CUDA graphs and their nodes.
    "stack": most local memory that a kernel needs per thread, in bytes.  "settled": the same,
    without variants of kernels that were only tried.  "collective_graphs": graphs with collectives.
    "graph_bytes": peak bytes of all graphs together, without the extra bytes of collectives.
    """
    ask = ctypes.CDLL(None).device_driver
    ask.restype = ctypes.POINTER(ctypes.c_size_t * len(_COUNTED))
    return {name: ask().contents[at] for at, name in enumerate(_COUNTED)}


def places_of(sites: Iterable[Site]) -> list[tuple[str, int]]:
    """Return the program's lines that copied to the host, as pairs (file and line, copies).

    sites: call stacks of the copies. Lines that probably only print a loss come last.
    """
    places: dict[Frame, tuple[int, int]] = {}
    for times, most, frames in sites:
        inner = [frame for frame in frames if _is_the_programs(frame[0])] or frames
        if not inner:
            continue  # a thread without Python
        before = places.get(inner[0], (0, 0))
        places[inner[0]] = (before[0] + times, max(before[1], most))
    in_order = sorted(places, key=lambda place: _is_logged(place, places[place][1]))
    return [(f"{_shown(name)}:{line}", places[name, line][0]) for name, line in in_order]


def reads_text(places: list[tuple[str, int]]) -> str:
    texts = [f"{place} ({times:,} times)" if times > 1 else place for place, times in places]
    more = len(texts) - SHOWN
    rest = [f"{more} more {'place' if more == 1 else 'places'}"] if more > 0 else []
    return ", ".join(texts[:SHOWN] + rest)


def _is_the_programs(name: str) -> bool:
    if Path(name).resolve().is_relative_to(Path(__file__).resolve().parent):
        return False
    libraries = ("/site-packages/", "/dist-packages/", str(Path(os.__file__).parent), "<frozen")
    return not any(library in name for library in libraries)


def _is_logged(place: Frame, size: int) -> bool:
    text = linecache.getline(*place)
    return size in _OF_A_FLOAT and (".item()" in text or "float(" in text)


def _shown(name: str) -> str:
    near = os.path.relpath(name) if Path(name).is_absolute() else name
    return name if near.startswith("..") else near


def leave_out_frames(snapshot: dict[str, Any], folder: str) -> None:
    """Remove the frames of this package from all stacks of a snapshot, in place.

    folder: start of the names of this package's files.
    """
    segments = [*snapshot["segments"], *snapshot.get("host_segments", ())]
    blocks = [block for segment in segments for block in segment["blocks"]]
    traces = [*snapshot["device_traces"], snapshot.get("host_traces", ())]
    owners = chain(segments, blocks, *traces)
    stacks = {id(owner["frames"]): owner["frames"] for owner in owners if "frames" in owner}
    for stack in stacks.values():
        # Entries share their stacks, so each stack is changed in place.
        stack[:] = [frame for frame in stack if not frame["filename"].startswith(folder)]


_TEXTS = {"compile_context", "user_metadata"}
"""Fields of a snapshot entry that contain text.

PyTorch creates a new string for each entry; equal strings are replaced by a single object.
"""


def columns_of(entries: list[dict[str, Any]]) -> dict[str, list[Any]]:
    columns = {
        name: [entry.get(name) for entry in entries]
        for name in dict.fromkeys(chain.from_iterable(entries))
    }
    if "frames" in columns:
        columns["frames"] = _shared(columns["frames"])
    for name in _TEXTS & columns.keys():
        one = {text: text for text in columns[name]}
        columns[name] = [one[text] for text in columns[name]]
    return columns


def _shared(lists: list[Any]) -> list[Any]:
    stacks: dict[tuple[int, ...], Any] = {}
    unique = {id(frames): frames for frames in lists if frames is not None}
    one = {
        number: stacks.setdefault(tuple(map(id, frames)), frames)
        for number, frames in unique.items()
    }
    return [one.get(id(frames)) for frames in lists]
