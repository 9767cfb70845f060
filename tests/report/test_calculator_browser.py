"""The calculator in a real browser equals `fit --engine laws` to the byte, for any question.

Run with `-m slow` if Chromium and the `playwright` package are installed; skipped otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode

import pytest

from allocsim.analysis.top import top_of_run
from allocsim.cli import main
from allocsim.errors import ConfigError
from allocsim.fitting import (
    Task,
    largest,
    law_cards,
    law_models,
    law_programs,
    model_of,
    most_positions,
    run_by_law,
)
from allocsim.fitting.laws import (
    FAMILIES,
    VARIABLES,
    Card,
    factored_way,
    known_programs,
    prompt_regime,
    regime_of,
    step_regime,
    variables_of,
)
from allocsim.fitting.model import Configured
from allocsim.fitting.notes import notes_of
from allocsim.phantom import CARDS, Gpu, find_gpu
from allocsim.units import GIB, MIB, TIB, format_size, parse_size
from tests.report.opened import LONGEST_WAIT, Opened

pytestmark = pytest.mark.slow

LIKE = {
    "gpt2": "gpt2", "llama": "SmolLM2-135M", "qwen2": "Qwen2.5-0.5B", "mistral": "Mistral-7B-v0.1",
    "phi3": "Phi-3-mini", "mixtral": "Mixtral-8x7B", "gemma2": "Gemma-2-2B", "bert": "BERT-base",
    "qwen3": "Qwen3-0.6B", "glm4": "GLM-4-9B-0414",
}  # fmt: skip
"""A preset of each family, whose fields are filled in for a random model."""
SETTLED = "body[data-settled]:not([data-settled=''])"
_FROZEN = ("parameters", "buffers")
_OF_BACKWARD = ("gradients", "temporaries")


@dataclass(frozen=True, slots=True)
class Drawn:
    """Question to the calculator, and the address of the page that asks it."""

    task: Task
    gpu: Gpu
    address: str


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Open the page with all laws; it must cause no error, and no request except for its worker."""
    file = tmp_path_factory.mktemp("calculator") / "calculator.html"
    assert main(["fit", "--html", str(file)]) == 0
    opened = Opened(browser, file, viewport={"width": 1280, "height": 800})
    yield opened
    assert opened.errors == []
    assert {address.partition(":")[0] for address in opened.requests[1:]} <= {"blob"}
    opened.page.close()


def drawn(random: Random) -> Drawn:
    """Return a random program with laws, of any model, on any card."""
    is_training = random.random() < 2 / 3
    offered = {model.family for model in law_models()}
    programs = [
        name for name in law_programs()
        if (name.work == "serve") is not is_training and name.family.partition("_")[0] in offered
    ]  # fmt: skip
    named, dtype, optimizer, more = random.choice(programs)
    family, _, tied = named.partition("_")
    is_tied = tied == "tied"
    dtype = random.choice(["bf16", "fp16"]) if dtype == "16-bit" else dtype
    published = [
        model.name for model in law_models()
        if (model.family, model.is_tied) == (family, is_tied) and model.sizes["layers"] < 33
    ]  # fmt: skip
    words: dict[str, Any] = {"dtype": dtype, "attention": "eager" if "eager" in more else "sdpa"}
    if published and (random.random() < 0.3 or family not in LIKE):
        model = model_of(random.choice(published))
        words["model"] = model.name
    else:
        sizes = made_up(random, family, is_training=is_training)
        keys = {**FAMILIES[family].keys, "window": "sliding_window"}
        config: dict[str, Any] = {keys[name]: size for name, size in sizes.items()}
        config |= {"model_type": family, "tie_word_embeddings": is_tied}
        model = Configured("made up", config, f"AutoModelFor{FAMILIES[family].head}")
        words |= {"model": LIKE[family], "tied": int(is_tied), **sizes}
    asked: dict[str, Any] = {"batch": random.choice([1, 2, 3, 8, 16])}
    if is_training:
        tokens = {} if model.sees else {"seq": min(length(random), most_positions(model) or 1024)}
        asked |= {**tokens, "optimizer": optimizer}
        words["checkpointing"] = int("checkpointing" in more)
        if "lora" in more:
            asked["lora"] = random.choice([4, 8, 32])
    else:
        prompt = min(length(random), 960)
        asked |= {"prompt": prompt, "decode": random.choice([1, 2, 9, 40])}
        asked["requests"] = random.choice([1, 2, 3])
        words["work"] = "serve"
    task = Task(
        model=model, is_training=is_training, dtype=dtype, attention=words["attention"],
        checkpointing="checkpointing" in more, **asked,
    )  # fmt: skip
    gpu, card = card_of(random)
    return Drawn(task, gpu, f"#{urlencode({**words, **asked, **card})}")


