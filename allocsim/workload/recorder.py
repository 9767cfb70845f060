"""Requests played on the model, and its history of them as a recording.

Rule: every request names its line of code; what the recording says of it besides is the
allocator's own history (`kept_history.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count

import numpy as np

from allocsim.core import NEWEST, CachingAllocator, TraceEntry
from allocsim.engine import fold
from allocsim.errors import OutOfMemoryError
from allocsim.trace import Frame, FrameInterner, Provenance, Recording
from allocsim.workload.kept_history import KeptHistory

__all__ = ["BASE_ADDRESS", "Recorder"]

BASE_ADDRESS = 0x7F00_0000_0000
"""Where the driver's addresses begin, as they do on a real machine."""

_CHUNK = 1 << 16


class Recorder:
    """A device, and the recording of what is asked of it.

    device_memory: bytes, or text such as "16GiB".  conf: what PYTORCH_CUDA_ALLOC_CONF says.
    The others are those of `CachingAllocator`.  oom_text: the error that ended the program, if any.
    Raises ConfigError for what the allocator refuses.
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
        self.allocator = CachingAllocator(
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
        """How many entries the recording has so far."""
        return self._taken + len(self._history)

    def code(self, filename: str, name: str, line: int) -> int:
        """The number of a line of the imagined program, to be given with its requests."""
        return self._interner.stack([self._interner.frame(Frame(filename, name, line))])

    def malloc(self, size: int, code: int, stream: int = 0) -> int:
        """The address of a block of at least `size` bytes, 1 or more."""
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
        """Give back what no block uses."""
        self.allocator.empty_cache()
        self._note(-1)

    def rounds(self, rounds: int, entries: int | None) -> Iterator[int]:
        """0, 1, ... up to `rounds`, or until there are `entries` entries if that is given."""
        for number in count():
            if (number >= rounds) if entries is None else (self.n_entries >= entries):
                return
            yield number

    @contextmanager
    def program(self) -> Iterator[None]:
        """A program that an out-of-memory error ends, as it would a real one."""
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
        """The whole recording.  kind, options: those of `allocsim synth`."""
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
        """Turn the history so far into columns, and forget it."""
        ends, codes = np.array(self._calls, dtype=np.int64).T
        self._kept.take(self._history, np.repeat(codes, np.diff(ends, prepend=0)))
        self._taken += len(self._history)
        self._history.clear()
        self._calls.clear()


def _flags(options: Mapping[str, object]) -> Iterator[str]:
    """The options that are not off, as on a command line, each with a space before it."""
    for name, value in options.items():
        flag = f" --{name.replace('_', '-')}"
        if value is True:
            yield flag
        elif value is not None and value is not False and value != "":
            yield f"{flag} {value}"
