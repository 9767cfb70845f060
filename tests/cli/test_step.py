"""Tests of `allocsim step` on a recording, a kind, a script, and a piped session."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def session(cli: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(text: str, *options: object) -> Any:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        return cli("step", *options)

    return run


def test_step_answers_a_session_through_a_pipe(session: Any) -> None:
    done = session("malloc 3MiB\nfree 1  # a comment\nempty_cache\nsegments\n")
    assert (done.code, done.err) == (0, "")
    assert "> malloc 3MiB    (block 1)" in done.out
    assert "20,971,520 - 3,145,728 = 17,825,792 bytes are cut off" in done.out
    assert "before (not there yet)" in done.out
    assert "  after  [@@@@@@@@@@@......" in done.out
    assert "after  (released to the driver)" in done.out
    assert "nothing is reserved" in done.out
    assert all(len(line) <= 80 for line in done.out.splitlines())


def test_session_keeps_the_numbers_of_blocks(session: Any) -> None:
    done = session("malloc 4MiB\nmalloc 99GiB\nmalloc 5MiB\nfree 1\nsegments\nstats\nhelp\n")
    assert "out of memory" in done.out
    assert "4.00 MiB free | 3: 5.00 MiB allocated | 11.00 MiB free" in done.out
    assert "num_ooms" in done.out
    assert "empty_cache               torch.cuda.empty_cache()" in done.out


def test_session_accepts_every_word(session: Any) -> None:
    words = "malloc 30MiB\nrecord 1 stream=5\nfree 1\nsync stream=5\nsync\nfraction 0.5\n"
    pools = (
        "conf max_split_size_mb:64\nbegin 1\nmalloc 4MiB\nend 1\nfree 2\nrelease 1\nquit\nfrob\n"
    )
    done = session(words + pools, "--json")
    assert [each["request"]["action"] for each in json.loads(done.out)] == [
        "malloc",
        "record_stream",
        "free",
        "synchronize",
        "synchronize",
        "set_per_process_memory_fraction",
        "set_allocator_settings",
        "begin_allocate_to_pool",
        "malloc",
        "end_allocate_to_pool",
        "free",
        "release_pool",
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("frob", "'frob': no such request (help lists the requests)"),
        ("free 1", "'free 1': block 1 is not allocated (help lists the requests)"),
        ("malloc much", "size 'much' is not a number with a unit"),
        ("begin", "a pool is missing; expected a whole number, e.g. 1"),
    ],
)
def test_step_refuses_a_wrong_line_in_a_sentence(line: str, sentence: str, session: Any) -> None:
    done = session(line + "\n")
    assert done.code == 2
    assert sentence in done.err
    assert done.err.count("\n") == 1


def test_step_explains_an_entry_of_a_recording(cli: Any, traces: Path) -> None:
    done = cli("step", traces / "gpt2-ragged-oom-torch2.15.pickle.gz", "--at", 26059)
    assert done.code == 0
    assert done.out.startswith("entry 26,059: malloc ")
    assert "num_ooms" in done.out


def test_step_prints_a_kind_as_json(cli: Any) -> None:
    done = cli("step", "oom", "--at", 0, "--count", 3, "--json")
    documents = json.loads(done.out)
    assert [each["entry"] for each in documents] == [1, 2, 4]
    assert documents[0]["moved"]["reserved_bytes.all.current"] == [0, 20971520]
    assert documents[0]["rules"][0]["section"] == "Rounding, pools, segment sizes"


def test_step_runs_an_op_script(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    ops = [["a", "x", 1000, 1], ["r", "x", 2], ["f", "x"], ["S"], ["e"], ["m", "0.5"]]
    path.write_text(json.dumps({"ops": ops, "device_memory": 1 << 30, "conf": ""}))
    done = cli("step", path, "--at", 1)
    assert done.code == 0
    assert "> record 1 stream=8192" in done.out
    path.write_text(json.dumps({"ops": [["a", 1]]}))
    assert "op 0: ['a', 1] is not an op" in cli("step", path).err


def test_step_refuses_a_word_that_is_no_file_and_no_kind(cli: Any) -> None:
    done = cli("step", "riot")
    assert done.code == 2
    assert (
        "riot is neither a file nor a kind; expected a file or one of training, server" in done.err
    )
