"""Call the model as a program would, and return its history as a recording.

The caller gives each request a line of a simulated program; everything else in the recording is the
history of the model (`kept_history.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count

import numpy as np

from allocsim.core import NEWEST, ReplayAllocator, TraceEntry
from allocsim.errors import OutOfMemoryError
from allocsim.recording import (
    Frame,
    FrameInterner,
    Provenance,
    Recording,
    write_npz,
    write_snapshot,
)
from allocsim.simulation import fold
from allocsim.workload.kept_history import KeptHistory

BASE_ADDRESS = 0x7F00_0000_0000
"""Address of the first segment, as on a real machine."""

SUFFIXES = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz", ".npz")
"""Supported file name endings.  PyTorch's viewer opens pickles; `.npz` loads fastest."""

_CHUNK = 1 << 16


class Recorder:
    """Allocator of one device whose requests are recorded, each with a line of code.

    device_memory: bytes, or text such as "16GiB".
    conf: value of PYTORCH_CUDA_ALLOC_CONF.
    release: PyTorch version.
    context_memory: bytes of the CUDA context.
    base_address: address of the first segment.
    oom_text: text of the out-of-memory error that ended the program; "" without an error.

    Raises ConfigError for an invalid setting.
    """

    def __init__(
        self,
        device_memory: int | str,
        conf: str = "",
        release: str = NEWEST,
        *,
        context_memory: int = 0,
        base_address: int = BASE_ADDRESS,
    ) -> None:
        self.allocator = ReplayAllocator(
            device_memory,
            conf,
            release,
            context_memory=context_memory,
            base_address=base_address,
            record_history=True,
        )
        self.allocator.count_with(fold)
        self._interner = FrameInterner()
        self._history: list[TraceEntry] = self.allocator.history
        self._taken = 0
        self._calls: list[tuple[int, int]] = []
        self._kept = KeptHistory()
        self.oom_text = ""

    # -- requests ------------------------------------------------------------------------

    @property
    def n_entries(self) -> int:
        """Number of recorded entries."""
        return self._taken + len(self._history)

    def code(self, filename: str, name: str, line: int) -> int:
        """Return a number for a line of the simulated program, to be passed with requests."""
        return self._interner.stack([self._interner.frame(Frame(filename, name, line))])

    def malloc(self, size: int, code: int, stream: int = 0) -> int:
        """Allocate `size` bytes, 1 or more, and return the address.

        code: number of the requesting line, from `code`.
        """
        try:
            address = self.allocator.malloc(size, stream)
        finally:
            self._note(code)
        assert address is not None
        return address

    def free(self, address: int, code: int) -> None:
        """Free the block at `address`."""
        self.allocator.free(address)
        self._note(code)

    def empty_cache(self) -> None:
        """Release all cached segments."""
        self.allocator.empty_cache()
        self._note(-1)

    def rounds(self, rounds: int, entries: int | None) -> Iterator[int]:
        """Yield 0, 1, … `rounds` times, or until `entries` entries exist if it is not None."""
        for number in count():
            if (number >= rounds) if entries is None else (self.n_entries >= entries):
                return
            yield number

    @contextmanager
    def program(self) -> Iterator[None]:
        """Return a context manager for the code of the simulated program.

        An out-of-memory error ends its block, and its text is stored in `oom_text`.
        """
        try:
            yield
        except OutOfMemoryError as error:
            self.oom_text = str(error)

    def _note(self, code: int) -> None:
        self._calls.append((len(self._history), code))
        if len(self._history) >= _CHUNK:
            self._take()

    # -- the recording -------------------------------------------------------------------

    def recording(self, kind: str, options: Mapping[str, object]) -> Recording:
        """Return the recording of all requests until now.

        kind, options: kind of program and options of `allocsim synth`, for the provenance.
        """
        provenance = Provenance(
            torch_version=f"{NEWEST}.0",
            device_name="a device that allocsim synth imagined",
            device_memory=self.allocator.device.total,
            is_phantom=True,
            command=f"allocsim synth {kind}" + "".join(_flags(options)),
            oom_text=self.oom_text,
        )
        self._note(-1)
        self._take()
        table = self._interner.table()
        return self._kept.recording(f"synth {kind}", self.allocator, table, provenance)

    def _take(self) -> None:
        """Move the allocator's history to `_kept`, and add the line of code to each entry."""
        ends, codes = np.array(self._calls, dtype=np.int64).T
        self._kept.take(self._history, np.repeat(codes, np.diff(ends, prepend=0)))
        self._taken += len(self._history)
        self._history.clear()
        self._calls.clear()


def _flags(options: Mapping[str, object]) -> Iterator[str]:
    """Yield " --name value" for each option that is set, or " --name" if its value is True."""
    for name, value in options.items():
        flag = f" --{name.replace('_', '-')}"
        if value is True:
            yield flag
        elif value is not None and value is not False and value != "":
            yield f"{flag} {value}"


def write_recording(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write `recording` to `path`, in the format that the file name shows; replace any file there.

    Equal recordings give equal bytes; gzip files have no timestamp.

    Raises ValueError if the name ends in none of `SUFFIXES`, and OSError if writing fails.
    """
    name = os.fspath(path)
    if not name.endswith(SUFFIXES):
        raise ValueError(f"{name} ends in none of {', '.join(SUFFIXES)}")
    write = write_npz if name.endswith(".npz") else write_snapshot
    write(recording, name)
