"""Tests of `allocsim synth`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from allocsim.recording import load


def test_synth_writes_a_recording_that_replays_exactly(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "oom.pickle"
    made = cli("synth", "oom", "-o", path)
    assert (made.code, made.out) == (0, f"{path}: 16 entries, ended out of memory\n")
    assert cli("replay", path, "--strict", "--no-cure").code == 0


def test_options_reach_the_program(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    words = ("--steps", 2, "--layers", 1, "--ragged", "--device-memory", "8GiB", "--seed", 3)
    assert cli("synth", "training", "-o", path, *words).code == 0
    made = load(path).provenance
    assert made is not None
    assert made.device_memory == 8 << 30
    assert " --steps 2 --layers 1 " in made.command
    assert " --ragged --seed 3 " in made.command


def test_synth_help_describes_each_kind(cli: Any) -> None:
    assert "out of memory despite free memory, in ten calls" in cli("synth", "--help").out
    shown = cli("synth", "training", "--help").out
    assert "use another sequence length in each step" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_synth_refuses_wrong_input_in_a_sentence(cli: Any, tmp_path: Path) -> None:
    wrong = cli("synth", "oom", "-o", "oom.csv")
    assert (wrong.code, wrong.out) == (2, "")
    assert (
        wrong.err
        == "allocsim: oom.csv does not end in .pickle, .pkl, .pickle.gz, .pkl.gz or .npz\n"
    )
    assert "its folder does not exist" in cli("synth", "oom", "-o", tmp_path / "no" / "oom.npz").err
    assert cli("synth", "riot", "-o", "x.npz").code == 2
    assert cli("synth", "oom", "-o", tmp_path / "x.npz", "--conf", "nonsense:1").code == 2
