"""Compare answers of `fit` about trainings of 2025 and 2026: by program, by law or formula.

    python -m benchmarks.recent --python PATH [CASE ...]
    python -m benchmarks.recent --docs

The Python at PATH, with PyTorch, transformers, peft and bitsandbytes, runs the program of `fit`
for each case (default: all cases) over a phantom of its card; the peaks are stored in
results/recent.csv.  Laws and formulas are computed again.  Both commands write the tables of
docs/evidence/fit-measured.md.  An hour of two cores.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from allocsim.errors import ConfigError
from allocsim.fitting import Configured, Task, estimate, model_of, run_by_law, run_program
from allocsim.phantom import find_gpu
from allocsim.units import GIB
from benchmarks.measured.__main__ import figures
from tests.reference import between_marks

PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "fit-measured.md"
RESULTS = Path(__file__).parent / "results" / "recent.csv"
COMMAND = "python -m benchmarks.recent --docs"


@dataclass(frozen=True, slots=True)
class Case:
    """A training to answer.

    id: name; for a published training, the row of `measured/rows.csv`.
    layers: number of layers to which the model is cut, 0 for all.
    options: options of `Task`.
    """

    id: str
    model: str
    card: str
    options: Mapping[str, Any] = field(default_factory=dict)
    layers: int = 0

    @property
    def task(self) -> Task:
        model = model_of(self.model)
        if self.layers:
            assert isinstance(model, Configured)
            config = {**model.config, "num_hidden_layers": self.layers}
            of_layers = {key: each for key, each in config.items() if isinstance(each, list)}
            config |= {key: each[: self.layers] for key, each in of_layers.items()}
            model = replace(model, config=config, name=f"{model.name}, {self.layers} layers")
        return Task(model=model, **{"steps": 2, **self.options})


def _published(number: int, model: str, **options: Any) -> Case:
    usual = {"lora": 16, "lora_targets": ("q_proj", "k_proj", "v_proj", "o_proj")}
    usual |= {"optimizer": "paged-adamw8bit", "checkpointing": True, "quant": "nf4-double"}
    return Case(f"C{number}", model, "RTX 4080", {**usual, **options})


PUBLISHED = (
    _published(2, "Qwen2.5-0.5B", seq=1024),
    _published(4, "Qwen2.5-1.5B", seq=1024),
    _published(5, "Qwen2.5-1.5B", seq=1024, checkpointing=False),
    _published(6, "Qwen2.5-1.5B", seq=1024, batch=2),
    _published(7, "Qwen2.5-1.5B", seq=2048),
    _published(10, "Qwen2.5-3B", seq=1024),
    _published(11, "Qwen2.5-7B", seq=1024),
)
"""Trainings of DaoyuanLi2816/can-i-finetune-this, which publishes both peaks."""
_CKPT = {"checkpointing": True}
_LORA = {"lora": 16}
_FUSED = {"optimizer": "adamw-fused"}
_8_BIT, _PAGED = {"optimizer": "adamw8bit"}, {"optimizer": "paged-adamw8bit"}
CASES = (
    Case("1", "Qwen3-0.6B", "RTX 4090", {"batch": 2, "seq": 1024}),
    Case("2", "Qwen3-1.7B", "RTX 4090", {"seq": 2048, **_LORA, **_CKPT}),
    Case("3", "Qwen3-4B", "H100", {"seq": 1024, "lora": 32}),
    Case("4", "Qwen3-8B", "RTX 4090", {"seq": 1024, **_LORA, **_CKPT, "quant": "nf4-double"}),
    Case("5", "SmolLM3-3B", "A100 80GB", {"seq": 2048, **_CKPT, **_FUSED}),
    Case("6", "SmolLM3-3B", "RTX 4090", {"seq": 1024, **_LORA, "attention": "eager"}),
    Case("7", "Gemma-3-1B", "RTX 4090", {"seq": 512, "dtype": "autocast-bf16"}),
    Case("8", "Gemma-3-1B", "L40S", {"seq": 2048, **_LORA, **_CKPT, "attention": "eager"}),
    Case("9", "Phi-4-mini", "RTX 4090", {"seq": 1024, **_LORA}),
    Case("10", "Phi-4-mini", "A100 80GB", {"seq": 2048, **_CKPT, "optimizer": "adamw8bit"}),
    Case("11", "OLMo-2-7B", "A100 80GB", {"seq": 2048}, layers=8),
    Case("12", "OLMo-2-7B", "L40S", {"seq": 1024, "lora": 8, **_CKPT}),
    Case("13", "Granite-3.3-8B", "L40S", {"seq": 2048, **_LORA, **_CKPT}),
    Case("14", "Falcon3-1B", "RTX 4090", {"seq": 1024, "dtype": "fp32", "optimizer": "momentum"}),
    Case("15", "Falcon3-3B", "RTX 5090", {"seq": 2048, **_LORA}),
    Case("16", "Llama-3.2-3B", "L40S", {"seq": 1024, "dtype": "autocast-bf16", **_LORA, **_CKPT}),
    Case("17", "Llama-3.2-3B", "H100", {"seq": 2048, "optimizer": "adafactor"}),
    Case("18", "Mistral-Small-24B", "A100 80GB", {"seq": 4096, **_LORA}, layers=8),
    Case("19", "GLM-4-9B-0414", "A100 80GB", {"seq": 1024, **_LORA, **_CKPT}),
    Case("20", "gpt-oss-20b", "H100", {"seq": 512, "optimizer": "sgd"}, layers=4),
    Case("21", "Qwen3-30B-A3B", "A100 80GB", {"seq": 1024}, layers=4),
    Case("22", "gpt2", "RTX 4090", {"seq": 256, **_8_BIT}),
    Case("23", "gpt2", "RTX 4090", {"batch": 4, "seq": 700, **_8_BIT}),
    Case("24", "Llama-3.2-1B", "RTX 4090", {"seq": 512, **_LORA, **_8_BIT}),
    Case("25", "Llama-3.2-1B", "RTX 4090", {"batch": 2, "seq": 1024, **_PAGED}),
    Case("26", "Qwen2.5-0.5B", "RTX 4090", {"seq": 512, "dtype": "autocast-bf16", **_8_BIT}),
    Case("27", "Qwen2.5-0.5B", "RTX 4090", {"batch": 2, "seq": 1024, **_PAGED}),
    Case("28", "GLM-4.5-Air", "H100", {"seq": 1024}, layers=3),
    Case("29", "GLM-4.5-Air", "A100 80GB", {"seq": 2048, **_LORA, **_CKPT}, layers=4),
    Case("30", "MiniMax-M2", "H100", {"seq": 1024, "optimizer": "sgd"}, layers=2),
    Case("31", "MiniMax-M2", "A100 80GB", {"seq": 2048, **_LORA, **_CKPT}, layers=3),
    Case("32", "DeepSeek-V3.2", "A100 80GB", {"seq": 1024}, layers=2),
    Case("33", "DeepSeek-V3.2", "A100 80GB", {"seq": 2048, **_LORA, **_CKPT}, layers=4),
    Case("34", "Command-R", "A100 80GB", {"seq": 1024}, layers=4),
    Case("35", "Command-R", "A100 80GB", {"seq": 2048, **_LORA, **_CKPT}, layers=8),
    Case("36", "Command-R7B", "A100 80GB", {"seq": 1024}, layers=8),
    Case("37", "Command-R7B", "RTX 4090", {"seq": 2048, **_LORA, **_CKPT}),
    Case("38", "Gemma-4-E2B", "A100 80GB", {"seq": 1024}),
    Case("39", "Gemma-4-E4B", "RTX 4090", {"seq": 2048, **_LORA, **_CKPT}),
    Case("40", "Gemma-4-26B-A4B", "A100 80GB", {"seq": 1024}, layers=6),
    Case("41", "Gemma-4-26B-A4B", "A100 80GB", {"seq": 2048, **_LORA, **_CKPT}, layers=6),
    Case("42", "Gemma-4-31B", "A100 80GB", {"seq": 1024}, layers=6),
    Case("43", "Gemma-4-31B", "A100 80GB", {"seq": 2048, **_LORA, **_CKPT}, layers=12),
    Case("44", "Laguna-S-2.1", "H100", {"seq": 1024, "optimizer": "sgd"}, layers=4),
    Case("45", "Laguna-S-2.1", "A100 80GB", {"seq": 2048, **_LORA, **_CKPT}, layers=5),
    Case("46", "Qwen3.5-4B", "A100 80GB", {"seq": 1024}, layers=8),
    Case("47", "Qwen3.5-4B", "RTX 4090", {"seq": 2048, **_LORA, **_CKPT}),
    Case("48", "Qwen3-Next-80B-A3B", "H100", {"seq": 1024, "optimizer": "sgd"}, layers=4),
    Case("49", "Qwen3-Next-80B-A3B", "A100 80GB", {"seq": 2048, **_LORA, **_CKPT}, layers=4),
    Case("50", "Qwen3.5-35B-A3B", "A100 80GB", {"seq": 2048, **_LORA, **_CKPT}, layers=4),
    Case("51", "gpt-oss-20b", "A100 80GB", {"seq": 1024, **_LORA, **_CKPT}, layers=4),
    Case("52", "ModernBERT-base", "RTX 4090", {"batch": 4, "seq": 1024}),
    Case("53", "ModernBERT-large", "RTX 4090", {"batch": 2, "seq": 2048, **_LORA}),
    Case("54", "T5-small", "RTX 4090", {"batch": 8, "seq": 512}),
    Case("55", "T5-base", "RTX 4090", {"batch": 4, "seq": 512}),
    Case("56", "T5-base", "RTX 4090", {"batch": 2, "seq": 1024, **_CKPT}),
    Case("57", "Flan-T5-base", "RTX 4090", {"batch": 4, "seq": 512}),
    Case("58", "Flan-T5-large", "RTX 4090", {"batch": 2, "seq": 512, **_LORA}),
    Case("59", "Flan-T5-base", "RTX 4090", {"batch": 4, "seq": 512, "dtype": "autocast-bf16"}),
    Case("60", "Whisper-small", "RTX 4090", {"batch": 4, "seq": 448}),
    Case("61", "Whisper-small", "RTX 4090", {"batch": 8, "seq": 128, "dtype": "autocast-bf16"}),
    Case("62", "Whisper-medium", "RTX 4090", {"batch": 4, "seq": 256, **_CKPT}),
    Case("63", "Whisper-large-v3", "RTX 4090", {"batch": 2, "seq": 448, **_LORA}),
    Case("64", "Whisper-base", "RTX 4090", {"batch": 8, "seq": 448, "dtype": "fp32"}),
    Case("65", "T5-small", "RTX 4090", {"batch": 8, "seq": 256, "dtype": "fp32"}),
    Case("66", "Flan-T5-small", "RTX 4090", {"batch": 8, "seq": 512, **_CKPT}),
    Case("67", "Whisper-large-v3-turbo", "RTX 4090", {"batch": 4, "seq": 448}),
    Case("68", "Whisper-tiny", "RTX 4090", {"batch": 16, "seq": 64}),
    Case("69", "T5-large", "RTX 4090", {"batch": 2, "seq": 512, **_CKPT}),
    Case("70", "Whisper-small", "RTX 4090", {"batch": 4, "seq": 200, "attention": "eager"}),
    Case("71", "T5-small", "RTX 4090", {"batch": 4, "seq": 384, "attention": "eager"}),
    Case("72", "T5-base", "RTX 4090", {"batch": 2, "seq": 256, "optimizer": "sgd"}),
    Case("73", "Whisper-medium", "RTX 4090", {"batch": 2, "seq": 448, "lora": 8, **_CKPT}),
    Case(
        "74", "T5-small", "RTX 4090", {"batch": 16, "seq": 256, "dtype": "autocast-bf16", **_CKPT}
    ),
)
"""Trainings that are in no row of traces/fit/truth.jsonl; 22 to 27 have 8-bit optimizers."""

_Peaks = dict[str, dict[str, int]]


def stored() -> _Peaks:
    """Return the peaks by program that were stored, by case: allocated and reserved bytes."""
    if not RESULTS.exists():
        return {}
    with RESULTS.open(newline="") as file:
        names = ("allocated", "reserved")
        return {each["case"]: {n: int(each[n]) for n in names} for each in csv.DictReader(file)}


def run(case: Case, python: str) -> None:
    """Run the program of a case, and store its peaks."""
    ran = run_program(case.task, find_gpu(case.card), python=python)
    peaks = {"allocated": ran.peak_allocated_bytes, "reserved": ran.peak_reserved_bytes}
    found = {**stored(), case.id: peaks}
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, ("case", "allocated", "reserved"), lineterminator="\n")
        writer.writeheader()
        order = [each.id for each in (*PUBLISHED, *CASES)]
        for name in filter(found.__contains__, order):
            writer.writerow({"case": name, **found[name]})
    print(case.id, case.task.text, peaks, f"{ran.seconds:.0f} s", sep=" | ", flush=True)


def _otherwise(case: Case) -> tuple[str, dict[str, tuple[int, ...]]]:
    # The peaks without PyTorch: by law if there is one, else by formula, where reserved memory is
    # a range.
    gpu = find_gpu(case.card)
    try:
        law = run_by_law(case.task, gpu)
    except ConfigError:
        found = estimate(case.task, gpu)
        outside = next(part for part in found.parts if part.name == "CUDA context")
        least = found.process_bytes[0] - outside.low
        reserved = (least, found.needed_bytes)
        return "formula", {"allocated": (found.peak_allocated_bytes,), "reserved": reserved}
    return "law", {
        "allocated": (law.peak_allocated_bytes,),
        "reserved": (law.peak_reserved_bytes,),
    }


def published_lines(peaks: _Peaks) -> Iterator[Sequence[str]]:
    """Yield the table of published figures."""
    yield (
        *("row", "training", "figure", "published GiB", "by program", "error"),
        *("with the last step's logits", "error", "by formula, with them", "error"),
    )
    for case in (each for each in PUBLISHED if each.id in peaks):
        task = case.task
        assert isinstance(task.model, Configured)
        logits = 4 * task.batch * task.seq * task.model.config["vocab_size"]
        _, formula = _otherwise(case)
        published = {each.figure: each for each in figures() if each.row == case.id}
        for name, figure in published.items():
            measured, ran = figure.measured_bytes or 0, peaks[case.id][name]
            ends = [end + logits for end in formula[name]]
            yield (
                *(case.id, _text(task), name, gib(measured), gib(ran), percent_off(ran, measured)),
                *(gib(ran + logits), percent_off(ran + logits, measured)),
                *(_range(map(gib, ends)), _range(percent_off(end, measured) for end in ends)),
            )


def recent_lines(peaks: _Peaks) -> Iterator[Sequence[str]]:
    """Yield the table of recent models."""
    yield (
        *("case", "training", "card", "allocated GiB by program", "without", "error"),
        *("reserved GiB by program", "without", "error", "by"),
    )
    for case in (each for each in CASES if each.id in peaks):
        engine, other = _otherwise(case)
        cells = [case.id, _text(case.task), case.card]
        for name, ran in peaks[case.id].items():
            ends = other[name]
            cells += [gib(ran), _range(map(gib, ends)), _range(percent_off(e, ran) for e in ends)]
        yield (*cells, engine)


def _text(task: Task) -> str:
    return task.text.split(" steps of ")[1]


def gib(size: int) -> str:
    return f"{size / GIB:.3f}"


def percent_off(found: int, measured: int) -> str:
    """Return the error of a prediction in percent; "0" if it is exact."""
    if found == measured:
        return "0"
    text = f"{100 * (found / measured - 1):+.2f} %"
    return text if float(text[:-2]) else "0.00 %"


def _range(texts: Iterator[str]) -> str:
    return " to ".join(texts)


def _write() -> None:
    text, peaks = PAGE.read_text(), stored()
    for name, lines in (("qlora", published_lines(peaks)), ("recent", recent_lines(peaks))):
        head, *rows = lines
        table = [head, ["---"] * len(head), *rows]
        made = "\n".join(f"| {' | '.join(row)} |" for row in table)
        text = between_marks(text, name, COMMAND, made)
    PAGE.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--python", help="interpreter with PyTorch and bitsandbytes")
    parser.add_argument("--docs", action="store_true", help="write the tables alone")
    parser.add_argument("cases", nargs="*", help="names of cases (default: all)")
    arguments = parser.parse_args()
    if not arguments.docs:
        for case in (*PUBLISHED, *CASES):
            if not arguments.cases or case.id in arguments.cases:
                run(case, arguments.python)
    _write()


if __name__ == "__main__":
    main()
