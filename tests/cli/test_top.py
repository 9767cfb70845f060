"""Tests of `allocsim top`: its JSON, its options, and refused arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim.units import MIB

Cli = Callable[..., Any]
OOM = "gpt2-ragged-oom-torch2.15.pickle.gz"


def test_top_json_has_the_documented_keys(cli: Cli, traces: Path) -> None:
    done = cli("top", traces / OOM, "--json")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert document["device"] == 0
    assert {"entry": 26059, "what": "oom"}.items() <= document["at"].items()
    for row in document["rows"]:
        assert {"owner", "category", "bytes", "blocks", "largest_bytes"} <= set(row)
    assert sum(row["bytes"] for row in document["rows"]) == document["allocated_bytes"]


def test_top_at_an_entry_reports_the_moment_after_it(cli: Cli, traces: Path) -> None:
    document = json.loads(cli("top", traces / OOM, "--at", "172", "--json").out)
    assert document["at"]["what"] == "entry"
    assert set(document["categories"]) == {"parameters", "temporaries", "inputs"}


def test_top_of_a_state_uses_its_stacks(cli: Cli, state: Path) -> None:
    done = cli("top", state, "--json", "--by", "line")
    document = json.loads(done.out)
    assert document["at"]["entry"] is None
    result = {(row["owner"], row["category"]): row["bytes"] for row in document["rows"]}
    assert result == {
        ("cache_engine.py:83 _allocate_kv_cache", "caches"): 300 * MIB,
        ("net.py:7 load_weights", "parameters"): 20 * MIB,
    }
    assert "only a state" in cli("top", state).out
    refused = cli("top", state, "--at", "peak")
    assert refused.code == 2
    assert "holds a state only and no history: there is no 'peak', only the end" in refused.err


def test_rows_by_stream_and_by_frames(cli: Cli, state: Path, traces: Path) -> None:
    rows = json.loads(cli("top", state, "--by", "stream", "--json").out)["rows"]
    assert [row["owner"] for row in rows] == ["the default stream", "stream 0x1000"]
    result = cli("top", traces / OOM, "--by", "stack", "--frames", "2", "-n", "1").out
    assert "        functional.py:3561 cross_entropy\n        gpt.py:19 forward\n" in result


def test_stacks_for_a_viewer(cli: Cli, traces: Path) -> None:
    collapsed = cli("top", traces / OOM, "--format", "collapsed").out
    assert collapsed.startswith("<module> (gpt.py:")
    speedscope = json.loads(cli("top", traces / OOM, "--format", "speedscope").out)
    assert speedscope["profiles"][0]["unit"] == "bytes"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--at", "noon"),
            "'noon' is not a moment; expected peak, oom, end or the number of an entry",
        ),
        (("--at", "99999999"), "there is no entry 99999999; expected 0 to 26063"),
        (("--device", "3"), "device 3 is not in the recording; it has: 0"),
    ],
)
def test_top_refuses_wrong_input_in_a_sentence(
    cli: Cli, traces: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    done = cli("top", traces / OOM, *arguments)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
