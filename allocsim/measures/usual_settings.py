"""The few settings that are tried unasked, where a search over all would take too long.

Rule: options that limit the process (a memory fraction, a reserve) and those of pinned memory stay
as recorded; only how memory is cut into segments and blocks varies.
"""

from __future__ import annotations

from allocsim.core import AllocatorConfig, parse_conf
from allocsim.engine import Setting
from allocsim.errors import ConfigError

__all__ = ["usual_settings"]

_OPTIONS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "large_segment_size_mb:512",
    "roundup_power2_divisions:2",
    "roundup_power2_divisions:8",
)


def usual_settings(recorded: AllocatorConfig) -> tuple[Setting, ...]:
    """The usual settings that the release of `recorded` accepts and that differ from it."""
    kept = str(recorded.with_default_cuts())
    found = []
    for option in _OPTIONS:
        conf = ",".join(part for part in (option, kept) if part)
        try:
            config = parse_conf(conf, recorded.release)
        except ConfigError:
            continue
        if str(config) != str(recorded):
            found.append(Setting(conf))
    return tuple(found)
