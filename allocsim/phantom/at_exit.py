"""Write the recordings when the processes of a program end.

The hook (hook/sitecustomize.py) loads this file by its path into the interpreter of the recorded
program, so it imports only the standard library and is compatible with Python 3.9.

Two kinds of processes need help.  A process that `multiprocessing` forked does not run functions
registered with atexit.  A serving engine may kill a process before its recording is written, so
each recording process has a marker file until it is done.
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
"""Longest time in seconds that the patched os.kill waits for a process to write its recording."""
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
    """Patch os.kill: SIGKILL after SIGTERM waits until the process has written its recording.

    folder: folder of the recordings and of the marker files.
    """
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
    """Make each process that multiprocessing forks call `function(owner)` at its end.

    util: module multiprocessing.util.
    """

    def at_end(owner: Any) -> None:
        util.Finalize(None, function, (owner,), exitpriority=0)

    util.register_after_fork(owner, at_end)


Frame = tuple[str, int]
"""Frame of a Python stack: file and line number."""

Site = tuple[int, int, list[Frame]]
"""Call stack that copies values from a phantom (simulated) GPU to the host.

The tuple is (number of copies, bytes of the largest copy, frames with the innermost first)."""

SHOWN = 3
_OF_A_FLOAT = frozenset({2, 4})
"""Sizes in bytes of one floating-point number, such as a loss that is copied to be printed."""


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
    """Start or stop counting copies from a phantom GPU to the host; return True if counting is on.

    wanted: True to start, False to stop.
    """
    return bool(ctypes.CDLL(None).device_watch_reads(wanted))


def read_sites() -> list[Site]:
    """Stop counting copies from a phantom GPU to the host; return the stacks of these copies."""
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
"""Names of the numbers that the function device_driver of the C stubs returns, in order."""


def driver_counts() -> dict[str, int]:
    """Return the counts and sizes that the simulated CUDA driver kept for this process.

    The keys of the dictionary are:
    "kernels": number of loaded kernels.
    "graphs", "nodes": number of instantiated CUDA graphs, and of their nodes.
    "stack": most local memory that any kernel needs, in bytes per thread.
    "settled": as "stack", but without variants of kernels that were tried and not chosen.
    "collective_graphs": number of graphs with collectives.
    "graph_bytes": peak bytes of all graphs together, without the extra memory for collectives.
    """
    ask = ctypes.CDLL(None).device_driver
    ask.restype = ctypes.POINTER(ctypes.c_size_t * len(_COUNTED))
    return {name: ask().contents[at] for at, name in enumerate(_COUNTED)}


def places_of(sites: Iterable[Site]) -> list[tuple[str, int]]:
    """Return the lines of the program that copied to the host, as pairs (file:line, copies made).

    Lines that probably only print a loss come last.

    sites: call stacks of the copies.
    """
    places: dict[Frame, tuple[int, int]] = {}
    for times, most, frames in sites:
        inner = [frame for frame in frames if _is_the_programs(frame[0])] or frames
        if not inner:
            continue  # a thread that ran no Python code
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

    folder: folder of this package; frames whose file name begins with it are removed.
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

PyTorch creates a new string for each entry, so equal strings are replaced by one object.
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
