"""Lists of programs with laws on the pages, compared with the package."""

from __future__ import annotations

from allocsim.fitting.laws import find_laws, known_laws
from benchmarks.laws.__main__ import variants
from benchmarks.laws.known import PAGE, RESULTS, missing, page_with


def test_the_page_has_every_program_with_a_law() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page_with(text) == text, "python -m benchmarks.laws --write"
    assert f"which make {len(known_laws())} programs, " in text


def test_the_results_list_every_recorded_program_without_a_law() -> None:
    lines = RESULTS.read_text(encoding="utf-8").splitlines()
    recorded = list(variants())
    assert list(missing(recorded)) == lines, "python -m benchmarks.laws --write"
    lacking = {each.name for each in recorded if find_laws(each.program) is None}
    assert {line.strip() for line in lines[1 : 1 + len(lacking)]} == lacking
