"""Advice by cause and figures, which never contradicts the settings in force."""

from __future__ import annotations

import itertools

import pytest

from allocsim import explain
from allocsim.analysis.explain import Verdict
from allocsim.analysis.explain.cause import MESSAGE_CAUSES
from allocsim.core import RELEASES
from allocsim.errors import ConfigError

TAIL = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF="
    "expandable_segments:True to avoid fragmentation."
)


def modern(
    tried: str, free: str, allocated: str, idle: str, *, total: str = "8.00 GiB", more: str = ""
) -> str:
    """Return the wording of 2.2 and later; `more` goes between free and allocated memory."""
    return (
        f"CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of {total} of "
        f"which {free} is free. {more}Of the allocated memory {allocated} is allocated by PyTorch, "
        f"and {idle} is reserved by PyTorch but unallocated.{TAIL}"
    )


FRAGMENTED = modern("600.00 MiB", "200.00 MiB", "6.00 GiB", "900.00 MiB")
LIKELY = modern("1000.00 MiB", "200.00 MiB", "6.00 GiB", "900.00 MiB")
FULL = modern("2.00 GiB", "200.00 MiB", "7.00 GiB", "100.00 MiB")
SPILLED = modern("2.00 GiB", "0 bytes", "12.00 GiB", "0 bytes")
REFUSED = modern("20.00 MiB", "4.00 GiB", "3.00 GiB", "100.00 MiB")
LIMITED = modern("20.00 MiB", "4.00 GiB", "3.00 GiB", "1.00 GiB", more="4.00 GiB allowed; ")
HUGE = modern("243.00 GiB", "1.00 GiB", "6.00 GiB", "100.00 MiB")
HOST = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 40000000000 bytes."
EXAMPLES = {
    "impossible": HUGE,
    "host_fallback": SPILLED,
    "fraction_limit": LIMITED,
    "free_above_request": REFUSED,
    "fragmentation": FRAGMENTED,
    "fragmentation_likely": LIKELY,
    "full": FULL,
    "host_memory": HOST,
    "no_figures": "CUDA error: out of memory",
}


def one(text: str, conf: str | None = None, **options: str) -> Verdict:
    (verdict,) = explain(text, conf, **options)
    return verdict


def advice(text: str, conf: str | None = None, **options: str) -> str:
    return " ".join(one(text, conf, **options).advice)


@pytest.mark.parametrize("cause", MESSAGE_CAUSES)
def test_advice_differs_for_each_cause(cause: str) -> None:
    verdict = one(EXAMPLES[cause])
    assert verdict.cause == cause
    others = {one(text).advice[0] for name, text in EXAMPLES.items() if name != cause}
    assert verdict.advice
    assert verdict.advice[0] not in others


@pytest.mark.parametrize("cause", ["impossible", "host_fallback", "free_above_request", "full"])
def test_advice_begins_with_the_fact_that_no_setting_helps(cause: str) -> None:
    first, *rest = one(EXAMPLES[cause]).advice
    assert first.startswith("No ")
    assert "setting" in first
    assert "can help" in first
    assert "ALLOC_CONF" not in " ".join([first, *rest])


def test_advice_on_fragmentation_names_expandable_segments() -> None:
    said = advice(FRAGMENTED)
    assert "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in said
    assert "not available on Windows, WSL or Jetson" in said
    assert "Set " not in advice(FRAGMENTED, "expandable_segments:True")
    assert "is set already" in advice(FRAGMENTED, "expandable_segments:True")
    with_split = advice(FRAGMENTED, "max_split_size_mb:128")
    assert "max_split_size_mb:128 is set already" in with_split
    assert "If that is not available" not in with_split


@pytest.mark.parametrize("path", ["C:\\me\\train.py", "D:/me/train.py"])
def test_expandable_segments_are_not_advised_where_paths_are_of_windows(path: str) -> None:
    traceback = f'  File "{path}", line 3, in <module>\n'
    said = advice(traceback + FRAGMENTED)
    assert "Set " not in said
    assert "not available on Windows" in said
    assert "Set " in advice(traceback.replace(path, "/home/me/train.py") + FRAGMENTED)


