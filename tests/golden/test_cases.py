"""The committed golden data is complete, and equal to the originals where they are available."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import cases, pack

ORIGINALS = Path(__file__).parents[3] / "shared" / "golden"


def test_no_result_is_missing() -> None:
    counted = {"all": 0, "basic": 0}
    for case in cases.load():
        found = len(cases.releases(case))
        counted["all"] += found
        counted["basic"] += found * cases.is_basic(case)
    assert counted == {"all": cases.ALL, "basic": cases.BASIC}


@pytest.mark.skipif(
    not ORIGINALS.is_dir(),
    reason="needs the golden files before they were packed",
)
@pytest.mark.slow
def test_the_copy_equals_the_originals() -> None:
    originals = {case["name"]: case for case in pack.read_originals(ORIGINALS)}
    for case in cases.load():
        assert cases.unpack(case) == originals.pop(case["name"])
    assert not originals
