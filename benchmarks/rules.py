"""Compare common rules of thumb with measurements.

    python -m benchmarks.rules              print docs/evidence/rules-of-thumb.md
    python -m benchmarks.rules docs         write it and benchmarks/results/rules.md

Every error is computed here, from traces/fit/truth.jsonl (real PyTorch on a phantom GPU),
benchmarks/measured/rows.csv (measured by others on real GPUs) and one user's RTX 4090.  An error is
signed: the rule's or formula's figure minus the measured one, in percent of the latter.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from allocsim import load, replay
from allocsim.fitting import CONFIGURATIONS
from allocsim.fitting.formulas import (
    BLOCKS,
    ModelSizes,
    Needs,
    ServerOptions,
    ServingWork,
    Weights,
    llama_cpp,
    shapes_of,
    sizes_of,
    vllm,
    weights_of,
)
from allocsim.fitting.formulas.growing import Grown, grow
from allocsim.phantom import CONTEXT_MEMORY_SEEN
from allocsim.units import GIB, MIB
from benchmarks.measured.__main__ import as_printed
from benchmarks.measured.__main__ import figures as measured_figures
from tests.reference import between_marks

__all__ = ["DETAILS", "PAGE", "figures", "page"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "evidence" / "rules-of-thumb.md"
DETAILS = ROOT / "benchmarks" / "results" / "rules.md"
_COMMAND = "python -m benchmarks.rules docs"
CARD = 24_564 * MIB
BERT = 109_514_298
"""Parameters of BERT-base with its masked-language head."""
_SHORT, _LONG = 750, 10_000
"""Tokens of a long text with four characters per token, and with one, for many symbols."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of thumb.

    says: the rule.
    right: the correct statement.
    truth, measured: error of the rule against truth.jsonl and against measurements of others.
    command: command of allocsim that gives a better answer.
    """

    says: str
    right: str
    truth: str
    measured: str
    command: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the RTX 4090 user.

    measured: number that the user measured, in `unit`; None if the program failed.
    low, high: range that allocsim predicts, in `unit`.
    method: derivation of the range.
    why: reason that it is a range and not a number.
    """

    what: str
    measured: float | None
    low: float
    high: float
    method: str
    unit: str = "MiB"
    why: str = ""

    @property
    def errors(self) -> tuple[float, float]:
        """Errors of `low` and `high` in percent; their differences in `unit` if `measured` is 0."""
        if not self.measured:
            return self.low, self.high
        return self.low / self.measured * 100 - 100, self.high / self.measured * 100 - 100

    @property
    def is_inside(self) -> bool:
        """True if the measured number is in the range."""
        return self.measured is None or self.low <= self.measured <= self.high


def truth() -> list[Row]:
    """Return the completed runs of language models whose weights were loaded in place."""
    data = ROOT / "traces" / "fit"
    known = json.loads((data / "configs.json").read_text())
    rows = [json.loads(line) for line in (data / "truth.jsonl").read_text().splitlines()]
    return [
        row
        for row in rows
        if row["start"] == "clean" and "oom_in_step" not in row and row["model"] in known
    ]


