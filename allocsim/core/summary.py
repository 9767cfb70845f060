"""Table of torch.cuda.memory_summary(), from a flat dict of statistics.

A statistic has three rows (all, large pool, small pool), and each column of them has one unit,
chosen by the `all` value.  While the value is at least 768 * 1024 of a unit (750,000 for counts),
the next larger unit is used.  Values are divided as integers.  Source: semantics 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

_SINGLE = "-" * 75
_DOUBLE = "=" * 75
_SIZE_UNITS = ("B  ", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNT_UNITS = (" ", "K", "M")
_COLUMNS = ("current", "peak", "allocated", "freed")
_POOLS = (
    ("all", None),
    ("large_pool", "      from large pool"),
    ("small_pool", "      from small pool"),
)

_Cell = Callable[[int, float], str]
"""Function from a value, and the value that chooses the unit, to the text of a cell."""


def _size_cell(value: int, guide: float) -> str:
    unit = 0
    # As in torch.cuda.memory: the value is an integer, the value that chooses the unit a float.
    while unit + 1 < len(_SIZE_UNITS) and guide >= 768 * 1024:
        unit += 1
        value //= 1024
        guide /= 1024
    return f"{value:6d} {_SIZE_UNITS[unit]}"


def _count_cell(value: int, guide: float) -> str:
    unit = 0
    while unit + 1 < len(_COUNT_UNITS) and guide >= 750 * 1000:
        unit += 1
        value //= 1000
        guide /= 1000
    return f"{value:7d} {_COUNT_UNITS[unit]} "


_ROWS: tuple[tuple[str, str, _Cell], ...] = (
    ("Allocated memory", "allocated_bytes", _size_cell),
    ("Active memory", "active_bytes", _size_cell),
    ("Requested memory", "requested_bytes", _size_cell),
    ("GPU reserved memory", "reserved_bytes", _size_cell),
    ("Non-releasable memory", "inactive_split_bytes", _size_cell),
    ("Allocations", "allocation", _count_cell),
    ("Active allocs", "active", _count_cell),
    ("GPU reserved segments", "segment", _count_cell),
    ("Non-releasable allocs", "inactive_split", _count_cell),
)
_OVERSIZE = (
    ("Oversize allocations", "oversize_allocations"),
    ("Oversize GPU segments", "oversize_segments"),
)


def memory_summary(stats: Mapping[str, int], device: int) -> str:
    """Return the table for device number `device`; `stats` has the keys of memory_stats()."""
    oversize = [_row(title, stats, key, _count_cell) for title, key in _OVERSIZE]
    lines = [
        _DOUBLE,
        f"{'PyTorch CUDA memory summary, device ID ':>57}{device:<18}",
        _SINGLE,
        f"{'CUDA OOMs: ':>23}{stats['num_ooms']:<12} |"
        f"{'cudaMalloc retries: ':>28}{stats['num_alloc_retries']:<8}  ",
        _DOUBLE,
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ",
        *(line for title, key, cell in _ROWS for line in _group(title, stats, key, cell)),
        *(line for row in oversize for line in (_SINGLE, row)),
        _DOUBLE,
    ]
    return "".join(f"|{line}|\n" for line in lines)


def _group(title: str, stats: Mapping[str, int], key: str, cell: _Cell) -> list[str]:
    rows = [
        _row(name or title, stats, f"{key}.{pool}", cell, guide=f"{key}.all")
        for pool, name in _POOLS
    ]
    return [_SINGLE, *rows]


def _row(
    title: str, stats: Mapping[str, int], key: str, cell: _Cell, guide: str | None = None
) -> str:
    cells = (
        cell(stats[f"{key}.{column}"], stats[f"{guide or key}.{column}"]) for column in _COLUMNS
    )
    return f" {title:<21} | {' | '.join(cells)} "
