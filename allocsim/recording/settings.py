"""Allocator settings that a snapshot stores: the settings in effect when it was written.

PyTorch does not store all options: max_non_split_rounding_mb, segment size, memory fraction and
reserves are missing.  They are known only from the conf in the snapshot (semantics 6.5).
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.recording.fields import INT32_MAX, INT64_MAX, UINT64_MAX, Fields, describe

__all__ = ["RecordedSettings", "read_settings"]

_CONF = "PYTORCH_CUDA_ALLOC_CONF"
_LIMIT = "max_split_size"
_THRESHOLD = "garbage_collection_threshold"
_EXPANDABLE = "expandable_segments"
_DIVISIONS = "roundup_power2_divisions"
_KNOWN = (_CONF, _LIMIT, _THRESHOLD, _EXPANDABLE, _DIVISIONS)
_MAX_KEYS = 1000


@dataclass(frozen=True, slots=True)
class RecordedSettings:
    """`allocator_settings` of a snapshot (2.3 and later).

    conf: value of PYTORCH_CUDA_ALLOC_CONF; "" if it was not set.
    max_split_size: bytes; None for no limit.
    garbage_collection_threshold: share of the allowed memory, 0 to 1; 0 if off.
    roundup_power2_divisions: pairs of interval in MiB and number of divisions.
    other: remaining keys and values of the snapshot.
    """

    conf: str = ""
    max_split_size: int | None = None
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    roundup_power2_divisions: tuple[tuple[int, int], ...] = ()
    other: tuple[tuple[str, int | float | str], ...] = ()

    def plain(self) -> dict[str, object]:
        """Return the settings as a snapshot's dictionary, with PyTorch's keys."""
        return {
            _CONF: self.conf,
            _LIMIT: -1 if self.max_split_size is None else self.max_split_size,
            _THRESHOLD: self.garbage_collection_threshold,
            _EXPANDABLE: self.expandable_segments,
            **dict(self.other),
            _DIVISIONS: {str(mib): divisions for mib, divisions in self.roundup_power2_divisions},
        }


def read_settings(fields: Fields) -> RecordedSettings:
    """Return the settings in a snapshot's dictionary, with PyTorch's defaults for missing keys."""
    limit = fields.integer(_LIMIT, -1, UINT64_MAX) if _LIMIT in fields else -1
    return RecordedSettings(
        conf=fields.text(_CONF) if _CONF in fields else "",
        # "No limit" is the largest unsigned integer, which upstream may convert to -1.
        max_split_size=limit if 0 <= limit <= INT64_MAX else None,
        garbage_collection_threshold=fields.number(_THRESHOLD) if _THRESHOLD in fields else 0.0,
        expandable_segments=_EXPANDABLE in fields and fields.boolean(_EXPANDABLE),
        roundup_power2_divisions=_read_divisions(fields),
        other=_read_other(fields),
    )


def _read_divisions(fields: Fields) -> tuple[tuple[int, int], ...]:
    if _DIVISIONS not in fields:
        return ()
    table = Fields(fields.path, _DIVISIONS, fields.value(_DIVISIONS, "a dictionary"))
    pairs = []
    for key in table.keys()[:_MAX_KEYS]:
        if not key.isascii() or not key.isdigit() or len(key) > 10:
            table.refuse(f"{_DIVISIONS} has the key {describe(key)}, expected a number of MiB")
        pairs.append((int(key), table.integer(key, 0, INT32_MAX)))
    return tuple(sorted(pairs))


def _read_other(fields: Fields) -> tuple[tuple[str, int | float | str], ...]:
    values = {key: fields.value(key, "a setting") for key in fields.keys()[:_MAX_KEYS]}
    others = ((key, value) for key, value in values.items() if key not in _KNOWN)
    return tuple((key, value) for key, value in others if isinstance(value, int | float | str))
