"""Table of memory_summary(), compared exactly.

The expected text is printed by `torch.cuda.memory_summary` of PyTorch 2.13 for these figures.
"""

from __future__ import annotations

from allocsim import CachingAllocator
from allocsim.core.snapshot import memory_summary
from allocsim.units import MIB

COLUMNS = ("current", "peak", "allocated", "freed")
FIGURES = {
    "allocated_bytes": (786_431, 786_432, 805_306_367, 805_306_368),
    "active_bytes": (1023, 805_306_368, 3 << 40, 1 << 52),
    "requested_bytes": (0, 1, 1024, 1_000_000_000),
    "reserved_bytes": (62_914_560, 24_696_061_952, 1_319_413_953_331, 0),
    "inactive_split_bytes": (13_630_976, 20_971_008, 46_281_216, 32_650_240),
    "allocation": (749_999, 750_000, 749_999_999, 750_000_000),
    "active": (1, 22, 333, 4444),
    "segment": (5, 5, 5, 0),
    "inactive_split": (3, 3, 6_000_000_000, 3),
}
EXPECTED = """\
|===========================================================================|
|                  PyTorch CUDA memory summary, device ID 1                 |
|---------------------------------------------------------------------------|
|            CUDA OOMs: 3            |        cudaMalloc retries: 12        |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      | 786431 B   |    768 KiB | 786431 KiB |    768 MiB |
|       from large pool | 524288 B   |    512 KiB | 524288 KiB |    512 MiB |
|       from small pool | 262143 B   |    256 KiB | 262143 KiB |    256 MiB |
|---------------------------------------------------------------------------|
| Active memory         |   1023 B   |    768 MiB |   3072 GiB |   4096 TiB |
|       from large pool |    682 B   |    512 MiB |   2048 GiB |   2730 TiB |
|       from small pool |    341 B   |    256 MiB |   1024 GiB |   1365 TiB |
|---------------------------------------------------------------------------|
| Requested memory      |      0 B   |      1 B   |   1024 B   |    953 MiB |
|       from large pool |      0 B   |      1 B   |    683 B   |    635 MiB |
|       from small pool |      0 B   |      0 B   |    341 B   |    317 MiB |
|---------------------------------------------------------------------------|
| GPU reserved memory   |  61440 KiB |  23552 MiB |   1228 GiB |      0 B   |
|       from large pool |  40960 KiB |  15701 MiB |    819 GiB |      0 B   |
|       from small pool |  20480 KiB |   7850 MiB |    409 GiB |      0 B   |
|---------------------------------------------------------------------------|
| Non-releasable memory |  13311 KiB |  20479 KiB |  45196 KiB |  31885 KiB |
|       from large pool |   8874 KiB |  13653 KiB |  30131 KiB |  21256 KiB |
|       from small pool |   4437 KiB |   6826 KiB |  15065 KiB |  10628 KiB |
|---------------------------------------------------------------------------|
| Allocations           |  749999    |     750 K  |  749999 K  |     750 M  |
|       from large pool |  500000    |     500 K  |  500000 K  |     500 M  |
|       from small pool |  249999    |     250 K  |  249999 K  |     250 M  |
|---------------------------------------------------------------------------|
| Active allocs         |       1    |      22    |     333    |    4444    |
|       from large pool |       1    |      15    |     222    |    2963    |
|       from small pool |       0    |       7    |     111    |    1481    |
|---------------------------------------------------------------------------|
| GPU reserved segments |       5    |       5    |       5    |       0    |
|       from large pool |       4    |       4    |       4    |       0    |
|       from small pool |       1    |       1    |       1    |       0    |
|---------------------------------------------------------------------------|
| Non-releasable allocs |       3    |       3    |    6000 M  |       3    |
|       from large pool |       2    |       2    |    4000 M  |       2    |
|       from small pool |       1    |       1    |    2000 M  |       1    |
|---------------------------------------------------------------------------|
| Oversize allocations  |       0    |     900 K  |    1800 K  |    2700 K  |
|---------------------------------------------------------------------------|
| Oversize GPU segments |       0    |     900 K  |    1800 K  |    2700 K  |
|===========================================================================|
"""


def figures() -> dict[str, int]:
    """Return figures with a third in the small pool; the two oversize rows count up."""
    stats = {"num_ooms": 3, "num_alloc_retries": 12}
    for name, values in FIGURES.items():
        for column, value in zip(COLUMNS, values, strict=True):
            stats[f"{name}.all.{column}"] = value
            stats[f"{name}.large_pool.{column}"] = value - value // 3
            stats[f"{name}.small_pool.{column}"] = value // 3
    for name in ("oversize_allocations", "oversize_segments"):
        for i, column in enumerate(COLUMNS):
            stats[f"{name}.{column}"] = i * 900_000
    return stats


def test_the_whole_table() -> None:
    assert memory_summary(figures(), 1) == EXPECTED


def test_an_allocator_prints_its_own() -> None:
    a = CachingAllocator("1GiB", device=5)
    a.malloc(3 * MIB)
    table = a.memory_summary()
    assert "|                  PyTorch CUDA memory summary, device ID 5  " in table
    assert "| GPU reserved memory   |  20480 KiB |  20480 KiB |  20480 KiB |      0 B   |" in table
    assert "| GPU reserved segments |       1    |       1    |       1    |       0    |" in table
    assert len({len(line) for line in table.splitlines()}) == 1


def test_the_largest_unit_keeps_growing() -> None:
    """There is no unit above PiB and M."""
    stats = figures()
    for i, column in enumerate(COLUMNS):
        stats[f"active_bytes.all.{column}"] = 1 << (59, 60, 69, 70)[i]
        stats[f"active.all.{column}"] = 10 ** (9 + i)
    rows = [line.rstrip("|").split("|")[2:] for line in memory_summary(stats, 0).splitlines()]
    assert ["524288 TiB", "1024 PiB", "524288 PiB", "1048576 PiB"] in [
        [cell.strip() for cell in row] for row in rows
    ]
    assert ["1000 M", "10000 M", "100000 M", "1000000 M"] in [
        [cell.strip() for cell in row] for row in rows
    ]
