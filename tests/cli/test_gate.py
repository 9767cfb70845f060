"""Tests of `allocsim gate`: exit codes, writing the baseline, and refused arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
BASELINE = Path(__file__).parents[1] / "gate" / "gpt2.json"


def test_our_own_program_is_within_its_baseline(cli: Cli, traces: Path) -> None:
    """The check is that of a project's CI, on the recording of a program in traces/counted."""
    file = traces / "counted" / "gpt2-torch2.15.npz.gz"
    done = cli("gate", file, "--baseline", BASELINE, "--tolerance", "0%")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Verdict         passed: ")


def test_gate_fails_and_names_the_lines_that_grew(cli: Cli, traces: Path, tmp_path: Path) -> None:
    before, after = (traces / "sized" / f"{name}.npz.gz" for name in ("layers2", "layers3"))
    base = tmp_path / "memory.json"
    update = "--baseline", base, "--from", "step", "2", "--update"
    done = cli("gate", before, *update)
    assert (done.code, done.err) == (0, f"allocsim: wrote {base}\n")
    assert cli("gate", before, "--baseline", base, "--tolerance", "0").code == 0
    done = cli("gate", after, "--baseline", base)
    assert (done.code, done.err) == (1, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("Verdict         failed: reserved memory grew by 1")
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert any(line.endswith("modeling_llama.py:164 forward") for line in lines)
    document = json.loads(cli("gate", after, "--baseline", base, "--json").out)
    assert {"passed", "peak_reserved_bytes", "baseline_bytes", "tolerance", "grown"} < set(document)
    assert (document["passed"], document["tolerance"], document["from"]) == (False, 0.01, "step 2")
    assert document["baseline_bytes"] == json.loads(base.read_text())["peak_reserved_bytes"]
    assert document["grown"][0]["bytes"] >= document["grown"][-1]["bytes"] > 0
    assert cli("gate", after, *update).code == 0
    assert cli("gate", after, "--baseline", base).code == 0


def test_limits_need_no_baseline(cli: Cli, traces: Path) -> None:
    file = traces / "sized" / "layers2.npz.gz"
    assert cli("gate", file, "--max-reserved", "3GiB").code == 0
    done = cli("gate", file, "--max-reserved", "2GiB", "--max-fragmentation", "90%")
    assert done.code == 1
    assert "FAILS  reserved 2.70 GiB, limit 2.00 GiB" in done.out
    assert "holds  fragmentation" in done.out
    assert "at the peak  line" in done.out
    own = json.loads(
        cli("gate", file, "--max-reserved", "3GiB", "--own", "--from", "step", "2", "--json").out
    )
    assert own["counts_held"] is False and own["held"]["kept_bytes"] > 0


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ([], "no limit is given; expected e.g. --max-reserved SIZE or --baseline FILE"),
        (["--update"], "--update writes a baseline; give its name: --baseline FILE"),
        (["--baseline", "nowhere.json"], "nowhere.json does not exist; --update writes it"),
        (["--baseline", "no/where.json", "--update"], "no/where.json cannot be written"),
        (["--max-reserved", "2GiB", "--from", "day", "2"], "--from 'day'; expected one of step"),
        (["--max-reserved", "2GiB", "--from", "step", "77"], "there is no step 77; it has 1, 2"),
        (["--max-reserved", "much"], "size 'much' is not a number"),
        (["--max-reserved", "20"], "'20' is 20 bytes; did you mean 20GiB?"),
        (["--max-fragmentation", "200%"], "'200%' is not a fraction"),
        (["--baseline", "x", "--tolerance=-1%"], "'-1%' is not a share; expected e.g. 1%"),
        (["--baseline", "x", "--tolerance", "nan"], "'nan' is not a share"),
        (["--max-driver-calls", "5", "--conf", "x:1"], "x"),
    ],
)
def test_gate_command_refuses_wrong_input_in_a_sentence(
    cli: Cli, traces: Path, more: list[str], sentence: str
) -> None:
    done = cli("gate", traces / "sized" / "layers2.npz.gz", *more)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert len(done.err.splitlines()) == 1


def test_gate_refuses_to_overwrite_its_input_and_to_check_a_state(
    cli: Cli, traces: Path, state: Path
) -> None:
    done = cli("gate", state, "--baseline", state, "--update")
    assert done.code == 2 and "is also the input" in done.err
    done = cli("gate", state, "--max-reserved", "1GiB")
    assert done.code == 2 and "holds no requests" in done.err
    assert (traces / "README.md").is_file()
