"""Option strings: which ones a release accepts, how it reads values, and the state after a refusal.

Semantics 8 and 12.5.  The rows marked "observed" were run through the compiled allocators of 2.1.2
to 2.15.0, one patch release for each minor release, and their configuration was read; the rest
follows from the rules.
"""

from __future__ import annotations

from typing import Any

import pytest

from allocsim import CachingAllocator
from allocsim.core import RELEASES, AllocatorConfig, find_release, parse_conf
from allocsim.core.option_string import MAX_LENGTH, BadOptionError, parse
from allocsim.errors import ConfigError
from allocsim.units import MIB

ORDER = list(RELEASES)
OLD = ORDER[: ORDER.index("2.10")]
NEW = ORDER[ORDER.index("2.10") :]
NO = "refused"
UNLIMITED = (1 << 64) - 1
MOST = UNLIMITED // MIB * MIB  # mebibytes beyond this many bytes are cut to it

SPLIT, ROUND = "max_split_size_mb", "roundup_power2_divisions"
GC, EXPAND = "garbage_collection_threshold", "expandable_segments"
FRACTION, LARGE = "per_process_memory_fraction", "large_segment_size_mb"
WASTE = "max_non_split_rounding_mb"


def read(torch: str, conf: str, field: str) -> Any:
    try:
        return getattr(parse_conf(conf, find_release(torch)), field)
    except BadOptionError:
        return NO


