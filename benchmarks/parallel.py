"""Compare formulas for the memory of training on many GPUs with measurements on real GPUs.

    python -m benchmarks.parallel [--markdown]
    python -m benchmarks.parallel --truth [--markdown]

Rule: every row is printed with its signed error.  The first form uses the rows of Megatron (S) and
torchtitan (N, R6, A11 to A21) in measured/rows.csv; measured reserved memory is compared with
1.07 times the sum of the formula.  With --truth the rows are the trainings on one card of
traces/fit/truth.jsonl, with the peaks that real PyTorch's allocator reported; the difference
between the sum and reserved memory is split into named parts.  Nothing is run.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from allocsim.errors import ConfigError
from allocsim.fitting import RESERVED_SEEN, Configured, precision_of, shape_of
from allocsim.fitting.formulas import Latent
from allocsim.fitting.formulas.training import (
    EAGER,
    FUSED,
    ParallelLayout,
    Precision,
    Training,
    TransformerShape,
)
from allocsim.units import GIB, MIB

HERE = Path(__file__).parent
ROWS, RESULTS = HERE / "measured" / "rows.csv", HERE / "measured" / "results.csv"
TRUTH = HERE.parent / "traces" / "fit"
_MEGATRON = Precision(weights=2, gradients=4, optimizer=12)
"""16-bit weights, gradients summed in 32 bits, Adam."""
_FSDP = Precision(weights=4, gradients=4, optimizer=8, compute=2)
"""32-bit shards, gathered in 16 bits."""

_LLAMA_70B = TransformerShape(
    layers=80, width=8192, heads=64, kv_heads=8, head=128, inner=28672, vocabulary=128256
)
_LLAMA_405B = replace(_LLAMA_70B, layers=126, width=16384, heads=128, inner=53248)
_LLAMA_8B = replace(_LLAMA_70B, layers=32, width=4096, heads=32, inner=14336)
_DEEPSEEK_V2 = TransformerShape(
    layers=60,
    width=5120,
    heads=128,
    kv_heads=128,
    head=128,
    inner=12288,
    vocabulary=102400,
    experts=160,
    chosen=6,
    expert_inner=1536,
    shared_inner=3072,
    dense_layers=1,
    latent=Latent(query=1536, key_value=512, turning=64, value=128),
)
_DEEPSEEK_V3 = replace(
    _DEEPSEEK_V2,
    layers=61,
    width=7168,
    inner=18432,
    vocabulary=129280,
    experts=256,
    chosen=8,
    expert_inner=2048,
    shared_inner=2048,
)
_OF_MEGATRON = {
    "llama3_70b": _LLAMA_70B,
    "llama3_405b": _LLAMA_405B,
    "deepseekv2": _DEEPSEEK_V2,
    "deepseekv3": _DEEPSEEK_V3,
}
"""DeepSeek-V3 with one layer before its experts, as in the measured run."""

_ONE = ParallelLayout(zero=3, seq=8192, micro_batches=1)
_FSDP_8 = replace(_ONE, data=8, recompute="ops")
_FULL = replace(_ONE, recompute="full")
_FOUR_D = replace(_FULL, data=8, tensor=8, pipeline=8, micro_batch=4, micro_batches=8)
_OF_TORCHTITAN: dict[str, tuple[TransformerShape, ParallelLayout]] = {
    **dict.fromkeys(("N1", "N2", "N3", "R6"), (_LLAMA_8B, replace(_FSDP_8, micro_batch=2))),
    **dict.fromkeys(("N4", "N5", "N6"), (_LLAMA_8B, replace(_FSDP_8, data=128, micro_batch=2))),
    "N7": (_LLAMA_8B, replace(_FULL, data=8, seq=32768)),
    "N8": (_LLAMA_8B, replace(_FULL, data=4, context=2, seq=65536)),
    "N9": (_LLAMA_8B, replace(_FULL, data=2, context=4, seq=131072)),
    "N10": (_LLAMA_8B, replace(_FULL, context=8, seq=262144)),
    **dict.fromkeys(
        ("N11", "N12"), (_LLAMA_70B, replace(_FULL, data=32, tensor=8, micro_batch=16))
    ),
    "N13": (_LLAMA_405B, _FOUR_D),
    "N14": (_LLAMA_405B, replace(_FOUR_D, chunks=2)),
    **dict.fromkeys([f"A{n}" for n in range(11, 22)], (_LLAMA_8B, _FSDP_8)),
}
"""A pipeline's batch of 32 sequences is split into one micro-batch per stage."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One measured training.

    figure: measured quantity, "allocated" or "reserved".
    allocated: allocated bytes by the formula.
    measured: measured bytes.
    replayed: bytes of the same program on a phantom GPU; None if it was not run.
    """

    row: str
    what: str
    figure: str
    allocated: int
    measured: int
    replayed: int | None

    @property
    def predicted(self) -> int:
        """Predicted bytes of the measured quantity."""
        return (
            self.allocated
            if self.figure == "allocated"
            else round(self.allocated * RESERVED_SEEN[1])
        )

    @property
    def error(self) -> float:
        """Error of the prediction as a share of the measured bytes, with its sign."""
        return self.predicted / self.measured - 1


def training_of(row: Mapping[str, str]) -> Training | None:
    """Return the training of a row of rows.csv; None if no formula covers it."""
    name, setting = row["row"], row["setting"]
    if name in _OF_TORCHTITAN:
        shape, layout = _OF_TORCHTITAN[name]
        return Training(row["model"], shape, layout, _FSDP, EAGER)
    if not name.startswith("S"):
        return None

    def size(key: str, usual: int = 1) -> int:
        found = re.search(rf"_{key}(\d+)", setting)
        return int(found[1]) if found else usual

    kind = next(kind for kind in _OF_MEGATRON if setting.startswith(kind))
    layout = ParallelLayout(
        tensor=size("tp"),
        pipeline=size("pp"),
        data=size("dp"),
        context=size("cp"),
        expert=size("ep"),
        zero=1,
        seq=size("seq", 4096),
        micro_batches=size("mbc"),
    )
    shape = replace(_OF_MEGATRON[kind], layers=size("l"))
    return Training(row["model"], shape, layout, _MEGATRON, FUSED)


def measured() -> Iterator[Compared]:
    """Yield every row of rows.csv that formulas cover."""
    with RESULTS.open() as file:
        replayed = {
            (each["row"], each["figure"]): int(each["predicted"])
            for each in csv.DictReader(file)
            if each["predicted"].isdecimal()
        }
    with ROWS.open() as file:
        for row in csv.DictReader(file):
            training = training_of(row)
            if training is None or not row["bytes"]:
                continue
            figure = row["figure"]
            yield Compared(
                row["row"],
                row["setting"] if row["row"][0] == "S" else f"{row['model']}, {row['setting']}",
                figure,
                training.worst().allocated,
                int(row["bytes"]),
                replayed.get((row["row"], figure)),
            )


@dataclass(frozen=True, slots=True)
class Real:
    """One training on one GPU.

    allocated, requested, reserved: peaks in bytes that the allocator reported.
    formula: peak in bytes by the formula.
    moment: name of the moment at which the formula has its peak.
    """

    row: str
    what: str
    formula: int
    moment: str
    requested: int
    allocated: int
    reserved: int

    @property
    def error(self) -> float:
        """Error of the formula as a share of allocated memory, with its sign."""
        return self.formula / self.allocated - 1


def truth() -> Iterator[Real | str]:
    """Yield every training of truth.jsonl, or a sentence with the reason that it has no formula."""
    configs = json.loads((TRUTH / "configs.json").read_text())
    for line in (TRUTH / "truth.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["kind"] != "train":
            continue
        try:
            yield _real(row, configs)
        except ConfigError as error:
            yield f"{row['id']}: {error}"


def _real(row: Mapping[str, Any], configs: Mapping[str, Any]) -> Real:
    if "lora" in row:
        raise ConfigError("adapters are left out")
    if "oom_in_step" in row:
        raise ConfigError("it ran out of memory")
    if row["model"] not in configs or "seq" not in row:
        raise ConfigError(f"{row['model']} is no language model")
    optimizer = row["optimizer"]
    shape = shape_of(Configured(row["model"], configs[row["model"]], "AutoModelForCausalLM"))
    has_copy = optimizer in ("adamw", "adafactor", "sgd", "momentum")
    training = Training(
        row["model"],
        shape,
        ParallelLayout(
            seq=row["seq"],
            micro_batch=row["batch"],
            micro_batches=1,
            recompute="full" if row.get("checkpointing") else "none",
            flash=row.get("attention") != "eager",
        ),
        precision_of(row["dtype"], optimizer),
        replace(EAGER, foreach=has_copy and optimizer.startswith("adamw")),
    )
    worst = training.worst()
    what = f"{row['model']} {row['dtype']} {optimizer} {row['batch']} x {row['seq']}"
    what += " checkpointing" * bool(row.get("checkpointing"))
    return Real(
        row["id"],
        what,
        worst.allocated,
        worst.moment,
        row["peak_requested"],
        row["peak_allocated"],
        row["peak_reserved"],
    )


def summary(errors: Sequence[float]) -> str:
    """Return a summary such as "57 rows: median -0.3 %, of sizes 0.4 %, worst -19.9 %"."""
    sizes = sorted(map(abs, errors))
    worst = max(errors, key=abs)
    return (
        f"{len(errors)} rows: median {median(errors):+.2%}, of sizes {median(sizes):.2%}, "
        f"worst {worst:+.2%}"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, markdown: bool) -> Iterator[str]:
    if markdown:
        yield f"| {' | '.join(head)} |"
        yield "|" + "---|" * len(head)
        for row in rows:
            yield f"| {' | '.join(row)} |"
        return
    every = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    for row in every:
        cells = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        cells += [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        yield "  ".join(cells).rstrip()


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / GIB:.2f}"


def measured_lines(*, markdown: bool) -> Iterator[str]:
    """Yield the lines of the output without --truth."""
    found = list(measured())
    head = ("row", "what", "figure", "formula", "predicted", "replayed", "measured", "error")
    rows = [
        (
            each.row,
            each.what,
            each.figure,
            *map(_gib, (each.allocated, each.predicted, each.replayed, each.measured)),
            f"{each.error:+.2%}",
        )
        for each in found
    ]
    yield from _table(head, rows, markdown=markdown)
    yield ""
    for name, start in (("Megatron", "S"), ("torchtitan", "NRA")):
        yield f"{name}, {summary([each.error for each in found if each.row[0] in start])}"


def truth_lines(*, markdown: bool) -> Iterator[str]:
    """Yield the lines of the output with --truth."""
    found = list(truth())
    real = [each for each in found if isinstance(each, Real)]
    head = (
        *("row", "what", "moment", "formula", "tensors", "rounding", "fragments", "reserved"),
        "error",
    )
    rows = [
        (
            each.row,
            each.what,
            each.moment,
            f"{each.formula / MIB:,.0f}",
            f"{(each.requested - each.formula) / MIB:+,.0f}",
            f"{(each.allocated - each.requested) / MIB:+,.0f}",
            f"{(each.reserved - each.allocated) / MIB:+,.0f}",
            f"{each.reserved / MIB:,.0f}",
            f"{each.error:+.2%}",
        )
        for each in real
    ]
    yield from _table(head, rows, markdown=markdown)
    yield ""
    yield summary([each.error for each in real])
    yield from (each for each in found if isinstance(each, str))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--truth", action="store_true", help="compare trainings on one card")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    arguments = parser.parse_args()
    lines = truth_lines if arguments.truth else measured_lines
    print("\n".join(lines(markdown=arguments.markdown)))


if __name__ == "__main__":
    main()
