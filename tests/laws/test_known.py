"""Lists of programs with laws on the pages, compared with the package."""

from __future__ import annotations

from allocsim.fitting.laws import known_laws
from benchmarks.laws.__main__ import variants
from benchmarks.laws.known import PAGE, RESULTS, missing, page_with


def test_the_page_has_every_program_with_a_law() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page_with(text) == text, "python -m benchmarks.laws --write"
    assert f" laws of {len(known_laws())} programs, " in text


def test_the_results_list_every_program_without_a_law() -> None:
    lines = RESULTS.read_text(encoding="utf-8").splitlines()
    assert list(missing(list(variants()))) == lines, "python -m benchmarks.laws --write"
    names = {variant.name for variant in variants()}
    assert names == {*known_laws(), *(line.strip().partition(":")[0] for line in lines[1:])} & names


def test_the_nearest_program_trains_or_serves_as_well() -> None:
    _, *lines = RESULTS.read_text(encoding="utf-8").splitlines()
    programs = lines[: next(i for i, line in enumerate(lines) if not line.startswith(" "))]
    for line in programs:
        name, _, nearest = line.strip().partition(": ")
        assert nearest in known_laws()
        assert ("serve" in name) is ("serve" in nearest)
        assert name.partition("_")[0] == nearest.partition("_")[0]
