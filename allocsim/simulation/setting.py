"""Allocator setting that a user can choose: a conf and a memory fraction.

A conf is an option string of PYTORCH_CUDA_ALLOC_CONF; a memory fraction limits reserved memory.
PyTorch 2.10 and later read the fraction from the conf.  Under earlier releases the program has to
call `torch.cuda.set_per_process_memory_fraction`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from allocsim.core import RELEASES, AllocatorConfig, Release, find_release, parse_conf
from allocsim.errors import ConfigError

IN_STRING = "per_process_memory_fraction"


@dataclass(frozen=True, slots=True)
class Setting:
    """Option string of PYTORCH_CUDA_ALLOC_CONF (`conf`), and memory fraction set by a call.

    call_fraction: argument of set_per_process_memory_fraction; None without a call.
    """

    conf: str
    call_fraction: float | None = None

    def config(self, release: Release) -> AllocatorConfig:
        return _config(self.conf, release.version)

    def fraction(self, release: Release) -> float | None:
        if self.call_fraction is not None:
            return self.call_fraction
        fraction = self.config(release).per_process_memory_fraction
        return fraction if fraction < 1.0 else None

    @property
    def n_options(self) -> int:
        return sum(1 for part in self.conf.split(",") if ":" in part) + bool(self.call_fraction)

    @property
    def simplicity(self) -> tuple[int, str]:
        """Sort key of settings with equal results: the simplest setting has the lowest key."""
        return self.n_options, self.conf

    def __str__(self) -> str:
        name = self.conf or "(defaults)"
        if self.call_fraction is not None:
            name += f" and a memory fraction of {self.call_fraction:g}"
        return name


@lru_cache(maxsize=1024)
def _config(conf: str, version: str) -> AllocatorConfig:
    # Cached, because a sweep parses each conf several times.
    return parse_conf(conf, find_release(version))


def in_option_string(release: Release) -> bool:
    return IN_STRING in release.options


def releases_needed(conf: str, release: Release, possible: Sequence[str]) -> str | None:
    """Name the releases that read `conf` as `release` does, such as "PyTorch 2.11 or later".

    Returns None if all `possible` releases read it so.
    """
    if all(_reads_alike(conf, release, version) for version in possible):
        return None
    # Extend the range from `release` in both directions while the meaning is the same.
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
    try:
        return str(_config(conf, version)) == str(_config(conf, release.version))
    except ConfigError:
        return False
