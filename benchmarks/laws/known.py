"""Lists for the documentation of the parts of programs that have laws, and those that have none.

Rule: the lists follow from the package's files and the list of programs that are recorded. A test
checks that the files show the same lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from allocsim.fitting.laws import (
    DATA,
    FIRST,
    OPTIMIZERS,
    SERVE,
    ProgramName,
    find_laws,
    known_programs,
)
from benchmarks.laws.samples import Variant, regimes

__all__ = ["PAGE", "RESULTS", "missing", "page_with", "write"]

_ROOT = Path(__file__).parents[2]
PAGE = _ROOT / "benchmarks" / "results" / "laws.md"
RESULTS = _ROOT / "benchmarks" / "results" / "laws-missing.txt"

_BEGIN, _END = "<!-- laws: begin -->", "<!-- laws: end -->"
_PRECISIONS = ("bf16", "fp16", "autocast-bf16", "fp32")


def write(variants: Sequence[Variant]) -> None:
    """Write both lists to their files."""
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    RESULTS.write_text("\n".join(missing(variants)) + "\n", encoding="utf-8")


def page_with(text: str) -> str:
    """Return the page `text` with a new table of the parts that have laws."""
    before, _, rest = text.partition(f"{_BEGIN}\n")
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n" + "\n".join(_table()) + f"\n{_END}{after}"


def _table() -> Iterator[str]:
    """Yield the lines of the table, with a row for each model that trains or serves."""
    size = sum(file.stat().st_size for file in DATA.glob("*.zip"))
    programs = list(known_programs())
    cells: dict[tuple[str, str], dict[str, list[str]]] = {}
    n_laws = 0
    for name in programs:
        if name.work not in (SERVE, OPTIMIZERS[0]):
            continue
        laws = find_laws(name)
        assert laws is not None
        n_laws += sum(each.partition(".")[0] in (FIRST, "start", "step") for each in laws)
        serves = "serves" if name.work == SERVE else "trains"
        row = cells.setdefault((name.family.replace("_", ", "), serves), {})
        for each in ("bf16", "fp16") if name.dtype == "16-bit" else (name.dtype,):
            row.setdefault(each, []).append(_options(name))
    yield (
        f"{n_laws:,} laws of forward and backward passes, prompts and steps of tokens, which make "
        f"{len(programs)} programs, in {size // 1024:,} KiB:"
    )
    yield ""
    yield f"| model | program | {' | '.join(_PRECISIONS)} |"
    yield "|---|---|" + "---|" * len(_PRECISIONS)
    for (model, work), row in cells.items():
        shown = (", ".join(row.get(precision, ())) for precision in _PRECISIONS)
        yield f"| {model} | {work} | {' | '.join(shown)} |"


def _options(name: ProgramName) -> str:
    """Return the options of a program in words."""
    words = []
    for option in name.options:
        if option.startswith("lora"):
            targets = option.split("-")[1:]
            words.append(f"LoRA of {' and '.join(targets)}" if targets else "LoRA")
        else:
            words.append(option)
    return " + ".join(words) or "plain"


def missing(variants: Sequence[Variant]) -> Iterator[str]:
    """Yield lines that list each recorded program, and each regime of training, without a law."""
    trained = {each.program: each for each in variants}
    lacking = [name for name in trained if find_laws(name) is None]
    yield f"{len(lacking)} of {len(trained)} recorded programs have no law:"
    yield from (f"    {name.text}" for name in lacking)
    yield "Ways of kernels without one, of programs that train:"
    for name, variant in trained.items():
        laws = None if variant.serves else find_laws(name)
        if laws is not None:
            ways = [each for each in regimes(variant) if f"{FIRST}.{each}" not in laws]
            if ways:
                yield f"    {name.text}: {', '.join(ways)}"
