"""The calculator page: complete, without requests, and with exactly unpacked numbers."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allocsim.cli import main
from allocsim.errors import ConfigError
from allocsim.fitting import (
    CONFIGURATIONS,
    Configured,
    Task,
    law_cards,
    law_programs,
    model_of,
    opening_at,
    page_laws,
    run_by_law,
)
from allocsim.fitting.laws import (
    TRANSFORMERS,
    VARIABLES,
    ProgramName,
    find_laws,
    known_programs,
)
from allocsim.ownership import CATEGORIES
from allocsim.phantom import Gpu, find_gpu
from allocsim.report.calculator import calculator_page
from tests.report.page import TYPES, Page

NODE = shutil.which("node")
PROGRAM = "gpt2_tied_fp32_sgd"
SERVES = "gpt2_tied_fp32_serve"
PARTS = files("allocsim.report") / "calculator"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Page]:
    """Write the page with the laws of one program, opened at gpt2 on an A10G."""
    words = "gpt2 --gpu A10G --batch 8 --dtype fp32 --optimizer sgd"
    text = page_with(PROGRAM, words, tmp_path_factory.mktemp("calculator"))
    return text, Page(text)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write the page with the laws of one serving program, opened at it."""
    words = "gpt2 --serve --prompt 200 --decode 9 --requests 1 --dtype fp32"
    return page_with(SERVES, words, tmp_path_factory.mktemp("calculator"))


def page_with(program: str, words: str, folder: Path) -> str:
    """Write the page with the laws of one program, opened at the options in `words`."""
    file = folder / "page.html"
    (name,) = (name for name in known_programs() if name.text == program)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("allocsim.fitting.calculator.known_programs", lambda: (name,))
        assert main(["fit", "--html", str(file), *words.split()]) == 0
    return file.read_text(encoding="utf-8")


def about_of(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page.scripts["about"])
    return found


def test_the_page_is_well_formed_and_asks_for_nothing(written: tuple[str, Page]) -> None:
    text, page = written
    assert page.wrong == []
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert page.asked == [], "no address outside, nor inside"
    assert "default-src 'none'" in text, "and its own policy forbids it"
    assert "url(" not in text[text.index("<style>") : text.index("</style>")]
    for name in ("engine", "script"):
        code = page.scripts[name]
        for word in ("http:", "https:", "fetch(", "XMLHttpRequest", "import", "localStorage"):
            assert word not in code, name
    assert re.search(r"\$[a-z_]+\b", page.words) is None, "every place of it is filled"


def test_a_models_name_is_no_markup() -> None:
    config = {**CONFIGURATIONS["gpt2"]}
    model = Configured("</script><img src=x onerror=alert(1)>", config, "AutoModelForCausalLM")
    opening = opening_at(Task(model=model), find_gpu("A10G"))
    page = Page(calculator_page((), (), law_cards(), opening))
    assert (page.wrong, page.open, page.asked) == ([], [], [])
    assert about_of(page)["opening"]["model"] == model.name


def test_every_field_that_a_script_names_is_in_the_page(written: tuple[str, Page]) -> None:
    _, page = written
    named = set(re.findall(r'(?:field|put)\("([a-z-]+)"', page.scripts["script"]))
    named.remove("size-positions")  # only created for a model with a table of positions
    assert {"verdict", "batch", "largest"} <= named <= set(page.ids)


def test_the_page_opens_at_a_program_that_serves(serving: str) -> None:
    opening = about_of(Page(serving))["opening"]
    assert (opening["work"], opening["prompt"], opening["decode"]) == ("serve", 200, 9)
    assert opening["requests"] == 1


def test_calculator_page_opens_at_the_given_question(written: tuple[str, Page]) -> None:
    about = about_of(written[1])
    assert about["opening"] == {
        "model": "gpt2", "card": "A10G", "memory": None, "dtype": "fp32", "optimizer": "sgd",
        "checkpointing": False, "lora": 0, "batch": 8, "seq": 1024,
        "work": "train", "attention": "sdpa", "prompt": 960, "decode": 64, "requests": 2,
    }  # fmt: skip
    assert {model["family"] for model in about["models"]} >= {"gpt2"}


def test_the_page_names_the_releases_that_were_recorded(written: tuple[str, Page]) -> None:
    assert f"made with PyTorch 2.15.0 and transformers {TRANSFORMERS}." in written[1].words


def test_page_has_the_parts_of_serving_with_and_without_a_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (name,) = (each for each in known_programs() if each.text == "mistral_untied_16-bit_serve")
    monkeypatch.setattr("allocsim.fitting.calculator.known_programs", lambda: (name,))
    (parts,) = page_laws("mistral_untied").parts.values()
    assert {"make.default", "make.default.window"} <= set(parts)