@cache
def _measured() -> dict[tuple[str, str], int]:
    """Return the bytes that others measured, by row and name of the quantity."""
    with (ROOT / "benchmarks" / "measured" / "rows.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["bytes"].isdigit()]
    return {(row["row"], row["figure"]): int(row["bytes"]) for row in rows}


def signed(errors: Iterable[float]) -> str:
    """Return median, lowest and highest error as text, such as "-27 % (-56 to +10; 14 rows)"."""
    found = sorted(errors)
    if not found:
        return "no row"
    if len(found) == 1:
        return f"{_percent(found[0])} (1 row)"
    ends = f"{_percent(found[0])} to {_percent(found[-1])}"
    return f"median {_percent(median(found))} ({ends}; {len(found)} rows)"


def _percent(error: float) -> str:
    return f"{error:+.1f} %".replace("-", "\N{MINUS SIGN}")


def _of_number(row: Row) -> int:
    """Return the bytes of one parameter of a row's model."""
    return 2 if row["dtype"] in ("bf16", "fp16") else 4


def _is_full(row: Row) -> bool:
    """Return True if all parameters are trained with a full-precision Adam."""
    is_adam = str(row.get("optimizer", "")).startswith("adamw")
    return row["kind"] == "train" and is_adam and not row.get("lora")


def off(rows: Iterable[Row], said: Callable[[Row], float]) -> str:
    """Return the error of a rule for the peak of reserved memory, as text.

    said: function from a row to the bytes that the rule gives.
    """
    return signed(100 * said(row) / row["peak_reserved"] - 100 for row in rows)


def _states(row: Row) -> int:
    """Return the bytes of weights, gradients and two moments, each in the parameters' type."""
    copies = {"sgd": 2, "momentum": 3}.get(row["optimizer"], 4)
    frozen = row["parameters"] - row["trainable"]
    return _of_number(row) * int(row["trainable"] * copies + frozen)


def model(preset: str, name: str) -> tuple[ModelSizes, Weights]:
    """Return the sizes and weights of a preset."""
    sizes = sizes_of(CONFIGURATIONS[preset])
    return sizes, weights_of(shapes_of(sizes), name, sizes)


def _rules_of_weights(rows: Sequence[Row]) -> list[Rule]:
    served = [row for row in rows if row["kind"] == "serve"]
    half = [row for row in served if row["dtype"] in ("bf16", "fp16")]
    whole = [row for row in served if row["dtype"] == "fp32"]
    fit = '`allocsim fit {} --serve --server transformers --gpu "RTX 4090"`'
    llama = model("Llama-3.1-8B", "nf4")[1]
    awq = model("Llama-3.1-8B", "awq-int4")[1]
    int8 = model("Qwen2.5-7B", "int8")[1]
    qwen = model("Qwen2.5-7B", "nf4")[1]
    large = 4 * model("Llama-2-13B", "fp32")[1].parameters
    return [
        Rule(
            "fp16 needs 2 bytes per parameter",
            "exact for the weights; serving adds the cache, activations, rounding and the context, "
            "training adds much more",
            off(half, lambda row: 2 * row["parameters"]) + " of serving in 16 bits",
            f"{_percent(100 * 14526 / 15963 - 100)} of the 4090 user's idle Qwen2.5-7B",
            fit.format("Qwen2.5-7B"),
        ),
        Rule(
            "fp32 needs 4 bytes per parameter; 1 billion is 3.725 GiB",
            f"exact for the weights: {4e9 / GIB:.3f} GiB",
            off(whole, lambda row: 4 * row["parameters"]) + " of serving in fp32",
            "no model is served in fp32",
            fit.format("gpt2").replace("--gpu", "--weights fp32 --gpu"),
        ),
        Rule(
            "int8 needs 1 byte per parameter",
            "correct for the matrices of the layers; embeddings and head stay in 16 bits, and each "
            f"row has a scale: {int8.bits:.2f} bits per parameter of Qwen2.5-7B",
            "no row is in int8",
            f"{_percent(100 * int8.parameters / MIB / 9757 - 100)} of the 4090 user's 9,757 MiB",
            fit.format("Qwen2.5-7B").replace("--gpu", "--weights int8 --gpu"),
        ),
        Rule(
            "int4 needs half a byte per parameter",
            f"with scales and 16-bit parts, {awq.bits:.2f} bits (AWQ) and {llama.bits:.2f} bits "
            f"(nf4) for Llama 3.1 8B, {qwen.bits:.2f} bits (nf4) for Qwen2.5-7B",
            "no row is in int4",
            f"{_percent(100 * llama.parameters / 2 / 6.440e9 - 100)} of Llama 3.1 8B in nf4 "
            f"(6.440 GB, torchao's inference benchmark); ours, weights alone, "
            f"{_percent(100 * llama.size / 6.440e9 - 100)}",
            fit.format("Llama-3.1-8B").replace("--gpu", "--weights nf4 --gpu"),
        ),
        Rule(
            "LLaMA-13B takes about 52 GB in fp32",
            f"{large / 1e9:.2f} GB, which is {large / GIB:.2f} GiB, for the weights alone",
            "no row has this model",
            "none",
            fit.format("Llama-2-13B").replace('--gpu "RTX 4090"', '--weights fp32 --gpu "H100"'),
        ),
        Rule(
            "from the file size: fp16 takes twice the size, int8 0.7 times",
            "the weights of a 16-bit file take its size, or in int8 "
            f"{int8.size / (2 * int8.parameters):.2f} times (Qwen2.5-7B); twice the size is right "
            "for a 16-bit file that is loaded in fp32",
            off(half, lambda row: 4 * row["parameters"]) + " of serving in 16 bits, with factor 2",
            f"{_percent(100 * 0.7 * 14526 / 9757 - 100)} of the 4090 user's int8, with factor 0.7",
            '`allocsim fit FOLDER --server transformers --gpu "RTX 4090"` reads the headers',
        ),
        Rule(
            "activations of inference are about 20 % of the weights",
            "they depend on tokens, not on weights: memory reserved besides the weights is "
            + _shares(served),
            off(served, lambda row: 1.2 * _of_number(row) * row["parameters"]),
            "the table of the RTX 4090 below",
            fit.format("Qwen2.5-7B").replace("--gpu", "--prompt 8192 --gpu"),
        ),
    ]


def _shares(served: Sequence[Row]) -> str:
    shares = sorted(
        100 * row["peak_reserved"] / (_of_number(row) * row["parameters"]) - 100 for row in served
    )
    return f"{shares[0]:.1f} to {shares[-1]:.0f} % of them on {len(shares)} rows"


def _rules_of_training(rows: Sequence[Row]) -> list[Rule]:
    trained = [row for row in rows if row["kind"] == "train"]
    full = [row for row in trained if _is_full(row)]
    fp32 = [row for row in full if _of_number(row) == 4]
    fit = '`allocsim fit {} --gpu "RTX 4090"`'
    same, predicted = as_printed(measured_figures())
    sgd, adam = (
        next(row["peak_reserved"] for row in rows if row["id"] == f"a100-{each}-clean")
        for each in ("004", "001")
    )
    copies = 8 * 124_439_808
    return [
        Rule(
            "Adam in fp32: three times 4 bytes per parameter",
            "this counts weights and two moments; gradients are a fourth copy, temporaries of "
            "AdamW's foreach form a fifth, and activations are not included",
            off(fp32, lambda row: 12 * row["parameters"]),
            _percent(100 * 12 * BERT / _measured()["O2", "reserved"] - 100)
            + " of BERT-base in fp32 "
            "(O2)",
            fit.format("gpt2 --dtype fp32 --batch 8"),
        ),
        Rule(
            "8-bit Adam: 4 + 1 + 1 bytes per parameter",
            "a 32-bit scale for each 256 values makes each moment 1.016 bytes, small tensors stay "
            "in 32 bits, and gradients (4 or 2 bytes) are not in the sum",
            "no row uses it",
            "C1 to C12 of [fit-measured.md](fit-measured.md) train adapters with it",
            fit.format("gpt2 --dtype fp32 --optimizer adam8bit"),
        ),
        Rule(
            "gradients take as much as the weights",
            "correct while they exist: `zero_grad(set_to_none=True)` frees them before the next "
            "forward pass, so the peak of a long batch does not include them; with adapters, only "
            "the adapters have gradients",
            off(trained, _states) + " for the sum of weights, gradients and optimizer",
            "no figure separates them",
            fit.format("gpt2"),
        ),
        Rule(
            "momentum keeps one copy more, Adam two",
            "correct, in the optimizer's type; the peak of the step also has foreach temporaries",
            f"{_percent(100 * copies / (adam - sgd) - 100)} of AdamW's additional memory over SGD "
            "(GPT-2 in fp32, batch 8: "
            f"{(adam - sgd) // MIB:,} MiB against {copies // MIB:,})",
            "no two figures differ only in the optimizer",
            fit.format("gpt2 --dtype fp32 --batch 8 --optimizer momentum"),
        ),
        Rule(
            "16 bytes per parameter in mixed precision",
            "correct for the states of autocast or of a master copy; plain bf16 needs 8",
            off(full, lambda row: 16 * row["parameters"]),
            "none",
            fit.format("Llama-3.2-1B --dtype autocast-bf16"),
        ),
        Rule(
            "memory = model + batch x memory per sample",
            "exact for each request within one regime; batch 1, short and very long batches have "
            "other regimes, and the peak of reserved memory is not linear",
            _batches(),
            _line(),
            '`allocsim fit Qwen2.5-1.5B --find batch --gpu "RTX 4090"`',
        ),
        Rule(
            "recomputation halves the memory",
            "it drops the inner activations of a layer and keeps its input; weights, states and "
            "logits do not change",
            _recordings_recomputed(),
            _recomputed(),
            fit.format("Qwen2.5-1.5B --checkpointing"),
        ),
        Rule(
            "ZeRO divides by eight",
            "over 8 ranks stage 3 divides weights, gradients and states by 8; of 16 bytes per "
            f"parameter stage 1 leaves {4 + 12 / 8}, stage 2 {2 + 14 / 8}, stage 3 {16 / 8} "
            "(Rajbhandari et al., ZeRO, figure 1); activations and buffers are not divided",
            "no row has several ranks",
            _percent(100 * 2 * 8.030261248e9 / _measured()["N1", "reserved"] - 100)
            + " of torchtitan's Llama 3.1 8B over 8 cards (N1), with stage 3's 2 bytes",
            fit.format("Llama-3.1-8B --data-parallel 8 --zero 3")
            + " by formula; `--fsdp --ranks 8` runs the program of a rank",
        ),
        Rule(
            "100 billion parameters: how many cards?",
            f"states alone, 16 bytes each, take {1.6e12 / GIB:,.0f} GiB: "
            f"{-(-1.6e12 // (79.14 * GIB)):.0f} cards of 79.14 GiB; activations, buffers and whole "
            "groups of ranks increase the number",
            "no row is this large",
            "none",
            '`allocsim fit --parameters 100B --plan --gpu "A100 80GB"`',
        ),
        Rule(
            "estimates are off by 30 %: 50 GB estimated, 75 needed",
            "correct for sums of states, see above; not for a run of the program",
            f"the rule says {_percent(100 * 50 / 75 - 100)}; 98 of 100 rows of `allocsim fit` are "
            "exact",
            f"{same} of {predicted} equal as printed ([fit-measured.md](fit-measured.md))",
            fit.format("MODEL"),
        ),
    ]


@cache
def _recorded(name: str) -> int:
    """Return the peak of reserved memory in bytes of a recording in traces/sized."""
    file = ROOT / "traces" / "sized" / f"{name}.npz.gz"
    (run,) = replay(load(str(file))).devices
    return run.peak_reserved_bytes


def _batches() -> str:
    """Return the error at batch 8 of a line through batches 2 and 3 of one recorded job."""
    two, three, eight = (_recorded(f"batch{n}") for n in (2, 3, 8))
    error = 100 * (two + 6 * (three - two)) / eight - 100
    return f"traces/sized, real PyTorch: a line through batch 2 and 3 is {_percent(error)} at 8"


def _recordings_recomputed() -> str:
    """Return the errors for pairs of recordings that differ only in recomputation."""
    errors = []
    for batch in ("batch2", "batch3"):
        errors.append(100 * _recorded(batch) / 2 / _recorded(f"{batch}-checkpointing") - 100)
    return "traces/sized, real PyTorch: " + " and ".join(map(_percent, errors))


def _line() -> str:
    """Return the errors at 2,048 and 4,096 tokens of a line through 512 and 1,024 tokens."""
    at = {512: "C9", 1024: "C4", 2048: "C7", 4096: "C8"}
    found = {tokens: _measured()[row, "reserved"] for tokens, row in at.items()}
    slope = (found[1024] - found[512]) / 512
    errors = [100 * (found[512] + slope * (t - 512)) / found[t] - 100 for t in (2048, 4096)]
    return (
        f"Qwen2.5-1.5B's adapters, a line through 512 and 1,024 tokens (C9, C4): "
        f"{_percent(errors[0])} at 2,048 (C7), {_percent(errors[1])} at 4,096 (C8)"
    )


def _recomputed() -> str:
    """Return the error for the pair of rows that differ only in recomputation."""
    without, with_it = (_measured()[row, "reserved"] for row in ("C5", "C4"))
    return (
        f"Qwen2.5-1.5B's adapters at 1,024 tokens (C4, C5): {without / MIB:,.0f} MiB become "
        f"{with_it / MIB:,.0f}; by the rule {_percent(100 * without / 2 / with_it - 100)}"
    )


def _rules_of_the_card() -> list[Rule]:
    low, high = (each // MIB for each in CONTEXT_MEMORY_SEEN)
    return [
        Rule(
            "reserved + free is not the total",
            f"correct: the rest is the CUDA context, {low} to {high} MiB in posted texts and on "
            "two cards, and the memory of other processes",
            "the context of a phantom is an option",
            "the 4090 user's card held 1,236 to 1,337 MiB besides PyTorch",
            '`allocsim explain "the message"`; the line Process of `fit`',
        ),
        Rule(
            "drivers for Windows lend half of the host's memory: 64 GiB and a card of 4 GiB are 4 "
            "fast and 32 slow, 2 to 3 times slower; above twice the card a CPU may be faster",
            "the amount is correct; the slowdown depends on how often the host memory is accessed, "
            "which no allocator knows",
            "no row uses host memory",
            "none",
            "`allocsim fit MODEL --gpu NAME --host-spill 32GiB` prints the host memory used, since "
            "when and for what",
        ),
        Rule(
            "an inplace ReLU saves its output",
            "correct: its backward needs only the output, which is stored in place of the input, "
            "so one tensor is kept instead of two",
            "no two rows differ in this",
            "none",
            "`allocsim top run.pickle` lists the tensors kept for backward",
        ),
    ]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Row of the user's table for Transformers: idle, and during a long text."""

    what: str
    preset: str
    name: str
    rest: int
    busy: int


TRANSFORMERS = (
    _Loaded("7B bf16", "Qwen2.5-7B", "bf16", 15_963, 17_233),
    _Loaded("7B 8-bit", "Qwen2.5-7B", "int8", 9_757, 12_510),
    _Loaded("7B 4-bit", "Qwen2.5-7B", "nf4-double", 6_684, 7_830),
    _Loaded("14B AWQ int4", "Qwen2.5-14B", "awq-int4", 10_866, 18_966),
    _Loaded("14B GPTQ int4", "Qwen2.5-14B", "gptq-int4", 10_920, 16_861),
    _Loaded("14B GPTQ int8", "Qwen2.5-14B", "gptq-int8", 17_357, 18_234),
)
VLLM = (
    _Loaded("7B bf16", "Qwen2.5-7B", "bf16", 18_391, 20_300),
    _Loaded("14B AWQ", "Qwen2.5-14B", "awq-int4", 17_778, 21_760),
    _Loaded("14B GPTQ int4", "Qwen2.5-14B", "gptq-int4", 17_695, 19_194),
)


@cache
def _grown(preset: str, name: str, tokens: int) -> Grown:
    sizes, weights = model(preset, name)
    return grow(sizes, weights, batch=1, prompt=tokens, decode=1, requests=1)


def _base(row: _Loaded) -> float:
    """Return the MiB on the card besides PyTorch: the median of the five other idle rows."""
    return median(_besides(each) for each in TRANSFORMERS if each is not row)


def _besides(row: _Loaded) -> float:
    return row.rest - _grown(row.preset, row.name, _SHORT).loaded / MIB


def _of_transformers() -> list[Figure]:
    found = []
    for row in TRANSFORMERS:
        base = _base(row)
        rest = _grown(row.preset, row.name, _SHORT).loaded / MIB + base
        method = "law: rounded tensors of the configuration, plus the card's base"
        found.append(Figure(f"Transformers {row.what}, idle", row.rest, rest, rest, method))
        low, high = _busy(row, base)
        method = f"replays of {_SHORT:,} tokens, and of {_LONG:,} with the logits of all tokens"
        found.append(
            Figure(
                f"Transformers {row.what}, long text", row.busy, low, min(high, CARD / MIB), method,
                why="tokens and release are unknown; before 4.45 logits of the whole prompt were "
                "kept, in 16 and 32 bits; limited by the card",
            )
        )  # fmt: skip
    return found


def _busy(row: _Loaded, base: float) -> tuple[float, float]:
    sizes, weights = model(row.preset, row.name)
    low = _grown(row.preset, row.name, _SHORT).reserved / MIB + base
    logits = _LONG * sizes.vocabulary * (2 + 4)
    matrix = 2 * sizes.inner * sizes.width if weights.bits < 16 else 0
    grown = _grown(row.preset, row.name, _LONG).reserved
    return low, (grown + logits + matrix) / MIB + base


def _asked(preset: str, name: str, tokens: int) -> ServingWork:
    sizes, weights = model(preset, name)
    return ServingWork(sizes=sizes, weights=weights, memory=CARD, context=CONTEXT_MEMORY_SEEN,
                prompt=tokens - 1, decode=1, options=ServerOptions(version=(0, 12)))  # fmt: skip


def _of_vllm() -> list[Figure]:
    found = []
    why = "the memory fraction is unknown: from the need of the text to 0.9 of the card with "
    why += "graphs and the card's base"
    for row in VLLM:
        needs = vllm(_asked(row.preset, row.name, _SHORT))
        assert needs.taken is not None
        low, high = needs.low / MIB, needs.taken[1] / MIB + _base(TRANSFORMERS[0])
        for when, measured in (("idle", row.rest), ("long text", row.busy)):
            figure = Figure(f"vLLM {row.what}, {when}", measured, low, min(high, CARD / MIB),
                            "vLLM's arithmetic", why=why)  # fmt: skip
            found.append(figure)
    return found


def _of_the_rest() -> list[Figure]:
    """Return the figures of failures, of zero use and of bits per weight."""
    long = _grown("Qwen2.5-14B", "gptq-int8", _LONG).reserved / MIB
    _, high = _busy(TRANSFORMERS[-1], _base(TRANSFORMERS[-1]))
    needs: Needs = vllm(_asked("Qwen2.5-14B", "gptq-int8", 32_768))
    none = llama_cpp(replace(_asked("Qwen2.5-7B", "Q4_K_M", 4096), gpu_layers=0))
    out = "the card has 24,564"
    return [
        Figure("Transformers 14B GPTQ int8, longest text: out of memory", None,
               long + _base(TRANSFORMERS[-1]), high, "replay, as above",
               why=f"{out}: out of memory only if the logits of all tokens are kept"),
        Figure("vLLM 14B GPTQ int8: out of memory", None, needs.low / MIB, needs.high / MIB,
               "vLLM's arithmetic, with the 32,768 tokens of the model's configuration",
               why="0.9 of the card is 22,107 MiB: too little for one sequence, so it does not "
               "start"),
        Figure("llama.cpp, n_gpu_layers 0, at first", 0, none.low / MIB, none.low / MIB,
               "nothing is stored on the card; a long prompt may need a buffer later"),
        Figure("Q5_K", 5.5, BLOCKS["Q5_K"].bits, BLOCKS["Q5_K"].bits, "block layout",
               "bits per weight"),
        Figure("Q4_K", 4.5, BLOCKS["Q4_K"].bits, BLOCKS["Q4_K"].bits, "block layout",
               "bits per weight"),
        Figure("Ollama, idle", 0, 0, 0, "documented: a model is unloaded after five minutes"),
    ]  # fmt: skip


def figures() -> list[Figure]:
    """Return all 24 figures."""
    return [*_of_transformers(), *_of_vllm(), *_of_the_rest()]


def _cell(figure: Figure) -> tuple[str, ...]:
    def number(value: float) -> str:
        return f"{value:,.1f}" if figure.unit != "MiB" else f"{value:,.0f}"

    ours = number(figure.low)
    errors = [_percent(each) for each in figure.errors]
    if figure.high != figure.low:
        ours += f" to {number(figure.high)}"
        error = f"{errors[0]} to {errors[1]}"
    else:
        error = errors[0]
    if figure.measured is None:
        measured, error = "more than the card", "within" if figure.high > CARD / MIB else "agrees"
    else:
        measured = number(figure.measured)
        if not figure.measured:
            error = "+0.0 %" if not figure.high else ours
    is_range = figure.high != figure.low
    inside = ("yes" if figure.is_inside else "**no**") if is_range else ""
    unit = "" if figure.unit == "MiB" else f" ({figure.unit})"
    return figure.what + unit, measured, ours, error, inside


def _method(figure: Figure) -> str:
    """Return how a figure is derived, and the reason for a range."""
    return figure.method + (f"; {figure.why}" if figure.why else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _rules() -> list[Rule]:
    rows = truth()
    return [*_rules_of_weights(rows), *_rules_of_training(rows), *_rules_of_the_card()]


def rules_table() -> str:
    """Return the table of all rules with their errors on the rows."""
    cells = [(rule.says, rule.right, rule.truth) for rule in _rules()]
    return _table(("rule", "correct statement", "error on the rows"), cells)


def measured_table() -> str:
    """Return the table of the rules' errors against measurements, and of better answers."""
    cells = [(rule.says, rule.measured, rule.command) for rule in _rules()]
    return _table(("rule", "measured", "a better answer"), cells)


def figures_table() -> str:
    """Return the table of the user's figures with their methods."""
    found = figures()
    head = (
        "figure",
        "measured, MiB",
        "ours, MiB",
        "error",
        "inside",
        "method",
    )
    methods = list(dict.fromkeys(map(_method, found)))
    rows = [(*_cell(each), str(methods.index(_method(each)) + 1)) for each in found]
    text = _table(head, rows) + "\n\nMethods, and reasons for a range:\n\n"
    text += "".join(f"{n}. {method}\n" for n, method in enumerate(methods, 1))
    return text


def figures_summary() -> str:
    """Return sentences about the user's figures."""
    found = figures()
    exact = [each for each in found if each.low == each.high]
    ranges = [each for each in found if each.low != each.high and each.measured is not None]
    worst = max(abs(each.errors[0]) for each in exact)
    besides = [_besides(row) for row in TRANSFORMERS]
    alone = [-100 * _besides(row) / row.rest for row in TRANSFORMERS]
    nested = TRANSFORMERS[2]
    plain = _grown(nested.preset, "nf4", _SHORT).loaded / MIB + _base(nested)
    return (
        f"{len(exact)} of {len(found)} are single figures with an error up to {worst:.1f} %. "
        f"{sum(each.is_inside for each in ranges)} of the {len(ranges)} ranges contain the "
        f"measured figure.\nBesides PyTorch the card held {min(besides):,.0f} to "
        f"{max(besides):,.0f} MiB; without it the errors of the six idle models would be\n"
        f"{_percent(min(alone))} to {_percent(max(alone))}. With plain scales the error of the "
        f"idle 4-bit model would be {_percent(100 * plain / nested.rest - 100)}.\n"
    )


TABLES = {
    PAGE: {"rules": rules_table, "figures": figures_summary},
    DETAILS: {"measured": measured_table, "figures": figures_table},
}
"""Functions for the parts between the marks of each page, by name."""


def page(path: Path) -> str:
    """Return the text of PAGE or DETAILS with new tables."""
    text = path.read_text()
    for name, made in TABLES[path].items():
        text = between_marks(text, name, _COMMAND, made())
    return text


def main() -> int:
    if sys.argv[1:] == ["docs"]:
        for path in TABLES:
            path.write_text(page(path))
    else:
        print(page(PAGE), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
