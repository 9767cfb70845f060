"""Options with facts about the recorded run (hints) apply in every command that replays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator
from allocsim.units import MIB

Cli = Callable[..., Any]
CONF = "garbage_collection_threshold:0.6"
NO_LIMIT = ("--memory-fraction", "1")
HINTS = ("--memory-fraction", "0.5", "--device-memory", "100MiB")


def collects(gpu: CachingAllocator) -> None:
    """Cache 10 and 11 MiB, then request 13, while more than 60 % of 50 MiB is reserved."""
    gpu.set_per_process_memory_fraction(0.5)
    blocks = [gpu.malloc(size * MIB) for size in (10, 11, 12)]
    for block in blocks[:2]:
        gpu.free(block)
    gpu.malloc(13 * MIB)


@pytest.fixture
def path(write: Callable[..., Path]) -> Path:
    return write(collects, memory="100MiB", conf=CONF)


def test_replay_uses_the_given_memory_fraction(cli: Cli, path: Path) -> None:
    done = cli("replay", path, *HINTS, "--json", "--strict")
    assert (done.code, done.err) == (0, "")
    (device,) = json.loads(done.out)["devices"]
    assert "a call of set_per_process_memory_fraction: as specified" in device["notes"]


def test_tune_keeps_the_fraction_whatever_it_tries(cli: Cli, path: Path) -> None:
    """Without the fraction, no block is collected, and the peak is the sum of all four requests."""
    peaks = {}
    for output in (HINTS, ("--device-memory", "100MiB", "--empty-cache", "never", *NO_LIMIT)):
        done = cli("tune", path, *output, "--try", "max_split_size_mb:64," + CONF, "--json")
        assert (done.code, done.err) == (0, "")
        rows = json.loads(done.out)["rows"]
        peaks[output] = {row["peak_reserved_bytes"] // MIB for row in rows}
    limited, free = peaks.values()
    assert max(limited) < min(free)


def test_explain_and_report_take_the_same_words(cli: Cli, path: Path, tmp_path: Path) -> None:
    words = (
        *HINTS,
        "--empty-cache",
        "never",
        "--set",
        f"0:{CONF}",
        "--set",
        "5:max_split_size_mb:64",
    )
    done = cli("explain", path, *words, "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)
    page = tmp_path / "page.html"
    done = cli("report", path, *words, "-o", page)
    assert (done.code, done.err) == (0, "")
    assert "as specified" in page.read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--memory-fraction", "2"), "'2' is not a fraction; expected 0 to 1"),
        (("--memory-fraction", "half"), "'half' is not a fraction; expected 0 to 1"),
        (("--memory-fraction", "nan"), "'nan' is not a fraction; expected 0 to 1"),
        (("--empty-cache", "often"), "invalid choice: 'often'"),
        (("--set", "max"), "'max' is not ENTRY:CONF"),
        (("--set", "x:max_split_size_mb:64"), "'x' is not a whole number, 0 or more"),
        (("--set", "99:max_split_size_mb:64"), "settings of entry 99: device 0 has no such entry"),
        (("--set", "1:no_such:64"), "no_such"),
    ],
)
def test_invalid_hints_are_refused_in_a_sentence(
    cli: Cli, path: Path, words: tuple[str, ...], sentence: str
) -> None:
    done = cli("replay", path, *words)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert done.err.count("\n") == 1


def test_explain_of_a_text_refuses_hints(cli: Cli) -> None:
    done = cli(
        "explain", "CUDA out of memory. Tried to allocate 2.00 GiB", "--empty-cache", "never"
    )
    assert (done.code, done.out) == (2, "")
    assert "apply to a recording; an error's text has none" in done.err
