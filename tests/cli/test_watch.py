"""Tests of `allocsim watch`: a line per recording, verdicts on failed programs, exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path, traces: Path) -> Path:
    for name in ("counted/gpt2-torch2.15", "recordings/cuda_graphs-tight-torch2.15"):
        path = tmp_path / "dumps" / f"{Path(name).name}.npz.gz"
        path.parent.mkdir(exist_ok=True)
        shutil.copy(traces / f"{name}.npz.gz", path)
        os.utime(path, (1, 1))
    (tmp_path / "dumps" / "bad.pickle").write_bytes(b"\x80\x04no")
    os.utime(tmp_path / "dumps" / "bad.pickle", (1, 1))
    return tmp_path / "dumps"


def test_watch_once_reads_the_present_files(cli: Cli, folder: Path) -> None:
    done = cli("watch", folder, "--once")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert sum(line.startswith("cannot be read: ") for line in lines) == 1
    assert sum(line.startswith("gpt2-torch2.15.npz.gz: no error, ") for line in lines) == 1


def test_watch_json_is_one_object_per_line(cli: Cli, folder: Path) -> None:
    output = [
        json.loads(line) for line in cli("watch", folder, "--once", "--json").out.splitlines()
    ]
    assert [Path(each["path"]).name for each in output] == sorted(
        path.name for path in folder.iterdir()
    )
    assert output[0]["error"] and output[2]["num_ooms"] == 0


def test_watch_explains_a_failed_recording(
    cli: Cli, tmp_path: Path, write: Callable[..., Path]
) -> None:
    def fails(gpu: Any) -> None:
        gpu.malloc(30 << 20)
        with contextlib.suppress(RuntimeError):
            gpu.malloc(90 << 20)

    os.utime(write(fails, memory="100MiB"), (1, 1))
    done = cli("watch", tmp_path, "--once")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("run.pickle: 1 out-of-memory error, 30.00 MiB reserved")
    assert lines[1].startswith("Verdict         full: ")


def test_watch_ends_at_an_interrupt(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    done = cli("watch", folder, "--interval", "0.25")
    assert (done.code, done.err, waits) == (0, "", [0.25] * 3)
    assert len([line for line in done.out.splitlines() if "gpt2" in line]) == 1, "printed once"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["nowhere"], "'nowhere' is not a folder; expected a folder to watch"),
        ([".", "--interval", "0"], "'0' is not a time; expected seconds above 0"),
    ],
)
def test_watch_refuses_wrong_input_in_a_sentence(cli: Cli, more: list[str], sentence: str) -> None:
    done = cli("watch", *more)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