def test_idle_and_free_together_are_joined_by_expandable_segments_only() -> None:
    assert "Neither 900.00 MiB idle nor 200.00 MiB free memory is enough" in advice(LIKELY)
    said = advice(LIKELY, "expandable_segments:True")
    assert "Set " not in said
    assert "no other setting" in said


def test_the_variable_is_the_one_that_the_text_or_the_backend_names() -> None:
    hip = FRAGMENTED.replace("CUDA out", "HIP out")
    assert "PYTORCH_CUDA_ALLOC_CONF=" in advice(hip)
    assert "PYTORCH_HIP_ALLOC_CONF=" in advice(hip.replace(TAIL, ""))
    newer = FRAGMENTED.replace("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    assert "Set PYTORCH_ALLOC_CONF=" in advice(newer)
    npu = (
        "NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.00 GiB total capacity; 40.00 GiB "
        "already allocated; 1.00 GiB free; 50.00 GiB reserved in total by PyTorch)"
    )
    assert "Set PYTORCH_NPU_ALLOC_CONF=expandable_segments:True" in advice(npu)


def test_advice_names_no_option_that_the_release_lacks() -> None:
    old = (
        "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 16.00 GiB total capacity; 9.00 GiB "
        "already allocated; 1.00 GiB free; 14.00 GiB reserved in total by PyTorch)"
    )
    assert "Upgrade" in advice(old)
    assert "max_split_size_mb" not in advice(old)
    hinted = f"{old} If reserved memory is >> allocated memory try setting max_split_size_mb to "
    assert "max_split_size_mb" in advice(f"{hinted}avoid fragmentation.")
    assert "Upgrade" in advice(FRAGMENTED, torch_version="2.0.1")
    assert "Set PYTORCH" in advice(old, torch_version="2.9.1")


def test_settings_without_effect_are_named() -> None:
    inert = "garbage_collection_threshold:0.8,max_non_split_rounding_mb:64"
    said = advice(FULL, inert)
    assert "garbage_collection_threshold has no effect without a memory fraction" in said
    assert "max_non_split_rounding_mb has no effect" in said
    assert "garbage_collection" not in advice(LIMITED, "garbage_collection_threshold:0.8")
    assert "max_split_size_mb:128, which is set, cannot help" in advice(
        FULL, "max_split_size_mb:128"
    )
    # An option that only one backend reads has no effect on another.
    mps = "MPS backend out of memory (MPS allocated: 9.57 GiB, other allocations: 17.35 GiB, "
    mps += "max allowed: 27.20 GiB). Tried to allocate 292.50 MiB on private pool."
    assert "has no effect on this backend" in advice(mps, "expandable_segments:True")
    assert "has no effect on this backend" in advice(
        FRAGMENTED, "backend:cudaMallocAsync,expandable_segments:True"
    )


@pytest.mark.parametrize("cause", MESSAGE_CAUSES)
def test_the_unsafe_pair_is_named_whatever_the_cause(cause: str) -> None:
    said = advice(EXAMPLES[cause], "expandable_segments:True,max_split_size_mb:64")
    assert "Unsafe: expandable_segments:True with max_split_size_mb:64" in said


def test_advice_names_the_call_or_option_that_sets_the_fraction() -> None:
    said = advice(LIMITED)
    assert "0.5 of the card" in said
    assert "set_per_process_memory_fraction" in said
    assert "1024.00 MiB within the limit are idle" in said
    conf = "per_process_memory_fraction:0.5"
    assert advice(LIMITED, conf).startswith("Raise or remove per_process_memory_fraction:0.5")


def test_advice_infers_a_fraction_that_the_text_does_not_print() -> None:
    """pytorch#111363: half of the card held, 38 GiB free, 64 MiB refused."""
    text = modern("64.00 MiB", "38.09 GiB", "39.10 GiB", "427.46 MiB", total="79.15 GiB")
    assert "would exceed 0.5 of it" in advice(text)
    assert "set_per_process" not in advice(text, torch_version="2.9")
    assert "set_per_process" not in advice(REFUSED)


def test_advice_names_memory_of_other_processes() -> None:
    other = "Process 4242 has 5.00 GiB memory in use. Including non-PyTorch memory, this process "
    other += "has 2.00 GiB memory in use. "
    text = modern("2.00 GiB", "1.00 GiB", "1.50 GiB", "100.00 MiB", more=other)
    assert "process 4242 5.00 GiB" in advice(text)
    unnamed = modern("2.00 GiB", "1.00 GiB", "1.50 GiB", "100.00 MiB")
    assert "About 5.40 GiB are held outside this process's PyTorch" in advice(unnamed)
    assert "held outside" not in advice(FULL)


def test_advice_depends_on_the_size_of_the_request() -> None:
    assert "wrong shape" in one(HUGE).advice[1]
    assert "Split the work" in one(HUGE.replace("243.00", "10.00")).advice[1]
    small = modern("2.00 MiB", "0 bytes", "7.00 GiB", "900.00 MiB")
    assert "1 MiB or less" in advice(small)
    assert "between 1 and 10 MiB" in advice(small.replace("2.00 MiB", "20.00 MiB"))


def test_advice_says_if_the_request_fits_another_card() -> None:
    bare = "CUDA out of memory. Tried to allocate 20.00 GiB"
    assert one(bare).cause == "no_figures"
    given = one(bare, device_memory="16GiB")
    assert given.cause == "impossible"
    assert given.figures.total_bytes is None  # as the text has none
    assert "20.00 GiB tried > 16.00 GiB on the card" in given.arithmetic
    assert "succeeded, with 16.20 GiB free" in advice(FULL, device_memory="24GiB")
    assert "failed as well" in advice(FULL, device_memory="9GiB")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (HUGE, "243.00 GiB tried > 8.00 GiB on the card"),
        (SPILLED, "12.00 GiB allocated > 8.00 GiB on the card"),
        (LIMITED, "4.00 GiB reserved + 20.00 MiB tried > 4.00 GiB allowed; 4.00 GiB free"),
        (REFUSED, "20.00 MiB tried <= 4.00 GiB free"),
        (FRAGMENTED, "600.00 MiB tried <= 900.00 MiB idle"),
        (LIKELY, "1000.00 MiB tried <= 1.07 GiB = 900.00 MiB idle + 200.00 MiB free"),
        (FULL, "2.00 GiB tried > 300.00 MiB = 100.00 MiB idle + 200.00 MiB free"),
        ("CUDA error: out of memory", ""),
        ("CUDA out of memory. Tried to allocate 20.00 GiB", "20.00 GiB tried"),
    ],
)
def test_arithmetic_is_one_line(text: str, line: str) -> None:
    assert one(text).arithmetic == line


