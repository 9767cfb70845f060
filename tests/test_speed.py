"""What `python -m benchmarks.speed --json` says of rates that are known."""

from __future__ import annotations

import json

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
