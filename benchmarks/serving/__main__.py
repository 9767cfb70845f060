"""Compare the memory that serving engines printed at their start with the formulas of `fit`.

    python -m benchmarks.serving [ROW ...]
    python -m benchmarks.serving --docs

Rule: no row is omitted. `logs.csv` has the figures of public start-up logs with their addresses. A
row without a prediction gives the reason. Rows whose card is not named are predicted for no card;
only their weights are compared. A prediction is a range; its error is that of its middle.

--docs writes the table of all rows to results/serving.md, the summary to docs/evidence/serving.md.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from allocsim.errors import AllocsimError
from allocsim.fitting import Served, held_of, serve
from allocsim.fitting.formulas import Logged, options_in, version_of
from allocsim.phantom import Gpu, find_gpu, limits_of
from allocsim.units import GIB, MIB, parse_size
from tests.reference import between_marks

HERE = Path(__file__).parent
_RESULTS = HERE.parent / "results" / "serving.md"
_PAGE = HERE.parents[1] / "docs" / "evidence" / "serving.md"
_ROUNDED = 0.0051
"""Largest error of a figure with two decimals."""
Row = dict[str, str]

_DRAFT = "a draft model for speculative decoding is loaded, and has layers in the cache"
_PADDING = "probably padding of the experts' 352 rows per card; sums of rounded pools"
CAUSES = {
    "V019": "the profiling run has images",
    "V069": "the profiling run has images, and a dynamic checkpoint keeps some modules in 16 bits",
    **dict.fromkeys(("V043", "V044", "V045", "V046", "V047", "S004", "S006"), _DRAFT),
    "V042": "the profiling run has images; some modules in 16 bits; graphs of 33 MiB for each size",
    **dict.fromkeys(("V058", "V059"), "the server embeds: it samples no token"),
    **dict.fromkeys(("S011", "S012"), "probably a separate output layer on each card"),
    **dict.fromkeys(("S016", "S017", "S018", "S019", "S020"), _PADDING),
    "S029": "the printed weights are those of 8 bits",
    "L011": "its output layer has 4 bits",
    "S031": "the tokens are those of a ratio of 0.1; the name of the file says 0.0625",
    "L004": "Metal maps the whole file, with the embeddings",
    "V114": "probably padding of the experts' 360 rows per card for the kernel of MXFP4",
    "V064": "probably Unsloth's changes of the engine: the peak is that without the sampler",
    "V061": "probably adapters of LoRA, which the notebook trains",
    "V068": "a dynamic checkpoint keeps some modules in 16 bits",
    "V063": "a dynamic checkpoint keeps some modules in 16 bits",
    "V106": "the log does not print the capacity of this card; 64 GiB are assumed",
    "V107": "the log does not print the capacity of this card; 64 GiB are assumed",
    "V111": "the profiling run has images: the largest batch of tiles for 128 sequences",
    "V112": "the fraction is not known; the default is assumed",
    "V117": "probably buffers of the connector for the cache (LMCache)",
    "L003": "no layer is on the card; the log gives weights and cache of the host",
    "S007": "a ROCm card, where attention has a workspace of 51.75 GiB",
}
"""Known causes of differences that the formulas do not contain."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One printed figure and its prediction, in GiB, or in tokens."""

    name: str
    printed: float
    low: float
    high: float
    slack: float = _ROUNDED

    @property
    def is_held(self) -> bool:
        """True if the printed figure is in the range."""
        return self.low - self.slack <= self.printed <= self.high + self.slack

    @property
    def error(self) -> float:
        """Signed error of the middle of the range, as a share of the printed figure."""
        return (self.low + self.high) / 2 / self.printed - 1 if self.printed else 0.0


@dataclass(frozen=True, slots=True)
class Compared:
    """A row with its figures, or with the reason for which it has no prediction."""

    row: Row
    figures: tuple[Figure, ...] = ()
    why: str = ""