def made_up(random: Random, family: str, *, is_training: bool) -> dict[str, int]:
    shared = random.choice([1, 2, 3])
    heads = shared * random.choice([1, 2, 4])
    hidden = heads * random.choice([32, 64, 96, 128] if is_training else [64, 96, 128, 128])
    sizes = {"hidden": hidden, "intermediate": random.randint(64, 6000), "heads": heads}
    sizes |= {"layers": random.randint(2, 7), "vocabulary": random.randint(200, 130_000)}
    if family == "qwen2" and not is_training:
        sizes["vocabulary"] += 131_000
    if family in {"gpt2", "bert"}:
        return sizes | {"positions": 1024}
    if FAMILIES[family].window is not None:
        sizes["window"] = random.choice([0, random.randint(32, 600), 5000])
    if family == "gemma2" and random.random() < 0.5:
        sizes["head_dim"] = random.choice([64, 128])
    if family == "mixtral":
        sizes |= {"experts": random.randint(3, 8), "chosen": random.randint(1, 3), "window": 0}
    return sizes | {"kv_heads": shared}


def tightened(random: Random, question: Drawn) -> Drawn:
    """Return the question on a card that holds allocated memory, but not reserved memory."""
    gpu = Gpu("a card of that size", TIB)
    try:
        ran = run_by_law(question.task, gpu)
    except ConfigError:
        return question
    memory = random.randint(ran.peak_allocated_bytes, ran.peak_reserved_bytes)
    address = question.address.partition("&card=")[0]
    address += "&" + urlencode({"card": "another", "memory": memory / GIB})
    return Drawn(question.task, replace(gpu, memory=memory), address)


def length(random: Random) -> int:
    return random.choice([64, 128, random.randint(2, 300), random.randint(300, 1024), 1024])


def card_of(random: Random) -> tuple[Gpu, dict[str, Any]]:
    """Return a named card, or a small one."""
    if random.random() < 0.5:
        name = random.choice(list(law_cards()))
        return CARDS[name], {"card": name}
    memory = random.randint(256 * MIB, 6 * GIB)
    return Gpu("a card of that size", memory), {"card": "another", "memory": memory / GIB}


def settled(page: Opened, address: str) -> None:
    """Open `address` and wait until the largest batch is known."""
    page.run("document.body.dataset.settled = ''")
    page.run(f"location.hash = {address!r}")
    page.page.wait_for_selector(SETTLED, timeout=LONGEST_WAIT)


def shown_bytes(page: Opened, name: str) -> int:
    return int(page.text(f"#{name} small").removesuffix(" bytes").replace(",", ""))


