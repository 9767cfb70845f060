"""Summaries of the speed benchmarks for known rates."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from allocsim.errors import PhantomError
from allocsim.recording import write_npz
from allocsim.workload import training
from benchmarks import commands, sweep
from benchmarks.speed import Row, document, table


def test_a_share_is_the_median_of_neighbouring_runs_and_not_of_medians() -> None:
    row = Row("a script", model=[10.0, 20.0, 90.0], engine=[30.0, 10.0, 20.0], real=[10, 40, 100])
    found = json.loads(document([row], 1_000, "2.15"))
    assert (found["ops"], found["runs"], found["torch_version"]) == (1_000, 3, "2.15")
    script = found["scripts"]["a script"]
    assert script["engine"] == {"median": 20, "lowest": 10, "highest": 30}
    assert script["engine_of_real"] == {"median": 0.25, "lowest": 0.2, "highest": 3}
    assert script["model_of_real"]["median"] == 0.9
    assert "| 0.900 | 0.250 |" in table([row], 1_000, "2.15")


def test_without_the_real_allocator_there_is_no_share() -> None:
    found = json.loads(document([Row("a script", [10.0], [30.0], [])], 10, "2.15"))
    assert set(found["scripts"]["a script"]) == {"model", "engine"}


SEARCHES = sweep.Found(
    release="2.15",
    jobs=2,
    entries=1_000,
    settings=9,
    distinct=6,
    replayed=4_000,
    skipped=500,
    seconds=(2.0, 3.0, 6.0),
    processor_seconds=(4.0, 5.0, 9.0),
    real=(1_000.0, 1_000.0, 2_000.0),
)


def test_a_search_is_held_beside_the_real_rate_of_its_own_run() -> None:
    found = json.loads(sweep.document(SEARCHES))
    assert (found["runs"], found["settings"], found["distinct"]) == (3, 9, 6)
    assert found["rate"] == {"median": 2_000, "lowest": 1_000, "highest": 3_000}
    assert found["rate_of_real"] == {"median": 2, "lowest": 0.5, "highest": 3}
    assert "the sweep 2.00 of it (0.50 to 3.00)" in sweep.sentences(SEARCHES)


def test_a_search_without_the_real_allocator_has_its_own_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(*_: object) -> None:
        raise PhantomError("no library is at hand")

    monkeypatch.setattr(sweep, "Real", absent)
    path = tmp_path / "run.npz"
    write_npz(training(entries=3_000), path)
    found = sweep.measure(str(path), "24GiB", 1, 2)
    assert "no ratio: no library" in capsys.readouterr().err
    assert len(found.seconds) == len(found.processor_seconds) == 2
    assert found.entries >= 3_000
    assert 1 < found.distinct <= found.settings
    assert "real" not in json.loads(sweep.document(found))


def test_a_commands_ratio_is_of_neighbouring_runs() -> None:
    new = [commands.Cost(seconds, 1.0, 50 << 20) for seconds in (1.0, 4.0, 9.0)]
    old = [commands.Cost(seconds, 2.0, 80 << 20) for seconds in (2.0, 4.0, 3.0)]
    rows = [commands.Row("top", 10, new, old), commands.Row("stats", 10, new)]
    top, stats = json.loads(commands.document(rows))["commands"]
    assert top["ratio"] == {"median": 1, "lowest": 0.5, "highest": 3}
    assert top["old_memory_bytes"]["median"] == 80 << 20
    assert "ratio" not in stats
    assert "| `top` | 10 | 4.00 | 1.00 | 50 | 3.00 | 1.00 (0.50 to 3.00) |" in commands.table(rows)


def test_commands_are_measured_from_their_start_to_their_end_in_both_checkouts() -> None:
    (row,) = commands.measure(["stats"], [1_000], 2, commands.HERE)
    assert (row.command, row.entries, len(row.new), len(row.old)) == ("stats", 1_000, 2, 2)
    for cost in (*row.new, *row.old):
        assert cost.processor_seconds > 0
        assert cost.seconds > 0.01
        assert cost.memory > 10 << 20


def test_a_command_that_gives_no_answer_is_no_figure(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        commands.spent(["stats", str(tmp_path / "absent.pickle")], commands.HERE, tmp_path)
