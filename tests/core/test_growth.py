"""max_split_size_mb with expandable_segments: reserved memory that grows without limit.

The program is from a public report of August 2026, on a real 16 GiB card (Radeon RX 9070 XT,
PyTorch 2.12): each cycle allocates 91 MiB and 45.5 MiB, then 2 MiB that stay, and frees the first
two.  The report gives reserved and allocated memory after every twentieth cycle, and the cycle
where the full device forced a retry.  Two values are assumptions: 64 MiB allocated first (66 MiB
after cycle 0), and 16,000 to 16,099 MiB for the allocator (the reported peak is 16,000, and the
next handles did not fit).
"""

from __future__ import annotations

from typing import Any

import pytest

from allocsim.core import RELEASES, CachingAllocator
from allocsim.errors import UnavailableError, UpstreamAssertionError
from allocsim.state import INACTIVE
from allocsim.units import MIB, round_up
from allocsim.verify import RealAllocator, Script
from allocsim.verify.player import play

PAIR = "max_split_size_mb:128,expandable_segments:True"
CARD = 16 << 30
REPORTED = {
    0: (66, 220),
    20: (106, 2980),
    40: (146, 5760),
    60: (186, 8520),
    80: (226, 11300),
    100: (266, 14060),
}
"""Cycle: (allocated, reserved) after it, in MiB."""


def ops(n_cycles: int, *, survivor: bool = True) -> list[list[Any]]:
    """Return the program as an op script."""
    script: list[list[Any]] = [["a", "first", 64 * MIB, 0]]
    for cycle in range(n_cycles):
        big, half, stays = f"big {cycle}", f"half {cycle}", f"stays {cycle}"
        script += [["a", big, 91 * MIB, 0], ["a", half, 91 * MIB // 2, 0]]
        if survivor:
            script.append(["a", stays, 2 * MIB, 0])
        script += [["f", big], ["f", half]]
    return script


def memory_after(
    n_cycles: int, conf: str, version: str, card: int = CARD, *, survivor: bool = True
) -> tuple[int, int, int]:
    """Return (allocated, reserved, peak reserved) in MiB after a cycle."""
    stats = play(Script(ops(n_cycles, survivor=survivor), card, conf), version).stats
    reserved = stats["reserved_bytes.all"]
    return stats["allocated_bytes.all"][0] // MIB, reserved[0] // MIB, reserved[1] // MIB


@pytest.mark.parametrize("version", RELEASES)
def test_reserved_climbs_as_reported(version: str) -> None:
    for cycle, figures in REPORTED.items():
        assert memory_after(cycle + 1, PAIR, version)[:2] == figures


def test_nothing_freed_is_ever_used_again() -> None:
    gpu = CachingAllocator(CARD, PAIR)
    gpu.malloc(64 * MIB)
    for cycle in range(100):
        big, half = gpu.malloc(91 * MIB), gpu.malloc(91 * MIB // 2)
        gpu.malloc(2 * MIB)
        gpu.free(big)
        gpu.free(half)
        taken = 64 * MIB + (cycle + 1) * 277 * MIB // 2
        assert gpu.reserved_bytes == round_up(taken, 20 * MIB)
    (segment,) = gpu.segments()
    fenced = [block.size for block in segment.blocks if block.state == INACTIVE]
    assert fenced.count(273 * MIB // 2) == 100


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("conf", ["", "max_split_size_mb:128", "expandable_segments:True"])
def test_either_option_alone_stays_small(conf: str, version: str) -> None:
    allocated, reserved, peak = memory_after(101, conf, version)
    assert allocated == 266
    assert reserved == peak < 500


def test_without_the_survivor_it_stays_small() -> None:
    assert memory_after(101, PAIR, "2.15", survivor=False) == (64, 220, 220)


@pytest.mark.parametrize("card", [16000, 16050, 16099])
def test_a_full_device_ends_as_reported(card: int) -> None:
    """The report, after cycle 115: 296 MiB allocated, 2,680 reserved, 16,000 at peak, 1 retry."""
    outcome = play(Script(ops(116), card * MIB, PAIR), "2.12")
    stats = outcome.stats
    assert stats["allocated_bytes.all"][0] == 296 * MIB
    assert stats["reserved_bytes.all"][:2] == [2680 * MIB, 16000 * MIB]
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (1, 0)


@pytest.mark.parametrize("version", RELEASES)
def test_a_full_device_ended_the_program_up_to_2_4(version: str) -> None:
    """A published text of that time: "!block->expandable_segment_ INTERNAL ASSERT FAILED"."""
    outcome = play(Script(ops(116), 16050 * MIB, PAIR), version)
    if RELEASES[version].release_skips_expandable:
        assert outcome.stopped is None
    else:
        assert outcome.stopped is not None
        assert isinstance(outcome.stopped[1], UpstreamAssertionError)
        assert outcome.stopped[0] == 1 + 115 * 5


def test_only_a_request_of_the_limit_gets_the_fenced_memory() -> None:
    gpu = CachingAllocator(CARD, PAIR)
    big, half = gpu.malloc(91 * MIB), gpu.malloc(91 * MIB // 2)
    gpu.malloc(2 * MIB)
    gpu.free(big)
    gpu.free(half)
    below = gpu.malloc(128 * MIB - 512)
    assert below is not None and below >= 138 * MIB
    assert gpu.malloc(128 * MIB) == 0


@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_the_real_allocator_grows_alike(version: str) -> None:
    try:
        real = RealAllocator(version)
    except UnavailableError as error:
        pytest.skip(str(error))
    for card in (CARD, 16050 * MIB):
        script = ops(116)
        theirs = real.run(Script(script, card, PAIR))
        ours = play(Script(script, card, PAIR), version)
        assert (theirs.stopped or (None,))[0] == (ours.stopped or (None,))[0]
        assert theirs.addresses == ours.addresses
        assert theirs.trace == ours.trace
        for key in ("allocated_bytes.all", "reserved_bytes.all", "num_alloc_retries"):
            assert theirs.stats[key] == ours.stats[key]