def compare(page: Opened, question: Drawn) -> str:
    """Compare the page with Python; return the kind of answer."""
    settled(page, question.address)
    verdict = page.text("#verdict")
    try:
        ran = run_by_law(question.task, question.gpu)
    except ConfigError as error:
        assert verdict == "No answer"
        assert page.text("#refusal").removesuffix(".").lower() == str(error).lower().replace(
            "made up has", "a model like gpt2 has"
        )
        return "refused"
    # The page has Adafactor for the presets' matrices only.
    is_made_up = question.task.model.name == "made up"
    is_other = question.task.optimizer == "adafactor" and (is_made_up or question.task.lora > 0)
    if is_other and verdict == "No answer":
        assert page.text("#refusal").startswith("This page has Adafactor for the presets' matrices")
        return "refused"
    assert verdict == ("It does not fit" if ran.is_out_of_memory else "It fits")
    assert shown_bytes(page, "reserved") == ran.peak_reserved_bytes
    assert shown_bytes(page, "allocated") == ran.peak_allocated_bytes
    retries = ran.device_run.stats["num_alloc_retries"]
    often = {0: "never", 1: "once"}.get(retries, f"{retries:,} times")
    assert page.text("#retries").partition(";")[0] == often
    needed = ran.peak_reserved_bytes
    if ran.is_out_of_memory:
        endless = run_by_law(question.task, replace(question.gpu, memory=TIB, context_memory=0))
        needed = endless.peak_reserved_bytes
    assert shown_bytes(page, "spare") == abs(question.gpu.room - needed)
    notes = page.run("[...document.querySelectorAll('#notes li')].map((note) => note.textContent)")
    assert notes == list(notes_of(question.task, question.gpu, "laws"))
    if ran.is_out_of_memory:
        return "out of memory"
    top = top_of_run(ran.prepared, ran.device_run, ran.busiest, by="category")
    rows = page.run(
        "[...document.querySelectorAll('#purposes tr')].map("
        "(row) => [row.cells[0].textContent, row.cells[1].textContent])"
    )
    shown, output = dict(rows[:-1]), {name: format_size(n) for name, n in top.categories.items()}
    # The page knows purposes at sizes that all differ. In a made-up model a temporary may be as
    # large as a parameter, and Python takes it for a gradient; only the sums are compared then.
    for alike, may_differ in ((_FROZEN, question.task.lora), (_OF_BACKWARD, is_made_up)):
        if may_differ and any(shown.get(name) != output.get(name) for name in alike):
            mine, pythons = (
                sum(parse_size(row.pop(name, "0").removesuffix(" bytes")) for name in alike)
                for row in (shown, output)
            )
            assert mine == pytest.approx(pythons, rel=0.005)
    assert shown == output
    return "retried" if retries else "fits"


def test_calculator_page_gives_the_answers_of_python(page: Opened) -> None:
    random = Random(20261122)
    questions = [drawn(random) for _ in range(96)]
    questions += [tightened(random, question) for question in questions[:24]]
    became = [compare(page, question) for question in questions]
    assert all(became.count(name) >= 3 for name in ("refused", "out of memory", "fits"))
    assert "retried" in became


@pytest.mark.parametrize(
    ("name", "card", "options"),
    [
        ("gpt2", "RTX 3060", {"batch": 4, "dtype": "fp32"}),
        ("SmolLM2-360M", "RTX 4090", {"batch": 16, "seq": 1024}),
        ("Llama-3.2-1B", "RTX 4090", {"batch": 1, "seq": 512, "optimizer": "sgd"}),
    ],
)
def test_the_largest_batch_is_pythons(
    name: str, card: str, options: dict[str, Any], page: Opened
) -> None:
    task = Task(model=model_of(name), **options)
    words = {"model": name, "card": card, "dtype": task.dtype, "optimizer": task.optimizer}
    settled(page, f"#{urlencode({**words, 'batch': task.batch, 'seq': task.seq})}")
    shown = int(page.text("#largest").partition("\n")[0].replace(",", ""))
    found = largest(task, "batch", find_gpu(card), engine="laws", first=shown)
    assert shown == found.value


