"""Names of models, and impossible configurations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from allocsim.errors import ConfigError
from allocsim.fitting import CONFIGURATIONS, TORCHVISION, model_of
from allocsim.fitting.model import Classifier, Configured, UserModel


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("gpt2", "gpt2"),
        ("openai-community/gpt2", "gpt2"),
        ("Llama-3.2-1B", "Llama-3.2-1B"),
        ("meta-llama/Llama-3.2-1B-Instruct", "Llama-3.2-1B"),
        ("meta-llama/Meta-Llama-3-8B", "Llama-3-8B"),
        ("llama-3.1-8b", "Llama-3.1-8B"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B"),
        ("qwen2.5-0.5b", "Qwen2.5-0.5B"),
        ("mistralai/Mistral-7B-v0.3", "Mistral-7B-v0.3"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B"),
        ("google/gemma-2-2b-it", "Gemma-2-2B"),
        ("microsoft/Phi-3-mini-4k-instruct", "Phi-3-mini"),
        ("bert-base-uncased", "BERT-base"),
        ("ViT-B/16", "ViT-B/16"),
        ("vit_b_16", "ViT-B/16"),
        ("resnet50", "ResNet-50"),
        ("ResNet-50", "ResNet-50"),
    ],
)
def test_model_of_accepts_the_usual_names(said: str, meant: str) -> None:
    assert model_of(said).name == meant


def test_a_name_is_looked_up_without_formulas() -> None:
    program = "from allocsim.fitting.model import model_of; model_of('FLUX.1-dev'); import sys; "
    ran = subprocess.run(
        [sys.executable, "-c", f"{program}print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not {"allocsim.core", "allocsim.fitting.formulas"} & set(ran.stdout.split())


def test_model_of_finds_every_preset_by_its_name() -> None:
    for name in (*CONFIGURATIONS, *TORCHVISION):
        assert model_of(name).name == name


PARAMETERS = {
    "gpt2": 124_439_808,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-7B": 7_615_616_512,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Mixtral-8x7B": 46_702_792_704,
    "Gemma-2-2B": 2_614_341_888,
    "Phi-3-mini": 3_821_079_552,
}
"""Numbers of parameters by the publishers or the safetensors index of the weights."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_preset_has_as_many_parameters_as_the_model(name: str) -> None:
    """The parameters are counted from the configuration, matrix by matrix."""
    model = model_of(name)
    assert isinstance(model, Configured)
    assert counted(model) == PARAMETERS[name]


def counted(model: Configured) -> int:
    config: dict[str, int] = dict(model.config)
    kind = model.config["model_type"]
    if kind == "gpt2":
        width, layers = config["n_embd"], config["n_layer"]
        block = 12 * width**2 + 13 * width
        return (config["vocab_size"] + config["n_positions"]) * width + layers * block + 2 * width
    width, inner, layers = (model.size(what) or 0 for what in ("width", "inner", "layers"))
    heads, kv = model.size("heads") or 0, model.size("kv_heads") or 0
    head = model.size("head") or width // heads
    attention = 2 * width * heads * head + 2 * width * kv * head
    if kind == "qwen2":
        attention += (heads + 2 * kv) * head  # biases of query, key and value
    experts = model.size("experts") or 1
    feed = 3 * width * inner * experts + (width * experts if experts > 1 else 0)
    norms = 4 if kind == "gemma2" else 2
    tied = config.get("tie_word_embeddings", False)
    embeddings = config["vocab_size"] * width * (1 if tied else 2)
    return embeddings + layers * (attention + feed + norms * width) + width


def test_head_follows_from_the_model_type() -> None:
    assert model_of("resnet50") == Classifier("ResNet-50", "resnet50")
    assert model_of("my.models:build") == UserModel("my.models:build", "my.models", "build")
    bert, llama = model_of("BERT-base"), model_of("Llama-3-8B")
    assert isinstance(bert, Configured)
    assert isinstance(llama, Configured)
    assert (bert.head, llama.head) == ("AutoModelForMaskedLM", "AutoModelForCausalLM")


def test_model_of_reads_a_configuration_from_file_or_folder(tmp_path: Path) -> None:
    config = {**CONFIGURATIONS["gpt2"], "architectures": ["GPT2LMHeadModel"]}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    for said in (file, tmp_path):
        model = model_of(str(said))
        assert isinstance(model, Configured)
        assert (model.config, model.path, model.head) == (config, str(file), "AutoModelForCausalLM")


@pytest.mark.parametrize(
    ("config", "head"),
    [
        (
            {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]},
            "AutoModelForCausalLM",
        ),
        (
            {"model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"]},
            "AutoModelForCausalLM",
        ),
        (
            {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
            "AutoModelForSeq2SeqLM",
        ),
        (
            {
                "model_type": "blenderbot",
                "architectures": ["BlenderbotForConditionalGeneration"],
                "is_encoder_decoder": True,
            },
            "AutoModelForSeq2SeqLM",
        ),
    ],
)
def test_only_a_model_with_an_encoder_of_text_has_the_class_for_translation(
    tmp_path: Path, config: dict[str, object], head: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = model_of(str(tmp_path))
    assert isinstance(model, Configured)
    assert model.head == head


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_attention_heads": 7}, "7 heads do not divide the width 4096"),
        ({"num_key_value_heads": 5}, "5 key and value heads do not divide 32 heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; expected a whole number, 1 or more"),
        ({"hidden_size": "big"}, "hidden_size is 'big'; expected a whole number"),
        ({"vocab_size": 1 << 40}, "vocab_size is 1099511627776; expected a whole number"),
        ({"hidden_size": None}, "hidden_size is null; expected a whole number"),
        ({"num_hidden_layers": 10**9}, "1,000,000,000 layers are too many; expected 1 to 10,000"),
        ({"pad_token_id": 128_256}, "pad_token_id is 128256; expected less than vocab_size"),
        ({"hidden_sizes": 64}, "there is no hidden_sizes; did you mean"),
        ({"num_local_experts": 2, "num_experts_per_tok": 4}, "cannot choose 4 of 2 experts"),
        ({"model_type": None}, "names no model_type"),
    ],
)
def test_model_of_refuses_an_impossible_configuration(
    tmp_path: Path, change: dict[str, object], sentence: str
) -> None:
    config = {**CONFIGURATIONS["Llama-3-8B"], **change}
    if "hidden_sizes" in change:
        del config["hidden_size"]
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=sentence) as raised:
        model_of(str(file))
    assert str(file) in str(raised.value)


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000, "\x00"])
def test_model_of_refuses_a_file_that_is_no_configuration(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        model_of(str(file))


def test_model_of_suggests_a_similar_name() -> None:
    with pytest.raises(ConfigError, match=r"not a known model.*did you mean Qwen2\.5-7B"):
        model_of("Qwen2.5-7BB")
    with pytest.raises(ConfigError, match="cannot be read"):
        model_of("nowhere/config.json")
