"""One out-of-memory error with everything known about it, from which the advice follows."""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.analysis.explain.cause import Figures
from allocsim.analysis.explain.message import OomMessage
from allocsim.analysis.explain.wording import TextRelease
from allocsim.core import AllocatorConfig
from allocsim.units import MIB, format_size


@dataclass(frozen=True, slots=True)
class Situation:
    """One error with everything known about it.

    cause: name of the cause, one of `CAUSES`.
    config: settings in force; None if the user gave none.
    release: release given by the user, or recognised from the words of the error; None if unknown.
    other_total: memory in bytes of another device, to say if the request would fit there; or None.
    is_windows: True if the text has Windows paths.
    """

    message: OomMessage
    figures: Figures
    cause: str
    config: AllocatorConfig | None = None
    release: TextRelease | None = None
    other_total: int | None = None
    is_windows: bool = False

    @property
    def variable(self) -> str:
        """Environment variable to set: named in the text, or else derived from the backend."""
        backend = self.message.backend if self.message.backend in ("HIP", "NPU") else "CUDA"
        return self.message.variable or f"PYTORCH_{backend}_ALLOC_CONF"

    @property
    def has_native_allocator(self) -> bool:
        """True if the backend reads PYTORCH_CUDA_ALLOC_CONF or a similar variable."""
        return not self.message.is_async and self.message.backend not in ("MPS", "CPU", "XPU")

    @property
    def is_expandable(self) -> bool:
        """True if the settings or the text show that expandable segments are on."""
        config = self.config
        return self.message.is_expandable or (config is not None and config.expandable_segments)

    @property
    def max_split_size_mb(self) -> int | None:
        """Value of max_split_size_mb in MiB; None if it is not set."""
        if self.config is None or self.config.max_split_size_stat() < 0:
            return None
        return self.config.max_split_size // MIB

    def knows(self, option: str) -> bool:
        """Return True if the release has the option, or if the release is unknown."""
        if self.release is None or self.message.backend == "NPU":
            return True
        return option in self.release.options


def outside_of(message: OomMessage, figures: Figures) -> str:
    """Name the holders of memory outside this process's PyTorch, with its size; "" if it is little.

    It decides if it is a tenth of the device, and if the driver, with it free, could have
    served the request.
    """
    capacity, free, tried = figures.capacity, figures.free_bytes, figures.tried_bytes
    if capacity is None or free is None or tried is None or message.backend == "MPS":
        return ""
    size, holder = figures.others_bytes, "other processes"
    if size is None:
        held = max(figures.reserved or 0, min(figures.process_bytes or 0, capacity))
        size, holder = capacity - free - held, "programs or libraries outside this PyTorch"
        if not held:
            return ""
    elif len(message.others) == 1:
        holder = f"process {message.others[0][0]}"
    if size < capacity // 10 or size + free < tried:
        return ""
    return f"{holder} held {format_size(size)} of the card"
