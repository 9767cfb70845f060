"""Tests of `allocsim fit` for many cards, by formula, without PyTorch or a GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from allocsim.report.figures import read_answers
from tests.cli.conftest import Done

Cli = Callable[..., Done]
HUNDRED = ("fit", "--parameters", "100B", "--gpu", "A100 80GB")
EIGHT = ("--tensor-parallel", "8", "--data-parallel", "8")


@pytest.mark.parametrize(
    ("zero", "recompute", "code"),
    [
        ("0", "none", 3),
        ("1", "none", 3),
        ("2", "none", 0),
        ("3", "none", 0),
        ("0", "full", 3),
        ("1", "full", 3),
        ("2", "full", 0),
        ("3", "full", 0),
    ],
)
def test_a_hundred_billion_parameters_are_one_command_each(
    cli: Cli, zero: str, recompute: str, code: int
) -> None:
    done = cli(*HUNDRED, *EIGHT, "--zero", zero, "--recompute", recompute)
    assert done.code == code
    assert "100,041,041,920 parameters: 80 layers of width 10,240" in " ".join(done.out.split())
    shared = " / 8" if zero != "0" else ""
    assert f"12,506,572,800 x 12 bytes{shared}\n" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_the_plan_names_the_fewest_cards(cli: Cli) -> None:
    done = cli(*HUNDRED, "--plan")
    assert done.code == 0
    text = " ".join(done.out.split())
    assert "24 x NVIDIA A100-SXM4-80GB are the fewest" in text
    assert "Front more cards with less extra work" in text
    assert max(map(len, done.out.splitlines())) <= 80


def test_a_plan_without_an_answer_exits_with_3(cli: Cli) -> None:
    done = cli(*HUNDRED, "--plan", "--gpus", "8")
    assert done.code == 3
    assert "no layout fits NVIDIA A100-SXM4-80GB" in done.out
    done = cli(*HUNDRED, "--plan", "--gpus", "32", "--seq", "131072")
    assert done.code == 3
    assert "layouts fits" in " ".join(done.out.split())


def test_the_json_names_its_engine_and_its_arithmetic(cli: Cli, tmp_path: Path) -> None:
    done = cli("fit", "Llama-3-70B", "--gpu", "H100", *EIGHT, "--zero", "1", "--json")
    answer = json.loads(done.out)
    assert answer["engine"] == "formula"
    assert answer["peak_allocated_bytes"] == sum(answer["breakdown"].values())
    assert answer["breakdown"].keys() == answer["arithmetic"].keys()
    low, high = answer["reserved_range"]
    assert low < answer["needed_bytes"] < high
    assert answer["ranks"] == 64
    file = tmp_path / "answer.json"
    file.write_text(done.out)
    (read,) = read_answers(str(file))
    assert read.needed_bytes == answer["needed_bytes"]


def test_the_json_of_a_plan_has_every_choice(cli: Cli) -> None:
    answer = json.loads(cli(*HUNDRED, "--plan", "--json").out)
    assert answer["fewest"] == answer["choices"][0]["ranks"] == 24
    assert all(each["fits"] is not False for each in (*answer["choices"], *answer["front"]))


def test_one_card_by_formula(cli: Cli) -> None:
    done = cli("fit", "gpt2", "--engine", "formula", "--device-memory", "24GiB", "--batch", "8")
    assert done.code == 0
    assert "8 x 1,024 tokens on 1 card" in " ".join(done.out.split())


def test_a_pipelines_worst_stage_is_named(cli: Cli) -> None:
    more = ("--pipeline-parallel", "4", "--virtual-stages", "2", "--grad-dtype", "fp32")
    done = cli("fit", "Llama-3-8B", "--gpu", "A100 80GB", *more)
    text = " ".join(done.out.split())
    assert "on the worst rank: stage 1 of 4 pipeline stages, in backward of a layer" in text
    assert "x 5.5 in flight" in text
    stages = re.search(r"By stage +([\d., ]+) GiB allocated", text)
    assert stages is not None
    sizes = [float(size) for size in stages[1].split(", ")]
    assert len(sizes) == 4
    assert sizes[0] == max(sizes)
    assert "2 + 4 + 12 bytes per parameter" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("gpt2", "--parameters", "1B"), "both select the model"),
        (("--zero", "1"), "formulas need a MODEL"),
        (("gpt2", "--zero", "1", "--serve"), "--serve applies to a program that runs"),
        (("gpt2", "--zero", "1", "--lora", "8"), "--lora applies to a program that runs"),
        (("gpt2", "--zero", "1", "--engine", "program"), "--zero needs --engine formula"),
        (("gpt2", "--zero", "1", "--gpus", "8"), "--gpus needs --plan"),
        (("gpt2", "--plan", "--zero", "1"), "--plan searches for --zero itself"),
        (("gpt2", "--zero", "1", "--seq", "2048"), "is more than the model's 1,024 positions"),
        (("gpt2", "--dtype", "bf16", "--grad-dtype", "fp32"), "--grad-dtype applies to mixed"),
        (
            ("gpt2", "--recompute", "selective", "--checkpointing"),
            "--checkpointing means --recompute full",
        ),
        (("gpt2", "--tensor-parallel", "5"), "5 tensor parallel ranks do not divide 12 heads"),
        (("--parameters", "lots"), "'lots' is not a number of parameters"),
        (("--parameters", "5M"), "5,000,000 parameters have no usual shape"),
        (("BERT-base", "--zero", "3"), "not described by the formulas"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    cli: Cli, arguments: tuple[str, ...], sentence: str
) -> None:
    done = cli("fit", *arguments, "--gpu", "A100 80GB")
    assert done.code == 2
    assert sentence in done.err
    assert "Traceback" not in done.err


def test_all_cards_at_once_are_for_programs(cli: Cli) -> None:
    done = cli("fit", "gpt2", "--zero", "1", "--gpu", "all")
    assert done.code == 2
    assert "formulas are for one kind of card" in done.err