def rows() -> list[Row]:
    with (HERE / "logs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def gpu_of(row: Row) -> Gpu:
    """Return the card of a row, with the capacity that its log printed, if it did."""
    name = row["gpu"] or "80GiB"
    if name.endswith("GiB"):
        gpu = Gpu("a card of that size", parse_size(name))
        if "compute 7.5" in row["card"]:  # GeForce cards of 4 GB have 14 to 16 multiprocessors
            turing = (7, 5)
            limits = limits_of(turing, MIB)
            gpu = replace(gpu, capability=turing, multiprocessors=14, limits=limits)
    else:
        gpu = find_gpu(name)
    if row["total"]:
        gpu = replace(gpu, memory=round(float(row["total"]) * GIB))
    return gpu


def answer(row: Row, *, is_cache_known: bool = False) -> Served:
    """Return the answer of the formula to the question of a row.

    is_cache_known: take the bytes of the cache from the log, and predict its tokens alone.
    """
    held = held_of(row["model"].split(" + ")[0], row["server"], row["weights"] or None)
    is_ollama = row["server"] == "ollama"  # it has variables of the environment instead of options
    options = options_in(
        "" if is_ollama else row["options"], "vllm" if is_ollama else row["server"]
    )
    if row["release"] and row["server"] == "vllm":
        options = replace(options, version=version_of(row["release"]))
    prompt = min((options.longest or 1024) - 1, 1024)
    logged = (
        Logged(cache=float(row["cache_gib"]) * GIB, options=options) if is_cache_known else None
    )
    how = {"prompt": prompt, "decode": 1, "options": options, "logged": logged}
    return serve(held, row["server"], gpu_of(row), **how)  # type: ignore[arg-type]


def compare(row: Row) -> Compared:
    try:
        found = answer(row)
    except AllocsimError as error:
        return Compared(row, why=str(error))
    return Compared(row, tuple(_figures(row, found)))


def _figures(row: Row, found: Served) -> Iterator[Figure]:
    parts = {part.name: (part.low / GIB, part.high / GIB) for part in found.needs.parts}
    low, high = parts["weights"]
    if row["weights_gib"]:
        low, high = (
            each + beside / GIB
            for each, beside in zip((low, high), found.needs.loaded_beside, strict=True)
        )
        yield Figure("weights", float(row["weights_gib"]), low, high)
    if row["activation_gib"] and row["server"] == "vllm":
        yield Figure("activations", float(row["activation_gib"]), *parts["activations"])
    if row["compute_gib"]:
        yield Figure("compute buffer", float(row["compute_gib"]), *parts["compute buffer"])
    if row["graphs_gib"] and row["server"] == "vllm":
        yield Figure("graphs", float(row["graphs_gib"]), *parts["CUDA graphs"])
    if row["cache_gib"] and row["tokens"] and row["server"] in ("vllm", "sglang"):
        room = answer(row, is_cache_known=True).needs.room
        assert room is not None
        yield Figure(NAMES[-1], float(row["tokens"]), *room, slack=16)
    if not row["gpu"]:
        return
    if row["cache_gib"] and row["server"] in ("llama.cpp", "ollama"):
        yield Figure("cache", float(row["cache_gib"]), *parts["keys and values"])
    elif row["cache_gib"] and found.needs.pool is not None:
        sizes = (each / GIB for each in found.needs.pool)
        yield Figure("cache", float(row["cache_gib"]), *sizes)
    if row["tokens"] and found.needs.room is not None:
        yield Figure("tokens", float(row["tokens"]), *found.needs.room, slack=16)


_HEAD = """\
# Serving engines: printed and predicted memory, every row

In GiB, or in tokens. `python -m benchmarks.serving --docs` writes this table. The addresses of the
logs are in `benchmarks/serving/logs.csv`, the summary is in docs/evidence/serving.md.
"""
_COMMAND = "python -m benchmarks.serving --docs"
NAMES = (
    *("weights", "activations", "graphs", "cache", "tokens", "compute buffer"),
    "tokens in the printed cache",
)


def table(found: Sequence[Compared]) -> Iterator[str]:
    """Yield the lines of the table of all rows."""
    yield "| row | engine | model | card | figure | printed | predicted | middle | in range |"
    yield "|---|---|---|---|---|---:|---:|---:|---|"
    for each in found:
        row = each.row
        start = (
            f"| {row['row']} | {row['server']} {row['release']} | {row['model']} | {row['card']} "
        )
        if each.why:
            yield f"{start}| | | no formula for the model | | |"
        for figure in each.figures:
            cause = CAUSES.get(row["row"], "") if not figure.is_held else ""
            digits = ",.0f" if figure.name.startswith("tokens") else ".2f"
            yield (
                f"{start}| {figure.name} | {figure.printed:{digits}} | {figure.low:{digits}} to "
                f"{figure.high:{digits}} | {figure.error:+.1%} | "
                f"{'yes' if figure.is_held else f'no: {cause}' if cause else 'no'} |"
            )


def summary(found: Sequence[Compared]) -> Iterator[str]:
    """Yield the lines of the summary by engine and figure."""
    yield "| engine | figure | rows | in range | median, signed | median, unsigned | largest |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for server in ("vllm", "sglang", "llama.cpp", "ollama"):
        for name in NAMES:
            figures = [
                figure
                for each in found
                if each.row["server"] == server
                if each.row["gpu"] or name == NAMES[-1]
                for figure in each.figures
                if figure.name == name
            ]
            if figures:
                errors = [figure.error for figure in figures]
                held = sum(figure.is_held for figure in figures)
                yield (
                    f"| {server} | {name} | {len(figures)} | {held} | {median(errors):+.1%} | "
                    f"{median(map(abs, errors)):.1%} | {max(errors, key=abs):+.1%} |"
                )


def counts(found: Sequence[Compared]) -> Iterator[str]:
    """Yield the lines about rows without a prediction, and figures outside of their range."""
    named = [each for each in found if each.row["gpu"]]
    missing = [each for each in named if each.why]
    count = len(named) - len(missing)
    yield f"{len(found)} rows, {len(named)} with a named card, {count} of them predicted."
    models = Counter(each.row["model"] for each in missing)
    rows = ", ".join(f"{name} ({count})" for name, count in sorted(models.items()))
    yield f"No formula for these models, with the number of rows: {rows}."
    outside: dict[tuple[str, str], list[str]] = {}
    for each in named:
        if names := [figure.name for figure in each.figures if not figure.is_held]:
            cause = CAUSES.get(each.row["row"], "unknown")
            outside.setdefault((", ".join(names), cause), []).append(each.row["row"])
    for (names_of, cause), numbers in outside.items():
        yield f"- {', '.join(numbers)}: {names_of}: {cause}."


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.serving", description=__doc__)
    parser.add_argument("rows", metavar="ROW", nargs="*")
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args(arguments)
    wanted: Iterable[Row] = rows()
    if given.rows:
        wanted = [row for row in wanted if row["row"] in given.rows]
    found = [compare(row) for row in wanted]
    if given.docs:
        _RESULTS.write_text(f"{_HEAD}\n" + "".join(f"{line}\n" for line in table(found)))
        text = "\n".join([*summary(found), "", *counts(found)])
        _PAGE.write_text(between_marks(_PAGE.read_text(), "formulas", _COMMAND, text))
        return
    print("\n".join([*table(found), "", *summary(found), "", *counts(found)]))


if __name__ == "__main__":
    main()
