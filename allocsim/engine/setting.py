"""One setting that a user could choose: an option string, and a memory fraction set by a call.

Rule: a fraction stands in the option string wherever the release reads one there (2.10 and
later); before, the program has to call `torch.cuda.set_per_process_memory_fraction`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from allocsim.core import RELEASES, AllocatorConfig, Release, find_release, parse_conf
from allocsim.errors import ConfigError

__all__ = ["Setting", "in_option_string", "releases_needed"]

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


def releases_needed(conf: str, release: Release, possible: Sequence[str]) -> str | None:
    """Which releases read `conf` as `release` does; None where every one of `possible` does.

    "PyTorch 2.11 or later"; `release` is always among them.
    """
    if all(_reads_alike(conf, release, version) for version in possible):
        return None
    versions = list(RELEASES)
    first = last = versions.index(release.version)
    while first > 0 and _reads_alike(conf, release, versions[first - 1]):
        first -= 1
    while last + 1 < len(versions) and _reads_alike(conf, release, versions[last + 1]):
        last += 1
    if last + 1 == len(versions):
        return f"PyTorch {versions[first]} or later"
    if first == last:
        return f"PyTorch {versions[first]}"
    return f"PyTorch {versions[first]} to {versions[last]}"


def _reads_alike(conf: str, release: Release, version: str) -> bool:
    """Whether the release of `version` takes `conf` and means by it what `release` does."""
    try:
        return str(_config(conf, version)) == str(_config(conf, release.version))
    except ConfigError:
        return False
