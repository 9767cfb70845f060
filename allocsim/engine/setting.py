"""One setting that a user could choose: an option string, and a memory fraction set by a call.

Rule: a fraction stands in the option string wherever the release reads one there (2.10 and
later); before, the program has to call `torch.cuda.set_per_process_memory_fraction`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from allocsim.core import AllocatorConfig, Release, find_release, parse_conf

__all__ = ["Setting", "in_option_string"]

IN_STRING = "per_process_memory_fraction"


@dataclass(frozen=True, slots=True)
class Setting:
    """conf: what PYTORCH_CUDA_ALLOC_CONF says.  call_fraction: for the call, None for no call."""

    conf: str
    call_fraction: float | None = None

    def config(self, release: Release) -> AllocatorConfig:
        """What `conf` means; raises ConfigError where the release refuses it."""
        return _config(self.conf, release.version)

    def fraction(self, release: Release) -> float | None:
        """The memory fraction in force, None where nothing limits the process."""
        if self.call_fraction is not None:
            return self.call_fraction
        fraction = self.config(release).per_process_memory_fraction
        return fraction if fraction < 1.0 else None

    @property
    def n_options(self) -> int:
        """How many things there are to set: of equals the one with fewer is preferred."""
        return sum(1 for part in self.conf.split(",") if ":" in part) + bool(self.call_fraction)

    @property
    def simplicity(self) -> tuple[int, str]:
        """What decides between settings of equal figures: the lower is preferred."""
        return self.n_options, self.conf

    def __str__(self) -> str:
        name = self.conf or "(defaults)"
        if self.call_fraction is not None:
            name += f" and a memory fraction of {self.call_fraction:g}"
        return name


@lru_cache(maxsize=1024)
def _config(conf: str, version: str) -> AllocatorConfig:
    """Read once, because a sweep asks several times for each job."""
    return parse_conf(conf, find_release(version))


def in_option_string(release: Release) -> bool:
    """Whether the release reads the memory fraction from the option string."""
    return IN_STRING in release.options