def test_comparison_within_the_rounding_error_is_marked() -> None:
    """64 MiB are requested; "3.41 GiB" minus "3.35 GiB" idle may be 51 to 72 MiB."""
    text = (
        "CUDA out of memory. Tried to allocate 64.00 MiB (GPU 0; 4.00 GiB total capacity; 3.35 GiB "
        "already allocated; 0 bytes free; 3.41 GiB reserved in total by PyTorch)"
    )
    assert one(text).arithmetic.endswith("(+- 10.24 MiB: the text is rounded)")
    assert "rounded" not in one(FRAGMENTED).arithmetic


def test_wrong_options_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="key:value"):
        explain(FULL, "max_split_size_mb=8000")
    with pytest.raises(ConfigError, match=r"3\.0"):
        explain(FULL, torch_version="3.0")
    with pytest.raises(ConfigError, match="newest"):
        explain(FULL, torch_version="newest")
    with pytest.raises(ConfigError, match="24 potatoes"):
        explain(FULL, device_memory="24 potatoes")
    with pytest.raises(ConfigError, match="int"):
        explain(12)  # type: ignore[call-overload]


def test_advice_exists_for_every_text_release_and_setting() -> None:
    confs = (None, "", "expandable_segments:True", "max_split_size_mb:64", "garbage_collection_"
             "threshold:0.5")  # fmt: skip
    releases = (None, "1.0", "1.13.1", "2.0", *RELEASES)
    for text, conf, release in itertools.product(EXAMPLES.values(), confs, releases):
        (verdict,) = explain(text, conf, torch_version=release)
        assert all(sentence.strip() == sentence and sentence for sentence in verdict.advice)
        assert len(set(verdict.advice)) == len(verdict.advice)
