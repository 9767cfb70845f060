"""Lists of the programs with and without laws in the package.

Rule: the lists follow from the package's files and the list of programs. A test checks that the
files show the same lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from allocsim.fitting.by_law import nearest_law
from allocsim.fitting.laws import DATA, TRANSFORMERS, find_laws, known_laws
from benchmarks.laws.samples import Variant, regimes

__all__ = ["PAGE", "RESULTS", "missing", "page_with", "write"]

_ROOT = Path(__file__).parents[2]
PAGE = _ROOT / "benchmarks" / "results" / "laws.md"
RESULTS = _ROOT / "benchmarks" / "results" / "laws-missing.txt"

_BEGIN, _END = "<!-- laws: begin -->", "<!-- laws: end -->"
_PRECISIONS = ("bf16", "fp16", "autocast-bf16", "fp32")
_NAME = re.compile(
    r"([\w-]+?(?:_(?:un)?tied)?)_(16-bit|(?:autocast-)?[bf][fp]?\d+)_([a-z\d-]+)(.*)"
)
"""Model, precision, task and options."""


def write(variants: Sequence[Variant]) -> None:
    """Write both lists to their files."""
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    RESULTS.write_text("\n".join(missing(variants)) + "\n", encoding="utf-8")


def page_with(text: str) -> str:
    """Return the page `text` with a new table of the programs that have laws."""
    before, _, rest = text.partition(f"{_BEGIN}\n")
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n" + "\n".join(_table()) + f"\n{_END}{after}"


def _table() -> Iterator[str]:
    size = sum(file.stat().st_size for file in DATA.glob("*/*.npz"))
    names = known_laws()
    laws = f"{_count(names, TRANSFORMERS[0]):,} laws of {len(names)} programs"
    yield f"{laws}, {size // 1024:,} KiB in the package with those below:"
    yield from _rows(names)
    for release in TRANSFORMERS[1:]:
        own = _own(release)
        yield ""
        yield f"{_count(own, release):,} of {len(own)} programs in transformers {release}:"
        yield from _rows(own)


def _rows(names: Sequence[str]) -> Iterator[str]:
    """Yield the rows of the table of programs."""
    yield ""
    yield f"| model | program | {' | '.join(_PRECISIONS)} |"
    yield "|---|---|" + "---|" * len(_PRECISIONS)
    cells: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name in names:
        found = _NAME.fullmatch(name)
        assert found is not None, name
        model, precision, program, how = found.groups()
        row = cells.setdefault((model.replace("_", ", "), program), {})
        for each in ("bf16", "fp16") if precision == "16-bit" else (precision,):
            row.setdefault(each, []).append(_options(how))
    for (model, program), row in cells.items():
        shown = (", ".join(row.get(precision, ())) for precision in _PRECISIONS)
        yield f"| {model} | {program} | {' | '.join(shown)} |"


def _own(release: str) -> list[str]:
    """Return the names of the programs with their own laws in a release of transformers."""
    return sorted(path.stem for path in (DATA / f"transformers-{release}").glob("*.npz"))


def _count(names: Sequence[str], transformers: str) -> int:
    """Return the number of laws of programs for a release of transformers."""
    found = (find_laws(name, transformers) for name in names)
    return sum(len(each.by_regime) for each in found if each is not None)


def _options(how: str) -> str:
    """Return the options in a program's name, in words.

    how: end of the name.
    """
    way, _, lora = how.partition("_lora")
    words = way.split("_")[1:]
    if "_lora" in how:
        words.append(f"LoRA of {lora[1:].replace('-', ' and ')}" if lora else "LoRA")
    return " + ".join(words) or "plain"


def missing(variants: Sequence[Variant]) -> Iterator[str]:
    """Yield lines that list each program, and each regime of training, without a law."""
    lacking = [each.name for each in variants if find_laws(each.name) is None]
    yield f"{len(lacking)} of {len(variants)} programs have no law; the nearest that has one:"
    yield from (f"    {name}: {nearest_law(name)}" for name in lacking)
    yield "Ways of kernels without one, of programs that train:"
    first = {each.name: _ways_without(each, TRANSFORMERS[0]) for each in variants}
    yield from _told_ways(first)
    for release in TRANSFORMERS[1:]:
        yield f"And in transformers {release}:"
        own = _own(release)
        there = {each.name: _ways_without(each, release) for each in variants if each.name in own}
        yield from _told_ways(
            {name: [way for way in ways if way not in first[name]] for name, ways in there.items()}
        )


def _told_ways(ways: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield from (f"    {name}: {', '.join(without)}" for name, without in ways.items() if without)


def _ways_without(variant: Variant, transformers: str) -> list[str]:
    """Return the regimes without a law of a training program that has laws."""
    laws = None if variant.serves else find_laws(variant.name, transformers)
    return [] if laws is None else [each for each in regimes(variant) if each not in laws.by_regime]
