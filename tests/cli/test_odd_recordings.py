"""Empty, tiny and absurd recordings give an answer or one sentence, and no internal error."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_lines import READS_A_RECORDING, words_of

Cli = Callable[..., Any]


def entry(action: str, size: int) -> dict[str, object]:
    return {"action": action, "addr": 1 << 40, "size": size, "stream": 0, "frames": []}


def snapshot(*entries: dict[str, object], segments: tuple[object, ...] = ()) -> bytes:
    return pickle.dumps({"segments": list(segments), "device_traces": [list(entries)]})


IDLE = {
    "address": 1 << 40, "total_size": 2 << 20, "allocated_size": 0, "active_size": 0, "stream": 0,
    "device": 0, "segment_type": "small",
    "blocks": [{"size": 2 << 20, "requested_size": 0, "state": "inactive"}],
}  # fmt: skip

ODD = {
    "empty.pickle": pickle.dumps({"segments": [], "device_traces": []}),
    "no-entry.pickle": snapshot(),
    "one-segment.pickle": snapshot(segments=(IDLE,)),
    "one-alloc.pickle": snapshot(entry("alloc", 512)),
    "one-segment-alloc.pickle": snapshot(entry("segment_alloc", 2 << 20)),
    "one-oom.pickle": snapshot(entry("oom", 512)),
    "one-row.csv": b"action,addr,size\nalloc,1,512\n",
    "absurd-row.csv": b"action,addr,size\nalloc,1,4611686018427387904\n",
    "absurd-rows.csv": b"action,addr,size\n"
    + b"".join(b"alloc,%d,4611686018427387904\n" % number for number in range(1, 4)),
    "absurd-segment-alloc.pickle": snapshot(entry("segment_alloc", 1 << 62)),
}


PAIRS = [
    pytest.param(name, line, marks=[] if (row + column) % 4 == 0 else pytest.mark.slow)
    for row, line in enumerate(READS_A_RECORDING)
    for column, name in enumerate(ODD)
]
"""Each command with every recording; always two or three recordings of each."""


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(("name", "line"), PAIRS)
def test_commands_answer_or_refuse_an_odd_recording_in_a_sentence(
    cli: Cli, tmp_path: Path, name: str, line: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / name).write_bytes(ODD[name])
    done = cli(*words_of(line, folder / name, tmp_path))
    assert done.code in (0, 1, 2, 3), done.err
    assert "Traceback" not in done.err
    for word in ("nan", "inf "):
        assert word not in done.out.split()
    assert not re.search(r"(?<! of) 1 entries", done.out)
    if done.code == 2:
        assert done.out == "" and done.err.startswith("allocsim: "), done.err
        assert done.err.count(str(folder / name)) <= 1, "a file is named once"


def test_ranks_keeps_the_good_files_beside_an_empty_one(
    cli: Cli, tmp_path: Path, traces: Path
) -> None:
    name = "gpt2-ragged-oom-torch2.15.pickle.gz"
    shutil.copy(traces / name, tmp_path / "rank0.pickle.gz")
    (tmp_path / "rank1.pickle").write_bytes(ODD["empty.pickle"])
    done = cli("ranks", tmp_path)
    assert done.code == 0
    assert "1 of 2 recordings" in done.out and "5.46 GiB" in done.out
    (refused,) = json.loads(cli("ranks", tmp_path, "--json").out)["refused"]
    assert refused["error"] == f"{tmp_path}/rank1.pickle: holds neither segments nor entries"


def test_ranks_names_a_file_once(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "rank1.pickle"
    path.write_bytes(ODD["empty.pickle"])
    done = cli("ranks", path)
    assert done.err == (
        f"allocsim: {path}: holds neither segments nor entries; no recording can be read\n"
    )