def test_law_unpacks_to_the_same_numbers(written: tuple[str, Page]) -> None:
    _, page = written
    laws = find_laws(ProgramName("gpt2_tied", "fp32", "sgd"))
    about = about_of(page)["families"]["gpt2_tied"]
    assert laws is not None
    (packed,) = re.findall(r'data-laws="gpt2_tied">([^<]*)<', written[0])
    data = gzip.decompress(base64.b64decode(packed))

    def column(name: str) -> list[int]:
        kind, length, offset = about["columns"][name]
        changes = np.frombuffer(data, TYPES[kind], length, offset).astype(np.float64)
        return [int(value) for value in np.cumsum(changes)]

    parts = about_of(page)["programs"]["gpt2_tied"][PROGRAM]
    assert parts == ["make.float32", "fp32", "sgd.make.float32"]
    assert set(about["parts"]["fp32"]) | set(about["parts"]["make.float32"]) == set(laws)
    names = ("kind", "group", "number", "by_copy", "by_copies", "parts", "formulas")
    columns = {each: column(each) for each in names}
    for part in parts[:2]:
        for name, number in about["parts"][part].items():
            law = laws[name]
            rows, repeated, formulas = (slice(*span) for span in about["laws"][number]["spans"])
            for each in names[:5]:
                assert columns[each][rows] == getattr(law, each).tolist()
            assert columns["parts"][repeated] == [number for part in law.parts for number in part]
            flat = columns["formulas"][formulas]
            for formula in law.formulas:
                count = flat[2]
                assert flat[:2] == [formula.numerator, formula.denominator]
                factors = [about["variables"][number] for number in flat[3 : 3 + count]]
                assert factors == [VARIABLES[number] for number in formula.variables]
                flat = flat[3 + count :]
            assert flat == []


def test_the_page_knows_every_variable_that_a_law_it_carries_names() -> None:
    code = (PARTS / "variables.js").read_text(encoding="utf-8")
    listed = code[code.index("const VARIABLES = [") :].partition("]")[0]
    known = set(re.findall(r'"(\w+)"', listed))
    assert known <= set(VARIABLES)
    assert len(law_programs()) >= 60
    for name in law_programs():
        laws = find_laws(name)
        assert laws is not None
        formulas = [formula for law in laws.values() for formula in law.formulas]
        named = {VARIABLES[number] for formula in formulas for number in formula.variables}
        assert named <= known, name.text


SCRIPT = """
globalThis.self = globalThis;
{engine}
(async () => {
  const given = JSON.parse(require("fs").readFileSync(0, "utf8")), { questions } = given;
  takeLaws(given.family, given.about, given.laws, given.programs);
  const answers = [];
  for (const question of questions) {
    answers.push(await answerOf(question).catch((error) => ({ refusal: error.message })));
  }
  console.log(JSON.stringify(answers));
})();
"""


def asked_of(page: Page, task: Task, gpu: Gpu) -> dict[str, Any]:
    """Return a question in the form of the page's script."""
    about = about_of(page)
    model = next(model for model in about["models"] if model["name"] == task.model.name)
    card = {"name": gpu.name, "memory": gpu.memory, "context": gpu.context_memory}
    card |= {"capability": gpu.capability, "multiprocessors": gpu.multiprocessors}
    family = model["family"]
    own = {
        "hasOutputBias": family in about["outputBias"],
        "normsHeads": family in about["headNorms"],
    }
    return {
        "model": {**model, "keys": about["keys"][family], **own},
        "card": {**card, "threads": gpu.limits.threads},
        "work": "train" if task.is_training else "serve", "attention": task.attention,
        "dtype": task.dtype, "optimizer": task.optimizer, "checkpointing": task.checkpointing,
        "lora": task.lora, "batch": task.batch, "seq": task.seq, "purposes": len(CATEGORIES),
        "prompt": task.prompt, "decode": task.decode, "requests": task.requests,
    }  # fmt: skip


