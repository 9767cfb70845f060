"""Public start-up logs of servers: read by `explain`, kept by `fit --log`, predicted by formula."""

from __future__ import annotations

import pytest

from allocsim.errors import AllocsimError
from allocsim.fitting import held_of, serve
from allocsim.fitting.formulas import logged_in
from allocsim.recording import figures_in
from allocsim.units import GIB
from benchmarks.serving.__main__ import CAUSES, Row, compare, gpu_of, rows
from tests.formulas.served_logs import log_of

ROWS = rows()
PRINTED = {
    "weights_gib": "weights_bytes",
    "activation_gib": "activation_bytes",
    "compute_gib": "compute_bytes",
    "beside_gib": "other_bytes",
    "cache_gib": "kv_cache_bytes",
    "graphs_gib": "graphs_bytes",
    "estimate_gib": "graphs_estimate_bytes",
    "total": "total_bytes",
}
"""Name of the log's figure for each column."""


def values(row: Row) -> dict[str, float]:
    """Return the figures that are read from the log of a row, by name."""
    found = figures_in(log_of(row))
    assert found is not None
    assert found.refusals == ()
    if row["server"] == "vllm" and row["release"]:
        assert found.version == row["release"]
    return {figure.name: figure.value for figure in found.figures if "CPU" not in figure.device}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["row"])
def test_every_figure_of_a_public_log_is_read(row: Row) -> None:
    found = values(row)
    found["kv_cache_bytes"] = found.get("kv_cache_bytes", 0) + sum(
        found.get(name, 0) for name in ("k_cache_bytes", "v_cache_bytes")
    )
    text = log_of(row)
    for column, name in PRINTED.items():
        if row[column] and row[column] in text:
            assert found[name] == pytest.approx(float(row[column]) * GIB, rel=0.001), column
    if row["tokens"]:
        tokens = found.get("kv_cache_tokens", found.get("context_tokens", 0))
        assert tokens or found["kv_cache_blocks"] * 16 == int(row["tokens"])
        assert tokens in (0, int(row["tokens"]))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["row"])
def test_an_answer_from_a_log_has_the_tokens_that_the_log_prints(row: Row) -> None:
    if not row["tokens"] or row["server"] in ("llama.cpp", "ollama"):
        return
    logged = logged_in(figures_in(log_of(row)), row["server"])
    kind = "fp8" if "fp8" in row["options"] else ""
    try:
        held = held_of(row["model"], row["server"], row["weights"] or None)
    except AllocsimError:  # an architecture without a formula
        return
    found = serve(
        held, row["server"], gpu_of(row), prompt=63, decode=1, logged=logged, kv_type=kind
    )
    assert found.needs.room == (int(row["tokens"]), int(row["tokens"]))
    if row["cache_gib"] and found.needs.pool is not None:
        low, high = found.needs.pool
        assert low <= float(row["cache_gib"]) * GIB <= high


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["row"])
def test_a_prediction_has_the_printed_figure_in_its_range(row: Row) -> None:
    """Rows with a known cause are named on the page; no cause is given for a figure in range."""
    if not row["gpu"]:
        return
    figures = compare(row).figures
    if row["row"] not in CAUSES:
        assert [figure for figure in figures if not figure.is_held] == []


def test_most_rows_with_a_named_card_are_in_range() -> None:
    """Tokens follow from the weights, so more rows are in range whose checkpoint is known."""
    found = [{each.name: each for each in compare(row).figures} for row in ROWS if row["gpu"]]
    tokens = [figures for figures in found if "tokens" in figures]
    known = [each for each in tokens if "weights" not in each or each["weights"].is_held]
    for figures, least, share in ((tokens, 80, 0.75), (known, 60, 0.85)):
        assert len(figures) >= least
        assert sum(each["tokens"].is_held for each in figures) / len(figures) > share


def test_first_start_with_linear_attention_has_the_memory_of_all_kernels_in_its_range() -> None:
    """V082 and V083 have the same options; V082 took twice as long, and has 2.2 GiB less."""
    rows = [row for row in ROWS if row["row"] in ("V082", "V083")]
    first, later = (
        next(figure for figure in compare(row).figures if figure.name == "cache") for row in rows
    )
    assert (first.low, first.high) == (later.low, later.high)
    assert 2.1 < later.printed - first.printed < 2.3
    assert first.is_held
    assert later.is_held