def test_calculator_page_has_pythons_values_in_every_range_of_sizes(page: Opened) -> None:
    random = Random(7)
    known = page.run("VARIABLES")
    assert set(known) == set(VARIABLES)
    for _ in range(400):
        heads = random.randint(1, 40)
        sizes = {
            "hidden": random.randint(1, 16_384), "intermediate": random.randint(1, 60_000),
            "heads": heads, "kv_heads": random.choice([1, heads, max(heads // 4, 1)]),
            "head_dim": random.choice([64, 96, 128, 256, random.randint(1, 256)]),
            "vocabulary": random.randint(1, 300_000),
            "batch": random.choice([1, random.randint(1, 2000)]), "length": random.randint(1, 9000),
            "patch": random.choice([0, 0, random.randint(1, 32)]),
            "output_bias": random.choice([0, 1]), "logit_bytes": random.choice([2, 4]),
            "head_norms": random.choice([0, 1]),
            "lora": random.choice([0, 8]), "positions": random.choice([0, 8192]),
            "window": random.choice([0, 4096]), "chosen": random.choice([0, 1, 3]),
            "experts": random.randint(0, 64),
        }  # fmt: skip
        gpu = random.choice(list(CARDS.values()))
        card = Card(gpu.capability, gpu.multiprocessors, gpu.limits.threads)
        given = {
            "capability": gpu.capability, "multiprocessors": gpu.multiprocessors,
            "threads": gpu.limits.threads,
        }  # fmt: skip
        unit = random.choice([0, 1, 4, 8])
        found = page.page.evaluate(
            "([s, c, m]) => [variablesOf(s, c), variablesOf(s, c, true), regimeOf(s, c, m), "
            "servedRegimeOf(s, c, m > 1, false, m == 1), "
            "servedRegimeOf(s, c, m > 1, true, m == 1), factoredWay({...s, factored: 2})]",
            [sizes, given, unit],
        )
        pythons, of_a_step = variables_of(sizes, card), variables_of(sizes, card, is_step=True)
        assert found == [
            {name: pythons[name] for name in known},
            {name: of_a_step[name] for name in known},
            regime_of(sizes, card, unit),
            prompt_regime(sizes, card, is_fused=unit > 1, is_eager=unit == 1),
            step_regime(sizes, card, is_fused=unit > 1, is_eager=unit == 1),
            factored_way({**sizes, "factored": 2}),
        ]


def test_a_window_is_a_field_where_a_family_has_one(page: Opened) -> None:
    words = {"model": "Mistral-7B-v0.1", "card": "H200", "dtype": "bf16", "optimizer": "adamw"}
    settled(page, f"#{urlencode({**words, 'batch': 2, 'seq': 512})}")
    assert page.run("field('size-window').value") == "4096"
    assert page.text("#command").startswith("allocsim fit Mistral-7B-v0.1 ")
    settled(page, f"#{urlencode({**words, 'model': 'gpt2', 'batch': 2, 'seq': 512})}")
    assert page.run("field('size-window')") is None


def test_a_variable_that_the_page_does_not_know_is_refused(page: Opened) -> None:
    output = page.run(
        "(() => { try { bytesAt({numerator: 1, denominator: 1, variables: ['moon']}, {moon: 1}); }"
        " catch (error) { return error.message; } })()"
    )
    assert output == "this page does not know the variable moon: write the page again"


def test_serving_asks_for_a_prompt_and_tokens_and_gemma_for_its_own_attention(
    page: Opened,
) -> None:
    words = {"model": "SmolLM2-135M", "card": "L4", "batch": 2, "dtype": "bf16"}
    settled(page, f"#{urlencode({**words, 'work': 'serve', 'prompt': 256, 'decode': 3})}")
    assert page.text("#verdict") == "It fits"
    assert page.page.locator("#seq").is_hidden()
    assert page.page.locator("#optimizer").is_hidden()
    assert page.page.locator("#decode").input_value() == "3"
    assert "--serve --batch 2 --prompt 256 --decode 3 --requests" in page.text("#command")
    page.run("document.body.dataset.settled = ''")
    page.page.locator("#prompt-slider").fill("512")
    page.page.wait_for_selector(SETTLED, timeout=LONGEST_WAIT)
    assert "--prompt 512 " in page.text("#command")
    page.run("document.body.dataset.settled = ''")
    page.page.locator("#model").select_option("Gemma-2-2B")
    page.page.locator("#work").select_option("train")
    page.page.wait_for_selector(SETTLED, timeout=LONGEST_WAIT)
    assert page.page.locator("#attention").input_value() == "eager"
    assert page.page.locator("#prompt").is_hidden()
    assert "--attention eager" in page.text("#command")
    page.run("document.body.dataset.settled = ''")
    page.page.locator("#attention").select_option("sdpa")
    page.page.wait_for_selector(SETTLED, timeout=LONGEST_WAIT)
    assert page.text("#refusal") == "Transformers runs Gemma-2-2B with attention 'eager' alone."


def test_a_slider_moves_the_bar_and_nothing_scrolls_away(page: Opened) -> None:
    settled(page, "#model=SmolLM2-360M&card=RTX%203060&batch=1&seq=1024&dtype=bf16&optimizer=adamw")
    widths = []
    for batch in (1, 2, 4):
        page.run("document.body.dataset.settled = ''")
        page.page.locator("#batch-slider").fill(str(batch))
        page.page.wait_for_selector(SETTLED, timeout=LONGEST_WAIT)
        assert page.page.locator("#batch").input_value() == str(batch)
        widths.append(
            page.run("[...document.querySelectorAll('#held i:not(.idle):not(.missing)')]"
                     ".reduce((sum, part) => sum + parseFloat(part.style.width), 0)")
        )  # fmt: skip
        page.until(f"location.hash.includes('batch={batch}&')")
    assert widths == sorted(widths)
    assert widths[0] < 0.7 * widths[2]
    assert page.run("document.documentElement.scrollHeight") <= 800
    assert page.run("engine instanceof Worker")


def test_a_program_without_a_law_offers_those_with_one(page: Opened) -> None:
    settled(page, "#model=gpt2&card=A10G&batch=1&seq=512&dtype=fp16&optimizer=adamw")
    assert page.text("#verdict") == "No answer"
    assert page.text("#refusal") == "There is no law for gpt2_tied_fp16_adamw."
    page.run("document.body.dataset.settled = ''")
    page.page.get_by_role("button", name="fp32 sgd", exact=True).click()
    page.page.wait_for_selector(SETTLED, timeout=LONGEST_WAIT)
    assert page.text("#verdict") == "It fits"
    assert "--dtype fp32 --optimizer sgd" in page.text("#command")


def test_sizes_without_a_law_offer_some_near_by(page: Opened) -> None:
    words = {"model": "gpt2", "card": "H200", "dtype": "bf16", "optimizer": "adamw"}
    settled(page, f"#{urlencode({**words, 'batch': '65', 'seq': '1024'})}")
    assert "its kernels' way there (several.crowd.own.whole)" in page.text("#refusal")
    page.run("document.body.dataset.settled = ''")
    page.page.locator("#nearby button").first.click()
    page.page.wait_for_selector(SETTLED, timeout=LONGEST_WAIT)
    assert page.text("#verdict") in ("It fits", "It does not fit")


def test_without_a_worker_the_page_answers_itself(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    with pytest.MonkeyPatch.context() as patched:
        only = [each for each in known_programs() if each.text == "gpt2_tied_fp32_sgd"]
        patched.setattr("allocsim.fitting.calculator.known_programs", lambda: iter(only))
        assert main(["fit", "--html", str(file), "gpt2", "--dtype", "fp32", "--optimizer", "sgd"])\
            == 0  # fmt: skip
    opened = Opened(browser, file, before="window.Worker = undefined")
    opened.page.wait_for_selector(SETTLED, timeout=LONGEST_WAIT)
    assert opened.text("#verdict") == "It fits"
    opened.close()


def test_calculator_page_on_a_phone_has_no_overlaps(browser: Any, page: Opened) -> None:
    file = page.requests[0]
    phone = browser.new_page(viewport={"width": 390, "height": 844})
    phone.goto(file)
    phone.wait_for_selector(SETTLED, timeout=LONGEST_WAIT)
    assert phone.evaluate("document.documentElement.scrollWidth") == 390
    phone.locator("#batch").scroll_into_view_if_needed()
    assert phone.locator("#verdict").bounding_box()["y"] >= 0, "the answer stays in sight"
    phone.close()
