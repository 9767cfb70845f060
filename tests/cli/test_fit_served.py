"""Tests of `allocsim fit --server ENGINE`, by formula, without PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from allocsim.errors import ConfigError
from allocsim.fitting import CONFIGURATIONS, held_of, serve
from allocsim.phantom import Gpu, find_gpu
from allocsim.report import fit_served
from allocsim.report.figures import read_answers
from tests.cli.conftest import Done
from tests.formulas.files import small_gguf, small_safetensors

Cli = Callable[..., Done]
SERVE = ("fit", "Qwen2.5-7B", "--serve", "--server")
ON = ("--gpu", "RTX 4090")


@pytest.mark.parametrize("server", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "ollama"])
def test_every_engine_answers_on_a_screen(cli: Cli, server: str) -> None:
    done = cli(*SERVE, server, *ON)
    assert done.code == 0
    assert done.out.startswith("Verdict         fits NVIDIA GeForce RTX 4090 with ")
    assert f"on the card, with {server}:" in done.out
    assert "To paste" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_transformers_is_played_through_the_allocator(cli: Cli) -> None:
    done = cli("fit", "gpt2", "--serve", "--server", "transformers", *ON, "--decode", "2")
    assert done.code == 0
    assert "activations and the allocator's cache" in done.out


def test_what_may_not_fit_and_what_does_not_exit_with_3(cli: Cli) -> None:
    done = cli(*SERVE, "vllm", "--device-memory", "16GiB")
    assert (done.code, done.out.split("\n")[0][:30]) == (3, "Verdict         may not fit a ")
    done = cli(*SERVE, "vllm", "--device-memory", "12GiB")
    assert done.code == 3
    assert "does not fit" in done.out
    assert cli(*SERVE, "vllm", "--device-memory", "12GiB", "--weights", "awq-int4").code == 0


def test_the_json_has_the_keys_of_every_answer_of_fit(cli: Cli, tmp_path: Path) -> None:
    done = cli(*SERVE, "vllm", *ON, "--json")
    answer = json.loads(done.out)
    assert answer["engine"] == "formula"
    assert answer["server"] == "vllm"
    assert answer["fits"] is True
    assert sum(answer["breakdown"].values()) == answer["process_bytes"][1]
    assert answer["ranges"]["weights"] == [15231233024, 15231233024]
    saved = tmp_path / "answer.json"
    saved.write_text(done.out)
    (read,) = read_answers(str(saved))
    assert read.needed_bytes == answer["needed_bytes"]


def test_several_cards_are_a_table(cli: Cli) -> None:
    done = cli(*SERVE, "vllm", *ON, "--gpu", "T4")
    assert done.code == 0
    assert "Tesla T4" in done.out
    cards = json.loads(cli(*SERVE, "vllm", *ON, "--gpu", "T4", "--json").out)["cards"]
    assert [card["fits"] for card in cards] == [True, False]


def test_a_gguf_file_is_a_model(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    path.write_bytes(small_gguf())
    done = cli("fit", str(path), *ON, "--serve", "--gpu-layers", "1")
    assert done.code == 0
    assert "by its header" in done.out
    path.write_bytes(small_gguf()[:100])
    done = cli("fit", str(path), *ON, "--serve")
    assert done.code == 2
    assert "byte " in done.err


def test_a_folder_of_shards_is_a_model(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(small_safetensors())
    config = {"model_type": "llama", "vocab_size": 64, "hidden_size": 8, "intermediate_size": 16}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = cli("fit", str(tmp_path), *ON, "--server", "vllm", "--json")
    answer = json.loads(done.out)
    assert answer["weights"] == {"format": "as in the files", "bytes": 1184}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--weights", "bf16"), "--weights needs --server ENGINE"),
        (("--server", "vllm", "--optimizer", "sgd"), "--optimizer has no effect with --server"),
        (("--server", "vllm", "--weights", "int3"), "not a known format"),
        (("--server", "llama.cpp", "--weights", "awq-int4"), "reads GGUF types"),
        (("--server", "transformers", "--weights", "Q4_K_M"), "expected bf16"),
        (("--server", "vllm", "--gpu-layers", "3"), "has an effect with llama.cpp"),
        (
            ("--server", "transformers", "--kv-cache-type", "fp8"),
            "whose cache has the model's type",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(cli: Cli, words: tuple[str, ...], said: str) -> None:
    done = cli("fit", "gpt2", *ON, *words)
    assert done.code == 2
    assert said in done.err


def test_an_image_model_is_not_served(cli: Cli) -> None:
    done = cli("fit", "ResNet-50", *ON, "--server", "vllm")
    assert done.code == 2
    assert "not a language model" in done.err


@pytest.mark.parametrize("server", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "ollama"])
def test_an_answer_is_one_screen(cli: Cli, server: str) -> None:
    words = ("fit", "Qwen2.5-32B", "--serve", "--server", server, "--gpu", "H100")
    cards = () if server in ("llama.cpp", "ollama") else ("--tensor-parallel", "4")
    done = cli(*words, *cards, "--prompt", "4000", "--decode", "500", "--batch", "8")
    assert len(done.out.splitlines()) <= 22
    assert len(cli(*words, *cards, "-v").out.splitlines()) > 15


def test_the_largest_safe_fraction_and_a_command_are_named(cli: Cli) -> None:
    done = cli(*SERVE, "vllm", *ON)
    assert "Largest safe    --gpu-memory-utilization 0.9" in done.out
    assert "To paste        vllm serve Qwen/Qwen2.5-7B --gpu-memory-utilization 0.9" in done.out
    answer = json.loads(cli(*SERVE, "vllm", *ON, "--json").out)
    assert answer["largest"]["option"] == "--gpu-memory-utilization"
    low, high = answer["largest"]["room_tokens"]
    assert answer["room_tokens"][0] < low < high
    assert answer["largest"]["longest_request"] <= low


@pytest.mark.parametrize(
    ("server", "option", "model"),
    [("vllm", "--gpu-memory-utilization 0.98", "Qwen3-8B"),
     ("sglang", "--mem-fraction-static 0.9 --quantization fp8", "Qwen3-8B")],
)  # fmt: skip
def test_fraction_above_the_largest_safe_one_is_neither_certain_nor_pasted(
    cli: Cli, server: str, option: str, model: str
) -> None:
    words = ("fit", model, "--server", server, "--gpu", "3090", "--server-args", option)
    found = json.loads(cli(*words, "--json").out)
    name, given = option.split()[:2]
    assert found["largest"]["value"] < float(given)
    assert found["paste"].startswith(f"{name} {found['largest']['value']:g} ")
    assert (found["fits"], found["may_fit"]) == (False, True)
    done = cli(*words)
    assert done.code == 3
    assert "is above the largest safe value" in " ".join(done.out.split())


@pytest.mark.parametrize("model", ["gpt-oss-20b", "gemma-3-12b", "Qwen2.5-7B"])
def test_the_largest_safe_fraction_has_no_less_room_than_a_smaller_one(
    cli: Cli, model: str
) -> None:
    found = json.loads(cli("fit", model, "--server", "vllm", "--gpu", "5090", "--json").out)
    largest = found["largest"]
    assert largest["value"] > 0.92
    assert all(
        before <= after
        for before, after in zip(found["room_tokens"], largest["room_tokens"], strict=True)
    )
    args = f"--gpu-memory-utilization {largest['value']} {largest['beside']}"
    words = ("fit", model, "--server", "vllm", "--gpu", "5090", "--server-args", args)
    assert json.loads(cli(*words, "--json").out)["room_tokens"] == largest["room_tokens"]


def test_work_that_does_not_fit_for_certain_has_no_line_to_paste(cli: Cli) -> None:
    done = cli(*SERVE, "vllm", "--gpu", "T4")
    assert "To paste        nothing: this work does not fit for certain" in done.out


@pytest.mark.parametrize(
    ("model", "source"),
    [
        ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "-hf {}:Q5_K_M"),
        ("Qwen2.5-7B", "-m Qwen2.5-7B-Q5_K_M.gguf"),
    ],
)
def test_llama_server_is_given_a_file_or_a_repository_of_gguf_files(
    cli: Cli, model: str, source: str
) -> None:
    done = cli("fit", model, "--server", "llama.cpp", "--weights", "Q5_K_M", *ON)
    assert f"To paste llama-server {source.format(model)} -ngl" in " ".join(done.out.split())


def test_llama_server_is_given_the_file_of_the_log(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "load_tensors:        CUDA0 model buffer size =  4403.50 MiB\n"
        "common_init_from_params: failed to create context with model '/models/a b.gguf'\n"
        "llama_model_loader: loaded meta data with 35 key-value pairs and 579 tensors from "
        "/models/llama.gguf (version GGUF V3 (latest))\n"
    )
    done = cli("fit", "Llama-3-8B", "--server", "llama.cpp", *ON, "--log", str(log))
    assert "To paste llama-server -m /models/llama.gguf -ngl" in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--server-args", "--enable-lora"), "'--enable-lora' may change the memory"),
        (("--server-args", "-tp 2", "--tensor-parallel", "4"), "--tensor-parallel 4 contradicts 2"),
        (("--server-args", "-q fp8", "--weights", "nf4"), "--weights contradicts"),
        (("--server-version", "newest"), "release 'newest' is not known"),
    ],
)
def test_server_options_without_effect_are_refused(
    cli: Cli, words: tuple[str, ...], said: str
) -> None:
    done = cli(*SERVE, "vllm", *ON, *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err.replace("\n", " ")


def test_a_search_with_a_formula_names_the_row_of_the_answer(cli: Cli) -> None:
    for size in ("max-model-len", "batch"):
        done = cli(*SERVE, "vllm", *ON, "--find", size)
        assert (done.code, done.out) == (2, "")
        said = " ".join(done.err.split())
        assert "--find needs --engine program" in said
        assert "row Largest safe gives the longest request" in said


@pytest.mark.parametrize("gpu", ["a100", "v100"])
def test_an_answer_tells_which_of_several_cards_it_is_for(cli: Cli, gpu: str) -> None:
    said = f"card: '{gpu}' is taken as {gpu.upper()}"
    for words in ((*SERVE, "vllm"), ("fit", "gpt2"), ("fit", "gpt2", "--engine", "formula")):
        assert said in " ".join(cli(*words, "--gpu", gpu).out.split())
        notes = json.loads(cli(*words, "--gpu", gpu, "--json").out)["notes"]
        assert any(note.startswith(said) or f"; {said}" in note for note in notes)


def test_a_table_of_cards_has_the_notes_on_names(cli: Cli) -> None:
    words = ("fit", "Qwen3-14B-W4A16", "--server", "vllm", "--gpu", "a100", "--gpu", "H100")
    said = " ".join(cli(*words).out.split())
    assert "card: 'a100' is taken as A100 40GB" in said
    assert "groups of 128 elements" in said


@pytest.mark.parametrize("words", [("--server-version", "0.5"), ("--offline",)])
def test_options_of_vllm_are_refused_for_other_servers(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli(*SERVE, "sglang", *ON, *words)
    assert (done.code, done.out) == (2, "")
    assert f"{words[0]} has an effect with vllm only" in done.err


def test_server_options_change_the_answer(cli: Cli) -> None:
    words = ("--server-args", "--gpu-memory-utilization 0.8 --max-num-seqs 4 --enforce-eager")
    answer = json.loads(cli(*SERVE, "vllm", *ON, *words, "--json").out)
    assert answer["ranges"]["CUDA graphs"] == [0, 0]
    assert "--gpu-memory-utilization 0.80 " in answer["paste"]
    assert answer["paste"].endswith("--max-num-seqs 4 --enforce-eager")


@pytest.mark.parametrize("server", ["vllm", "sglang", "llama.cpp"])
def test_the_answer_for_every_preset_is_one_screen(server: str) -> None:
    shown = 0
    for name in CONFIGURATIONS:
        for gpu in (find_gpu("H100"), Gpu("a small card", 1 << 30)):
            try:
                found = serve(held_of(name, server), server, gpu, batch=8, prompt=400)
            except ConfigError as error:
                refusals = ("answers no prompts", "linear attention", "has no encoder")
                assert any(text in str(error) for text in refusals)
                continue
            lines = str(fit_served.screen([found])).splitlines()
            assert len(lines) <= 22
            assert max(map(len, lines)) <= 80
            shown += 1
    assert shown > 150


@pytest.mark.parametrize("words", ["Qwen2.5-7B --server vllm", "Qwen2.5-7B --plan"])
def test_fit_by_formula_loads_neither_numpy_nor_laws(words: str) -> None:
    arguments = ["fit", *words.split(), "--gpu", "H100"]
    program = f"from allocsim.cli import main; main({arguments}); import sys; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(ran.stdout.splitlines()[-1].split())
    assert "allocsim.fitting.serving" in loaded or "allocsim.fitting.parallel" in loaded
    others = {"allocsim.fitting.laws", "allocsim.phantom.recorder", "allocsim.phantom.build"}
    assert not loaded & {"numpy", "fractions", *others}