def told_by_script(text: str, program: str, questions: list[tuple[Task, Gpu]]) -> list[Any]:
    """Return the answers of the page's engine, with the laws of one program."""
    page = Page(text)
    about = about_of(page)
    ((family, programs),) = about["programs"].items()
    assert list(programs) == [program]
    (laws,) = re.findall(rf'data-laws="{family}">([^<]*)<', text)
    given = {"family": family, "about": about["families"][family], "laws": laws}
    given["programs"] = programs
    given["questions"] = [asked_of(page, *question) for question in questions]
    script = SCRIPT.replace("{engine}", page.scripts["engine"])
    done = subprocess.run(
        [str(NODE), "-e", script],
        input=json.dumps(given), capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[Any] = json.loads(done.stdout)
    return found


def is_as_told(output: dict[str, Any], task: Task, gpu: Gpu) -> None:
    ran = run_by_law(task, gpu)
    assert output["reserved"] == ran.peak_reserved_bytes
    assert output["allocated"] == ran.peak_allocated_bytes
    assert output["fits"] is not ran.is_out_of_memory


@pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
def test_the_script_says_what_python_says(written: tuple[str, Page]) -> None:
    """A short check; tests/report/test_calculator_browser.py compares many questions."""
    task = Task(model=model_of("gpt2"), dtype="fp32", optimizer="sgd", batch=2, seq=200)
    small = Gpu("small", 3 << 30)
    questions = [(task, find_gpu("H100")), (replace(task, batch=9), small)]
    questions.append((replace(task, optimizer="adamw"), small))
    fitting, failing, refused = told_by_script(written[0], PROGRAM, questions)
    is_as_told(fitting, *questions[0])
    is_as_told(failing, *questions[1])
    assert (fitting["fits"], failing["fits"]) == (True, False)
    assert refused == {"refusal": "there is no law for gpt2_tied_fp32_adamw"}


@pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
@pytest.mark.parametrize(
    ("program", "model", "options"),
    [
        ("bert_tied_bf16_adamw", "BERT-base", {"batch": 9, "seq": 128}),
        ("torchvision-vit_bf16_adamw", "ViT-B/16", {"batch": 3}),
        ("gpt2_tied_bf16_adafactor", "gpt2", {"batch": 2, "seq": 200, "optimizer": "adafactor"}),
        ("qwen2_untied_bf16_adafactor", "Qwen2.5-7B", {"seq": 600, "optimizer": "adafactor"}),
    ],
)
def test_the_script_has_biases_images_and_sums_of_matrices(
    program: str, model: str, options: dict[str, Any], tmp_path: Path
) -> None:
    task, gpu = Task(model=model_of(model), **options), find_gpu("H200")
    words = [f"--{name} {value}" for name, value in options.items()]
    text = page_with(program, " ".join([model, *words]), tmp_path)
    (output,) = told_by_script(text, program, [(task, gpu)])
    is_as_told(output, task, gpu)


@pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
def test_the_script_serves_as_python_does(serving: str) -> None:
    task = Task(
        model=model_of("gpt2"), is_training=False, dtype="fp32", prompt=200, decode=9, requests=3
    )
    small = Gpu("small", 1 << 30)
    questions = [(task, find_gpu("H100")), (replace(task, batch=9, prompt=700), small)]
    questions += [(replace(task, prompt=1), small), (replace(task, decode=800), small)]
    fitting, failing, refused, longest = told_by_script(serving, SERVES, questions)
    is_as_told(fitting, *questions[0])
    is_as_told(failing, *questions[1])
    assert (fitting["fits"], failing["fits"]) == (True, False)
    with pytest.raises(ConfigError) as caught:
        run_by_law(*questions[2])
    assert refused["refusal"] == str(caught.value)
    is_as_told(longest, *questions[3])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--find", "batch"],
            "--find applies to a single answer and has no effect on the page of --html",
        ),
        (["--json"], "--json applies to a single answer"),
        (["--fsdp"], "--fsdp applies to a single answer"),
        (["--tensor-parallel", "2"], "--tensor-parallel applies to a single answer"),
        (["--server", "vllm"], "--server applies to a single answer"),
        (["--engine", "program"], "--engine program has no effect on the page of --html"),
        (["--gpu", "L4", "--gpu", "A10"], "the page has every card; expected at most one"),
        (["gpt2", "--accumulate", "4"], "there is no law for accumulate 4"),
        (["ResNet-50"], "there is no law for ResNet-50: its architecture has none"),
        (["gpt2", "--attention", "flash"], "there is no law for attention 'flash'"),
        (["gpt2", "--serve", "--lengths", "9,12"], "--lengths applies to a single answer"),
        (
            ["Gemma-2-2B", "--attention", "sdpa"],
            "transformers runs Gemma-2-2B with attention 'eager' alone",
        ),
        (["gpt2", "--start", "made"], "has no gpt2_tied_bf16_adamw, made; use --engine laws"),
        (["gpt2", "--gpu", "T4"], "Tesla T4: laws are for cards of compute capability 8.0"),
    ],
)
def test_calculator_page_refuses_what_it_cannot_answer(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "--html", str(tmp_path / "page.html"), *words]) == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--html", str(tmp_path)]) == 2
    assert "cannot be a page" in capsys.readouterr().err


def test_page_has_the_laws_of_a_family_with_a_model_that_they_refuse() -> None:
    refused = model_of("GLM-4-32B-0414")
    with pytest.raises(ConfigError, match="attention_bias is False"):
        run_by_law(Task(model=refused), find_gpu("H100"))
    assert page_laws("glm4_untied").programs
