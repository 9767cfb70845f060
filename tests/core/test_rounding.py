"""Rounding of requests to block sizes (semantics 1.2), from the rules."""

from __future__ import annotations

import pytest

from allocsim.core import RELEASES, find_release, parse_conf
from allocsim.units import GIB, KIB, MIB

DIVISIONS = "roundup_power2_divisions:"
LIST = f"{DIVISIONS}[16:8,32:4,64:2,>:4]"


def rounded(size: int, conf: str = "", torch: str = "2.15") -> int:
    return parse_conf(conf, find_release(torch)).round_size(size)


@pytest.mark.parametrize("torch", RELEASES)
@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, 512),
        (511, 512),
        (512, 512),
        (513, 1024),
        (MIB - 1, MIB),
        (MIB, MIB),
        (MIB + 1, MIB + 512),
        (2 * MIB - 1, 2 * MIB),
        (2 * MIB, 2 * MIB),
        (2 * MIB + 1, 2 * MIB + 512),
        (10 * MIB - 1, 10 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512),
        (20 * MIB - 1, 20 * MIB),
        (20 * MIB + 1, 20 * MIB + 512),
    ],
)
def test_requests_are_rounded_to_512(torch: str, size: int, expected: int) -> None:
    assert rounded(size, torch=torch) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, 512),
        (2047, 2048),  # not above 4 * 512: plain
        (2048, 2048),
        (2049, 2560),  # 2048 in four steps of 512
        (2561, 3072),
        (3585, 4096),
        (4096, 4096),  # a power of two stays
        (4097, 5120),
        (1200 * KIB, 1280 * KIB),
        (3 * MIB, 3 * MIB),
        (3 * MIB + 1, 3 * MIB + 512 * KIB),
        (40 * GIB, 40 * GIB),
        (40 * GIB + 1, 48 * GIB),
    ],
)
def test_four_divisions_round_to_quarters_of_a_power_of_two(size: int, expected: int) -> None:
    assert rounded(size, f"{DIVISIONS}4") == expected


@pytest.mark.parametrize("torch", RELEASES)
def test_one_division_leaves_sizes_unrounded_before_2_4(torch: str) -> None:
    unrounded = torch in ("2.1", "2.2", "2.3")
    assert rounded(1000, f"{DIVISIONS}1", torch) == (1000 if unrounded else 1024)
    assert rounded(400, f"{DIVISIONS}1", torch) == 512
    assert rounded(512, f"{DIVISIONS}1", torch) == 512


@pytest.mark.parametrize("torch", RELEASES)
def test_the_worked_list_depends_on_where_its_tail_starts(torch: str) -> None:
    """Request 70,000,001 under [16:8,32:4,64:2,>:4], the example of section 1.2."""
    overwritten = int(torch.split(".")[1]) < 10
    expected = 83_886_080 if overwritten else 100_663_296
    assert rounded(70_000_001, LIST, torch) == expected


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ("4", [4] * 16),
        ("[16:8]", [8] * 5 + [0] * 11),  # the first pair fills downwards, nothing upwards
        ("[2:8,16:4]", [8, 8, 0, 0, 4] + [0] * 11),  # intervals between them keep 0
        ("[2:8,16:4,>:2]", [8, 8, 0, 0, 4] + [2] * 11),
        ("[16:8,2:4]", [8, 4, 8, 8, 8] + [0] * 11),  # order is not checked
        ("[65536:8]", [8] * 16),  # keys beyond the last interval mean the last
        ("[32768:4,>:8]", [4] * 16),
        ("[]", [0] * 16),
    ],
)
def test_lists_fill_the_sixteen_intervals(conf: str, expected: list[int]) -> None:
    config = parse_conf(DIVISIONS + conf, find_release("2.15"))
    assert list(config.roundup_power2_divisions) == expected


@pytest.mark.parametrize(
    ("size", "interval"),
    [
        (1, 0),
        (MIB, 0),
        (2 * MIB - 1, 0),
        (2 * MIB, 1),
        (4 * MIB - 1, 1),
        (4 * MIB, 2),
        (32 * GIB - 1, 14),
        (32 * GIB, 15),
        (1000 * GIB, 15),
    ],
)
def test_the_interval_is_that_of_the_request(size: int, interval: int) -> None:
    pairs = ",".join(f"{1 << i}:{2 << i}" for i in range(16))
    config = parse_conf(f"{DIVISIONS}[{pairs}]", find_release("2.15"))
    assert config.divisions_of(size) == 2 << interval


@pytest.mark.parametrize(
    ("size", "conf", "segment"),
    [
        (512, "", 2 * MIB),
        (MIB, "", 2 * MIB),
        (MIB + 512, "", 20 * MIB),
        (2 * MIB, "", 20 * MIB),
        (10 * MIB - 512, "", 20 * MIB),
        (10 * MIB, "", 10 * MIB),
        (10 * MIB + 512, "", 12 * MIB),
        (20 * MIB, "", 20 * MIB),
        (20 * MIB + 512, "", 22 * MIB),
        (10 * MIB - 512, "large_segment_size_mb:64", 64 * MIB),
        (10 * MIB, "large_segment_size_mb:64", 10 * MIB),
        (63 * MIB, "large_segment_size_mb:64", 64 * MIB),
    ],
)
def test_segments_have_the_size_of_their_class(size: int, conf: str, segment: int) -> None:
    """Semantics 1.4."""
    assert parse_conf(conf, find_release("2.15")).segment_size(size) == segment