SIZES = [  # observed: (value, MiB up to 2.9, MiB since 2.10)
    ("30", 30, 30),
    ("30.7", 30, 30),
    ("30x", 30, 30),
    ("+30", 30, 30),
    (" 3 0 ", 30, 30),
    ("030", 30, 30),
    ("30e", 30, 30),
    ("3_0", NO, NO),
    ("1e3", NO, NO),  # 1, and that is too small
    ("0x1E", NO, NO),
    ("x30", NO, NO),
    ("", NO, NO),
    ("+", NO, NO),
    ("--30", NO, NO),
    ("inf", NO, NO),
    ("\uff13\uff10", NO, NO),
    ("20", NO, 20),
    ("21", 21, 21),
    ("19", NO, NO),
    ("0", NO, NO),
    ("-5", MOST // MIB, MOST // MIB),  # wraps around
    ("-18446744073709551590", NO, 26),
    ("2147483647", 2147483647, 2147483647),
    ("2147483648", NO, 2147483648),
    ("17592186044415", NO, MOST // MIB),
    ("17592186044437", NO, MOST // MIB),  # cut, not wrapped
    ("18446744073709551615", NO, MOST // MIB),
    ("18446744073709551616", NO, NO),
    ("9" * 5000, NO, NO),
]


@pytest.mark.parametrize(("value", "old", "new"), SIZES)
def test_sizes_are_read_by_prefix(value: str, old: int | str, new: int | str) -> None:
    for torch in ORDER:
        expected = old if torch in OLD else new
        found = read(torch, f"{SPLIT}:{value}", "max_split_size")
        assert found == (expected if isinstance(expected, str) else expected * MIB), torch


@pytest.mark.parametrize(
    ("value", "shown"), [("-5", -1048576), ("64", 64 * MIB), ("18446744073709551615", -1048576)]
)
def test_a_size_is_shown_as_a_signed_word(value: str, shown: int) -> None:
    """Observed in the snapshot's settings and in the statistic."""
    config = parse_conf(f"{SPLIT}:{value}", find_release("2.15"))
    assert config.max_split_size_stat() == config.settings()["max_split_size"] == shown


NUMBERS = [  # observed, the same in all releases that have the option
    ("0.5", 0.5),
    ("0.8x", 0.8),
    ("0.5.5", 0.5),
    (".5", 0.5),
    ("+0.5", 0.5),
    (" 0 . 5 ", 0.5),
    ("1e-3", 0.001),
    ("0x1p-1", 0.5),
    ("0x0.8p0", 0.5),
    ("5.", NO),
    ("0,5", NO),
    ("-0.5", NO),
    ("nan", NO),
    ("inf", NO),
    ("abc", NO),
    ("", NO),
    ("1e400", NO),
    ("1e-310", NO),  # below the normal doubles
    ("1e-400", NO),
]


@pytest.mark.parametrize(("value", "expected"), NUMBERS)
def test_fractions_are_read_as_c_reads_doubles(value: str, expected: object) -> None:
    for torch in ORDER:
        assert read(torch, f"{GC}:{value}", "garbage_collection_threshold") == expected
        if torch in NEW:
            assert read(torch, f"{FRACTION}:{value}", "per_process_memory_fraction") == expected


@pytest.mark.parametrize(
    ("value", "threshold", "fraction"),
    [("0", NO, 0.0), ("0.", NO, 0.0), ("1", NO, 1.0), ("1.0", NO, 1.0), ("2", NO, NO)],
)
def test_a_threshold_excludes_its_ends_and_a_fraction_has_them(
    value: str, threshold: object, fraction: object
) -> None:
    assert read("2.15", f"{GC}:{value}", "garbage_collection_threshold") == threshold
    assert read("2.15", f"{FRACTION}:{value}", "per_process_memory_fraction") == fraction


@pytest.mark.parametrize("torch", ORDER)
@pytest.mark.parametrize(
    ("value", "expected"),
    [("True", True), ("False", False), (" T rue", True)]
    + [(word, NO) for word in ("true", "TRUE", "1", "0", "yes", "", "Truex", "[True]")],
)
def test_flags_are_true_or_false_in_these_very_letters(
    torch: str, value: str, expected: object
) -> None:
    for key in sorted({EXPAND, "release_lock_on_cudamalloc"} & find_release(torch).options):
        found = read(torch, f"{key}:{value}", "host" if key != EXPAND else EXPAND)
        assert (found if found == NO or key == EXPAND else found[key]) == expected


@pytest.mark.parametrize("torch", ORDER)
@pytest.mark.parametrize("value", ["0", "1", "10", "11", "20", "40", "-20"])
def test_the_large_segment_size_sets_the_least_of_the_others(torch: str, value: str) -> None:
    """2.11+: above 10, and read first wherever it occurs."""
    is_known = ORDER.index(torch) >= ORDER.index("2.11")
    accepted = is_known and value in ("11", "20", "40", "-20")
    size = read(torch, f"{LARGE}:{value}", "large_segment_size")
    assert size == ((MOST if value == "-20" else int(value) * MIB) if accepted else NO)
    if accepted and value != "-20":
        least = int(value)
        for key, field in ((SPLIT, "max_split_size"), (WASTE, "max_non_split_rounding")):
            for conf in (f"{LARGE}:{value},{key}:{{}}", f"{key}:{{}},{LARGE}:{value}"):
                assert read(torch, conf.format(least), field) == least * MIB
                assert read(torch, conf.format(least - 1), field) == NO
        assert read(torch, f"{LARGE}:{value}", "max_non_split_rounding") == least * MIB


DIVISIONS = [  # observed: (value, up to 2.3, 2.4 to 2.9, since 2.10)
    ("4", [4] * 16, [4] * 16, [4] * 16),
    ("4.9", [4] * 16, [4] * 16, [4] * 16),
    ("1", [1] * 16, [1] * 16, [1] * 16),
    ("0", NO, NO, NO),
    ("3", NO, NO, NO),
    ("-2", NO, NO, NO),
    ("2147483648", NO, NO, [2147483648] * 16),
    ("[", [0] * 16, [0] * 16, NO),  # a list may end with the string up to 2.9
    ("[1:2,", [2] + [0] * 15, [2] + [0] * 15, NO),
    ("[1:2", NO, NO, NO),  # crashes up to 2.6
    ("[1:2,]", [2] + [0] * 15, [2] + [0] * 15, [2] + [0] * 15),
    ("[,1:2]", NO, NO, NO),
    ("[1:2,,4:4]", NO, NO, NO),
    ("[[1:2]]", NO, NO, NO),
    ("[1:[2]]", NO, NO, NO),
    ("[1]", NO, NO, NO),
    ("[1:]", NO, NO, NO),
    ("[:2]", NO, NO, NO),
    ("[3:2]", NO, NO, NO),
    ("[0:2]", NO, NO, NO),
    ("[-1:2]", NO, NO, NO),
    ("[1:3]", NO, NO, NO),
    ("[2x:2]", [2, 2] + [0] * 14, [2, 2] + [0] * 14, [2, 2] + [0] * 14),
    ("[16:0,>:2]", NO, [0] * 4 + [2] * 12, [0] * 5 + [2] * 11),
    ("[>:4]", [4] * 16, [4] * 16, [0] + [4] * 15),
    ("[>:4,8:2]", [2] * 4 + [4] * 12, [2] * 4 + [4] * 12, [2] * 4 + [4] * 12),
    ("[1:2,>:4,8:2]", [4, 4, 4, 2] + [4] * 12, [4, 4, 4, 2] + [4] * 12, [2, 4, 4, 2] + [4] * 12),
    ("[1:2,>:4,>:8]", [8] * 16, [8] * 16, [2] + [8] * 15),
    ("[32768:4,>:8]", [4] * 15 + [8], [4] * 15 + [8], [4] * 16),
    ("[64:2,16:8,>:4]", [2] * 4 + [4] * 12, [2] * 4 + [4] * 12, [2] * 4 + [8] + [4] * 11),
    ("[9223372036854775808:2]", [2] * 16, [2] * 16, [2] * 16),
    ("[18446744073709551616:2]", NO, NO, NO),
    ("[1:2147483648]", NO, NO, [2147483648] + [0] * 15),
    ("[1:2 4:4]", NO, NO, NO),
    ("4[1:2]", NO, NO, NO),
]


@pytest.mark.parametrize(("value", "first", "middle", "last"), DIVISIONS)
def test_divisions(value: str, first: object, middle: object, last: object) -> None:
    for torch in ORDER:
        expected = last if torch in NEW else first if ORDER.index(torch) < 3 else middle
        found = read(torch, f"{ROUND}:{value}", "roundup_power2_divisions")
        assert (found if found == NO else list(found)) == expected, torch


@pytest.mark.parametrize("torch", ORDER)
def test_a_second_list_goes_on_top_of_the_first(torch: str) -> None:
    """Observed: only the start of a string resets."""
    for first, expected in (("[16:8]", [2, 8, 8, 8, 8] + [0] * 11), ("4", [2] + [4] * 15)):
        conf = f"{ROUND}:{first},{ROUND}:[1:2]"
        assert list(read(torch, conf, "roundup_power2_divisions")) == expected


SEPARATORS = [  # observed: (string, accepted up to 2.9, accepted since 2.10)
    ("", True, True),
    (" ", True, True),
    (f"{SPLIT}:30,", True, True),
    (f"{SPLIT}:30,{GC}:0.5", True, True),
    (f"{SPLIT}:30,{SPLIT}:40", True, True),
    (f"{SPLIT},30", False, True),
    (f"{SPLIT},30,{GC},0.5", False, True),
    (f"{SPLIT}:30:{GC}:0.5", False, True),
    (f"{SPLIT}:30]", False, True),
    (f"{SPLIT}[30", False, True),
    (f"{SPLIT}]30", False, True),
    (f"{SPLIT}:30[", False, True),
    (f"{SPLIT}::30", False, False),
    (f"{SPLIT}:[30]", False, False),
    (f"{SPLIT}:30,,{GC}:0.5", False, False),
    (f"{SPLIT}:30,,", False, False),
    (f",{SPLIT}:30", False, False),
    (f"{SPLIT}:30;{GC}:0.5", False, False),  # "30;garbage..." is 30, but ":" is left
    (f"{SPLIT}:30;", True, True),
    (f"{SPLIT}=30", False, False),
    (f"{SPLIT} 30", False, False),
    (SPLIT, False, False),
    (f"{SPLIT}:", False, False),
    (f"{SPLIT}:30,{GC}", False, False),
    (f"[{SPLIT}:30]", False, False),
    (f'"{SPLIT}:30"', False, False),
    (SPLIT.upper() + ":30", False, False),
    ("foo:1", False, False),
    (",", False, False),
    (":", False, False),
    ("expandable_segments_handle_type:posix_fd", False, False),
    ("roundup_bypass_threshold_mb:20", False, False),
    ("backend:native", True, True),
    ("backend:Native", False, False),
    ("backend:", False, False),
]


@pytest.mark.parametrize(("conf", "old", "new"), SEPARATORS)
def test_separators(conf: str, old: bool, new: bool) -> None:
    for torch in ORDER:
        expected = old if torch in OLD else new
        assert (read(torch, conf, "text") == conf) is expected, torch


@pytest.mark.parametrize("torch", ORDER)
def test_up_to_2_9_only_spaces_are_dropped(torch: str) -> None:
    """Observed: elsewhere a tab ends the number, or precedes it."""
    assert read(torch, f"{SPLIT}:30\t0", "max_split_size") == (30 if torch in OLD else 300) * MIB
    assert read(torch, f"{SPLIT}:\t30", "max_split_size") == 30 * MIB
    assert read(torch, f"\t{SPLIT}:30", "max_split_size") == (NO if torch in OLD else 30 * MIB)
    assert read(torch, f"{SPLIT}:30\u00a0", "max_split_size") == 30 * MIB


HOST = [
    (
        "pinned_num_register_threads",
        "2.2",
        {"1": 1, "128": 128, "2.5": 2, "3": NO, "256": NO, "0": NO},
    ),
    ("pinned_reserve_segment_size_mb", "2.10", {"1": 1, "0": NO, "-1": UNLIMITED, "x": NO}),
    ("pinned_max_round_threshold_mb", "2.13", {"0": 0, "5": 5, "-1": UNLIMITED}),
    ("pinned_max_cached_size_mb", "2.13", {"0": 0, "x": NO}),
    ("pinned_use_cuda_host_register", "2.2", {"True": True}),
    ("pinned_use_background_threads", "2.6", {"True": True, "x": NO}),
    ("pinned_free_catch_all", "2.12", {"False": False}),
]


@pytest.mark.parametrize(("key", "since", "values"), HOST)
def test_host_options_are_checked_and_kept(key: str, since: str, values: dict[str, Any]) -> None:
    for torch in ORDER:
        for value, expected in values.items():
            found = read(torch, f"{key}:{value}", "host")
            if ORDER.index(torch) < ORDER.index(since):
                assert found == NO
            else:
                assert (found if found == NO else found[key]) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0.05", (0.05, "")),
        ("1e-1", (0.1, "")),
        ("+0.5", (0.5, "")),
        ("2", (2.0, "")),
        ("1.5G", (1.5, "G")),
        ("1g", (1.0, "G")),
        (" 1 G", (1.0, "G")),
        *((bad, None) for bad in ("0", "-1", "abc", "0.5x", "512M", "1GB", "1GiB", "G", "nan")),
    ],
)
def test_reserves_that_make_no_sense_are_ignored(value: str, expected: object) -> None:
    """12.5; they are never refused."""
    found = read("2.15", f"expandable_segments_reserve:{value}", "expandable_segments_reserve")
    assert found == expected
    assert read("2.14", f"expandable_segments_reserve:{value}", "text") == NO


@pytest.mark.parametrize(
    ("value", "is_accepted"),
    [  # observed
        ("[a:0.5]", True),
        ("[a:0.5,b:1G]", True),
        ("[a:0.5,b:1G,c:1]", True),
        ("[a:0.5,]", True),
        ("[a:x]", True),
        ("[a,b]", True),
        ("[]", True),
        (f"[a:0.5],{SPLIT}:30", True),
        ("[a]", False),
        ("[a:]", False),
        ("[:0.5]", False),
        ("[0.5]", False),
        ("[a:0.5 b:1]", False),
        ("[a:,.5]", False),
        ("[a:0.5", False),
        ("0.5", False),
        ("", False),
    ],
)
def test_reserves_by_class_are_parsed_and_have_no_effect(value: str, is_accepted: bool) -> None:
    conf = f"expandable_segments_reserve_by_class:{value}"
    assert (read("2.15", conf, "text") == conf) is is_accepted
    assert read("2.15", conf, "expandable_segments_reserve") in (None, NO)


# -- settings after a parse ----------------------------------------------------------------


def after(torch: str, *confs: str) -> AllocatorConfig:
    """Return the settings after one string upon another, including refused ones."""
    config = AllocatorConfig(find_release(torch))
    for conf in confs:
        try:
            config = parse(conf, config.release, config)
        except BadOptionError as error:
            assert error.applied is not None
            config = error.applied
    return config


@pytest.mark.parametrize("torch", ORDER)
def test_each_parse_resets_three_options_and_keeps_the_others(torch: str) -> None:
    config = after(torch, f"{SPLIT}:30,{ROUND}:4,{GC}:0.5,{EXPAND}:True", "")
    assert config.max_split_size == UNLIMITED
    assert set(config.roundup_power2_divisions) == {0}
    assert config.garbage_collection_threshold == 0
    assert config.expandable_segments
    if WASTE in config.release.options:
        kept = after(torch, f"{WASTE}:50", "").max_non_split_rounding
        assert kept == (20 if ORDER.index(torch) >= ORDER.index("2.11") else 50) * MIB


@pytest.mark.parametrize("torch", ORDER[ORDER.index("2.11") :])
def test_a_large_segment_size_stays_and_sets_the_waste_again(torch: str) -> None:
    config = after(torch, f"{LARGE}:40,{WASTE}:60", "")
    assert (config.large_segment_size, config.max_non_split_rounding) == (40 * MIB, 40 * MIB)
    assert after(torch, f"{LARGE}:40", f"{SPLIT}:30").max_split_size == UNLIMITED  # refused


@pytest.mark.parametrize("torch", ORDER)
@pytest.mark.parametrize("bad", ["foo:1", f"{SPLIT}:x", f"{GC}:7", f"{EXPAND}:1", SPLIT])
def test_a_refusal_keeps_what_came_before_and_the_resets(torch: str, bad: str) -> None:
    """Observed in every release, 2.10 and later included."""
    config = after(torch, f"{SPLIT}:64,{GC}:0.5", f"{ROUND}:8,{bad},{ROUND}:2")
    assert set(config.roundup_power2_divisions) == {8}
    assert config.max_split_size == UNLIMITED
    assert config.garbage_collection_threshold == 0
    assert config.text == f"{ROUND}:8,{bad},{ROUND}:2"  # the refused string itself


@pytest.mark.parametrize("torch", ORDER)
def test_the_pairs_before_a_bad_one_are_in_force(torch: str) -> None:
    config = after(torch, f"{ROUND}:[16:8,x")
    assert list(config.roundup_power2_divisions) == [8] * 5 + [0] * 11


@pytest.mark.parametrize("torch", ORDER)
@pytest.mark.parametrize("bad", ["backend:foo", "backend:cudaMallocAsync"])
def test_since_2_10_cudas_own_options_are_read_after_the_shared_ones(torch: str, bad: str) -> None:
    """Observed: a shared option behind the bad option is applied."""
    config = after(torch, f"{bad},{SPLIT}:64")
    assert config.max_split_size == (64 * MIB if torch in NEW else UNLIMITED)
    if "release_lock_on_cudamalloc" in config.release.options:
        config = after(torch, f"release_lock_on_cudamalloc:True,{SPLIT}:1")
        assert config.host.get("release_lock_on_cudamalloc", False) is (torch in OLD)


@pytest.mark.parametrize("torch", ORDER)
def test_the_allocator_runs_on_with_what_is_in_force(torch: str) -> None:
    a = CachingAllocator("1GiB", torch_version=torch)
    with pytest.raises(ConfigError, match="foo"):
        a.set_allocator_settings(f"{ROUND}:4,foo:1")
    a.malloc(MIB + 1)
    assert a.memory_stats()["allocated_bytes.all.current"] == 1280 * 1024
    a.set_allocator_settings("")
    a.malloc(MIB + 1)
    assert a.memory_stats()["allocated_bytes.all.current"] == 2304 * 1024 + 512


# -- texts for people ----------------------------------------------------------------------

TEXTS = [
    ("2.9", f"{SPLIT}:20", "option max_split_size_mb too small, must be > 20, got '20'"),
    ("2.10", f"{SPLIT}:19", "option max_split_size_mb too small, must be >= 20, got '19'"),
    (
        "2.15",
        f"{LARGE}:40,{SPLIT}:39",
        "option max_split_size_mb too small, must be >= 40, got '39'",
    ),
    ("2.15", f"{LARGE}:10", "option large_segment_size_mb too small, must be > 10, got '10'"),
    ("2.15", f"{SPLIT}:x", "option max_split_size_mb expects an integer, got 'x'"),
    ("2.15", f"{GC}:x", "option garbage_collection_threshold expects a number, got 'x'"),
    ("2.9", f"{GC}:0", "garbage_collect_threshold too small, set it 0.0~1.0, got '0'"),
    ("2.9", f"{GC}:1", "garbage_collect_threshold too big, set it 0.0~1.0, got '1'"),
    ("2.10", f"{GC}:1", "garbage_collection_threshold is invalid, set it in (0.0, 1.0), got '1'"),
    (
        "2.10",
        f"{FRACTION}:2",
        "per_process_memory_fraction is invalid, set it in [0.0, 1.0], got '2'",
    ),
    ("2.3", f"{ROUND}:3", "for roundups the divisions have to be a power of 2, got '3'"),
    ("2.4", f"{ROUND}:3", "for roundups the divisions have to be a power of 2 or 0, got '3'"),
    ("2.4", f"{ROUND}:[3:4]", "the intervals have to be power of 2 and not negative, got '3'"),
    (
        "2.9",
        f"{EXPAND}:1",
        "expected a single True/False argument for expandable_segments, got '1'",
    ),
    (
        "2.10",
        f"{EXPAND}:1",
        "expected 'True' or 'False' at index 2 for expandable_segments, got '1'",
    ),
    ("2.9", "foo:1", "unrecognized option 'foo' in release 2.9"),
    ("2.10", "foo:1", "unrecognized key 'foo' in Accelerator allocator config of release 2.10"),
    ("2.9", f"{SPLIT},30", "expected ':' after max_split_size_mb, got ','"),
    ("2.15", SPLIT, "the option string ends where ':' after max_split_size_mb was expected"),
    ("2.15", f"{SPLIT}:", "the option string ends where a value of max_split_size_mb was expected"),
    ("2.15", "backend:foo", "unknown allocator backend 'foo', should be native"),
    ("2.15", "backend:cudaMallocAsync", "backend cudaMallocAsync is not modelled; expected native"),
    (
        "2.15",
        "pinned_num_register_threads:3",
        "option pinned_num_register_threads is out of range, got '3'",
    ),
]


@pytest.mark.parametrize(("torch", "conf", "text"), TEXTS)
def test_a_refusal_is_one_sentence(torch: str, conf: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CachingAllocator("1GiB", conf, torch)
    assert str(caught.value) == text


def test_a_refusal_stays_short_whatever_came_in() -> None:
    for conf in (
        "x" * 60_000 + ":1",
        f"{SPLIT}:" + "y" * 60_000,
        f"{ROUND}:[" + "z" * 60_000 + ":1]",
    ):
        with pytest.raises(ConfigError) as caught:
            CachingAllocator("1GiB", conf)
        assert len(str(caught.value)) < 250
    with pytest.raises(ConfigError, match="has 65537 characters; expected at most 65536"):
        CachingAllocator("1GiB", "a" * (MAX_LENGTH + 1))


@pytest.mark.parametrize("torch", ORDER)
@pytest.mark.parametrize(
    "conf",
    [
        "",
        f"{SPLIT}:64",
        f"{ROUND}:4",
        f"{ROUND}:[16:8,32:4,64:2,>:4]",
        f"{GC}:0.30000000000000004,{EXPAND}:True",
        f"{WASTE}:30,{SPLIT}:64",
        f"{LARGE}:40,{SPLIT}:64,{WASTE}:50",
        f"{FRACTION}:0.75,throw_on_cudamalloc_oom:True",
        f"{EXPAND}:True,expandable_segments_reserve:1.5G",
        "release_lock_on_cudamalloc:True,pinned_num_register_threads:8",
        "graph_capture_record_stream_reuse:True",
    ],
)
def test_the_canonical_string_means_the_same(torch: str, conf: str) -> None:
    release = find_release(torch)
    if any(part.partition(":")[0] not in release.options for part in conf.split(",")[:1] if part):
        return
    try:
        config = parse_conf(conf, release)
    except ConfigError:
        return
    again = parse_conf(str(config), release)
    assert str(again) == str(config)
    for field in ("max_split_size", "roundup_power2_divisions", "host", "large_segment_size"):
        assert getattr(again, field) == getattr(config, field)


@pytest.mark.parametrize(
    ("torch", "conf", "hint"),
    [
        (
            "2.9",
            f"{GC}:0.5",
            "no effect without a memory fraction (set_per_process_memory_fraction)",
        ),
        (
            "2.15",
            f"{GC}:0.5",
            "set_per_process_memory_fraction or per_process_memory_fraction below 1.0",
        ),
        (
            "2.15",
            f"{ROUND}:1",
            "roundup_power2_divisions:1 rounds like the default in release 2.15",
        ),
        (
            "2.15",
            f"{WASTE}:50",
            "max_non_split_rounding_mb has no effect without max_split_size_mb",
        ),
        (
            "2.15",
            "expandable_segments_reserve:0.5",
            "expandable_segments_reserve has no effect without expandable_segments",
        ),
    ],
)
def test_options_without_effect_are_named(torch: str, conf: str, hint: str) -> None:
    [found] = parse_conf(conf, find_release(torch)).inert_options(has_limit=False)
    assert hint in found


@pytest.mark.parametrize(
    ("torch", "conf"),
    [
        ("2.3", f"{ROUND}:1"),
        ("2.15", f"{ROUND}:2"),
        ("2.15", f"{WASTE}:50,{SPLIT}:30"),
        ("2.15", ""),
    ],
)
def test_options_with_effect_are_not(torch: str, conf: str) -> None:
    assert parse_conf(conf, find_release(torch)).inert_options(has_limit=False) == ()


# -- every word of a refusal, and of what is printed back ------------------------------------

RESERVE, CLASSES = "expandable_segments_reserve", "expandable_segments_reserve_by_class"
REGISTER, CACHED = "pinned_num_register_threads", "pinned_max_cached_size_mb"

ENDS = [  # (release, string, the token expected at its end)
    ("2.9", "backend:", "a value of backend"),
    ("2.15", "backend:", "a value of backend"),
    ("2.15", f"{LARGE}:", f"a value of {LARGE}"),
    ("2.15", f"{GC}:", f"a value of {GC}"),
    ("2.15", f"{EXPAND}:", f"a value of {EXPAND}"),
    ("2.15", f"{CACHED}:", f"a value of {CACHED}"),
    ("2.15", f"{ROUND}:", f"a value of {ROUND}"),
    ("2.15", f"{ROUND}:[", f"a value of {ROUND}"),
    ("2.15", f"{ROUND}:[1:", f"a value of {ROUND}"),
    ("2.15", f"{ROUND}:[>:", f"a value of {ROUND}"),
    ("2.15", f"{ROUND}:[{'x' * 200}", f"':' after {'x' * 80}"),
    ("2.15", f"{ROUND}:[1{'x' * 200}:2", f"',' after 1{'x' * 79}:2"),
    ("2.15", f"{CLASSES}:[a", f"a value of {CLASSES}"),
    ("2.15", f"{CLASSES}:0.5", f"a value of {CLASSES}"),
    # Without its bracket the list takes what follows as `name : value ,`.
    ("2.15", f"{CLASSES}:0.5,{EXPAND}:True", f"':' after {CLASSES}"),
    ("2.15", f"{CLASSES}:0.5,{EXPAND}:True,", f"a value of {CLASSES}"),
]


@pytest.mark.parametrize(("torch", "conf", "expected"), ENDS)
def test_a_string_that_ends_too_soon_says_where(torch: str, conf: str, expected: str) -> None:
    with pytest.raises(BadOptionError) as caught:
        parse_conf(conf, find_release(torch))
    assert str(caught.value) == f"the option string ends where {expected} was expected"


@pytest.mark.parametrize(
    ("torch", "key"),
    [("2.15", key) for key in (SPLIT, WASTE, LARGE, ROUND, REGISTER, CACHED)] + [("2.9", SPLIT)],
)
def test_a_word_for_a_number_is_named_with_its_option(torch: str, key: str) -> None:
    values = ["x", "[x:1]", "[1:x]", "[>:x]"] if key == ROUND else ["x"]
    for value in values:
        with pytest.raises(BadOptionError) as caught:
            parse_conf(f"{key}:{value}", find_release(torch))
        assert str(caught.value) == f"option {key} expects an integer, got 'x'"


CUT = [  # (release, option up to its value, how the value begins, the text before it)
    ("2.9", "", "x", "unrecognized option {} in release 2.9"),
    ("2.15", "", "x", "unrecognized key {} in Accelerator allocator config of release 2.15"),
    ("2.9", f"{ROUND}:[,", "x", "expected ':' after ,, got {}"),
    ("2.15", f"{SPLIT}:", "x", f"option {SPLIT} expects an integer, got {{}}"),
    ("2.15", f"{SPLIT}:", "1x", f"option {SPLIT} too small, must be >= 20, got {{}}"),
    ("2.15", f"{LARGE}:", "10x", f"option {LARGE} too small, must be > 10, got {{}}"),
    ("2.15", f"{FRACTION}:", "x", f"option {FRACTION} expects a number, got {{}}"),
    (
        "2.15",
        f"{FRACTION}:",
        "1e-310x",
        f"option {FRACTION} expects a number of usual size, got {{}}",
    ),
    ("2.15", f"{FRACTION}:", "2x", f"{FRACTION} is invalid, set it in [0.0, 1.0], got {{}}"),
    ("2.9", f"{GC}:", "2x", "garbage_collect_threshold too big, set it 0.0~1.0, got {}"),
    ("2.15", f"{GC}:", "2x", f"{GC} is invalid, set it in (0.0, 1.0), got {{}}"),
    (
        "2.15",
        f"{EXPAND}:",
        "x",
        f"expected 'True' or 'False' at index 2 for {EXPAND}, got {{}}",
    ),
    (
        "2.15",
        "pinned_use_background_threads:",
        "x",
        "expected 'True' or 'False' at index 2 for pinned_use_background_threads, got {}",
    ),
    ("2.15", "backend:", "x", "unknown allocator backend {}, should be native"),
    ("2.15", f"{ROUND}:", "3x", "for roundups the divisions have to be a power of 2 or 0, got {}"),
    (
        "2.15",
        f"{ROUND}:[1:",
        "3x",
        "for roundups the divisions have to be a power of 2 or 0, got {}",
    ),
    (
        "2.15",
        f"{ROUND}:[",
        "3x",
        "the intervals have to be power of 2 and not negative, got {}",
    ),
    ("2.15", f"{REGISTER}:", "3x", f"option {REGISTER} is out of range, got {{}}"),
]


@pytest.mark.parametrize(("torch", "before", "start", "text"), CUT)
def test_a_long_word_is_shown_by_its_first_80_letters(
    torch: str, before: str, start: str, text: str
) -> None:
    word = start.ljust(200, "x")
    with pytest.raises(BadOptionError) as caught:
        parse_conf(before + word + (":1" if before.endswith("[") else ""), find_release(torch))
    assert str(caught.value) == text.format(repr(word[:80]))


@pytest.mark.parametrize(
    ("value", "expected"),
    [  # a zero is a zero however it is written; only what is too small to be normal is refused
        ("0e5", 0.0),
        ("0E-5", 0.0),
        ("0x0", 0.0),
        ("0X0.0", 0.0),
        ("0x0p-5", 0.0),
        ("0x0P5", 0.0),
        ("2.2250738585072014e-308", 2.2250738585072014e-308),
        ("0x1p-1022", 2.2250738585072014e-308),
        ("0x1p-1023", NO),
        ("0x.8P-1022", NO),
    ],
)
def test_only_numbers_below_the_normal_doubles_are_too_small(value: str, expected: object) -> None:
    assert read("2.15", f"{FRACTION}:{value}", "per_process_memory_fraction") == expected


TAIL = ",".join(f"{1 << i}:4" for i in range(7, 16))


@pytest.mark.parametrize(
    ("torch", "conf", "printed"),
    [
        ("2.15", f"{SPLIT}:64,{WASTE}:50", f"{SPLIT}:64,{WASTE}:50"),
        ("2.15", f"{LARGE}:40", f"{LARGE}:40"),  # it sets the waste as well
        ("2.15", f"{LARGE}:40,{WASTE}:50", f"{WASTE}:50,{LARGE}:40"),
        ("2.9", f"{WASTE}:30", f"{WASTE}:30"),
        ("2.15", f"{GC}:0.5", f"{GC}:0.5"),
        ("2.15", f"{ROUND}:4", f"{ROUND}:4"),
        ("2.3", f"{ROUND}:[16:8]", f"{ROUND}:[16:8]"),
        ("2.15", f"{ROUND}:[16:8,32:4,64:2,>:4]", f"{ROUND}:[16:8,32:4,64:2,{TAIL}]"),
        ("2.15", f"{ROUND}:[1:2,>:4]", f"{ROUND}:[1:2,2:4,4:4,8:4,16:4,32:4,64:4,{TAIL}]"),
        (
            "2.15",
            f"throw_on_cudamalloc_oom:True,{EXPAND}:True,{FRACTION}:0.75",
            f"{FRACTION}:0.75,{EXPAND}:True,throw_on_cudamalloc_oom:True",
        ),
        (
            "2.15",
            "expandable_segments_reserve:1.5g,release_lock_on_cudamalloc:True",
            "expandable_segments_reserve:1.5G,release_lock_on_cudamalloc:True",
        ),
    ],
)
def test_the_canonical_string(torch: str, conf: str, printed: str) -> None:
    assert str(parse_conf(conf, find_release(torch))) == printed


INERT_THROW = (
    "throw_on_cudamalloc_oom has no effect with per_process_memory_fraction: the ordinary limit "
    "of the same size is tested first"
)


@pytest.mark.parametrize(
    ("conf", "sentences"),
    [
        (f"{WASTE}:50", (f"{WASTE} has no effect without {SPLIT}",)),
        (f"{LARGE}:40", ()),
        (
            "expandable_segments_reserve:0.5",
            ("expandable_segments_reserve has no effect without expandable_segments",),
        ),
        (f"expandable_segments_reserve:0.5,{EXPAND}:True", ()),
        ("throw_on_cudamalloc_oom:True", ()),
        (f"throw_on_cudamalloc_oom:True,{FRACTION}:1.0", ()),
        (f"{FRACTION}:0.5", ()),
        (f"throw_on_cudamalloc_oom:True,{FRACTION}:0.5", (INERT_THROW,)),
        (f"{GC}:0.5", ()),
    ],
)
def test_the_sentences_on_options_without_effect(conf: str, sentences: tuple[str, ...]) -> None:
    """With a limit."""
    found = parse_conf(conf, find_release("2.15")).inert_options(has_limit=True)
    assert found == sentences


def test_the_settings_of_a_snapshot_before_and_after_a_string() -> None:
    """6.5: the defaults of 2.15, then every value that snapshots show."""
    intervals = {str(1 << i): 0 for i in range(16)}
    assert repr(parse_conf("", find_release("2.15")).settings()) == repr(
        {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "max_split_size": -1,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": False,
            "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False,
            "graph_capture_record_stream_reuse": False,
            "max_round_threshold": -1,
            "max_cached_size": -1,
            "roundup_power2_divisions": intervals,
        }
    )
    conf = (
        f"{SPLIT}:30,{GC}:0.5,{EXPAND}:True,{REGISTER}:8,release_lock_on_cudamalloc:True,"
        "pinned_use_cuda_host_register:True,graph_capture_record_stream_reuse:True,"
        f"pinned_max_round_threshold_mb:3,{CACHED}:-1,{ROUND}:4"
    )
    assert repr(parse_conf(conf, find_release("2.15")).settings()) == repr(
        {
            "PYTORCH_CUDA_ALLOC_CONF": conf,
            "max_split_size": 30 * MIB,
            "garbage_collection_threshold": 0.5,
            "expandable_segments": True,
            "pinned_num_register_threads": 8,
            "release_lock_on_cudamalloc": True,
            "pinned_use_cuda_host_register": True,
            "graph_capture_record_stream_reuse": True,
            "max_round_threshold": 3 * MIB,
            "max_cached_size": -MIB,  # cut to whole mebibytes, then read as a signed word
            "roundup_power2_divisions": dict.fromkeys(intervals, 4),
        }
    )


@pytest.mark.parametrize(
    ("value", "reserve"),
    [
        ("0.25", 1 << 30),
        ("1.5G", 3 << 29),
        ("2g", 2 << 30),
        ("1.125", 9 << 29),
        ("2", 9 << 29),  # clamped to 9/8 of the device
        ("100G", 9 << 29),
    ],
)
def test_a_reserve_is_a_fraction_of_the_device_or_gibibytes(value: str, reserve: int) -> None:
    """4.8, 12.5; on a device of 4 GiB."""
    config = parse_conf(f"expandable_segments_reserve:{value}", find_release("2.15"))
    assert config.expandable_reserve(4 << 30) == reserve


@pytest.mark.parametrize("key", ["per_process_memory_fraction", RESERVE, CLASSES])
def test_a_bracket_that_only_the_first_pass_closes(key: str) -> None:
    """The first pass skips a list; the second reads one value and continues behind it.

    Observed in 2.15.0, which stops because the same value is missing.
    """
    with pytest.raises(BadOptionError) as caught:
        parse_conf(f"{RESERVE}:[,{key}]", find_release("2.15"))
    assert str(caught.value) == f"the option string ends where a value of {key} was expected"


@pytest.mark.parametrize("torch", OLD)
def test_what_should_follow_an_option_is_named_up_to_2_9(torch: str) -> None:
    with pytest.raises(BadOptionError) as caught:
        parse_conf(f"{SPLIT}:30:{EXPAND}:True", find_release(torch))
    assert str(caught.value) == f"expected ',' after {SPLIT}, got ':'"


@pytest.mark.parametrize("torch", ORDER)
def test_a_string_too_long_to_be_looked_at_changes_nothing(torch: str) -> None:
    longest = f"{SPLIT}:64".ljust(64 * 1024)
    before = parse_conf(longest, find_release(torch))
    assert before.max_split_size == 64 * MIB
    with pytest.raises(BadOptionError, match="has 65537 characters; expected at most") as caught:
        parse_conf(f"{longest} ", find_release(torch), before)
    assert caught.value.applied == before
