"""Names of models: every preset's parameters, hub names, and suggestions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allocsim.errors import ConfigError
from allocsim.fitting import (
    CONFIGURATIONS,
    TORCHVISION,
    Task,
    estimate,
    held_of,
    model_of,
    serve,
    shape_of,
)
from allocsim.fitting.formulas import parameters_of, shapes_of, sizes_of, weights_of
from allocsim.fitting.notes import notes_of
from allocsim.fitting.presets import PRESETS, find_preset, near_presets
from allocsim.fitting.published import UNSLOTH_NOTE, published_format
from allocsim.fitting.serving import SERVERS
from allocsim.fitting.task import EXPERTS_IN_32_BITS
from allocsim.phantom import find_gpu

TYPES = {name: row["config"]["model_type"] for name, row in PRESETS.items()}
DESCRIBED = [name for name, kind in TYPES.items() if kind != "bert"]
WITH_ENCODER = [name for name, kind in TYPES.items() if kind in ("t5", "whisper")]
DECODERS = [name for name in DESCRIBED if name not in WITH_ENCODER]

POPULAR = {
    "meta-llama/Llama-3.1-8B-Instruct": "Llama-3.1-8B",
    "meta-llama/Meta-Llama-3.1-70B-Instruct": "Llama-3.1-70B",
    "meta-llama/Llama-3.1-405B-Instruct-FP8": "Llama-3.1-405B",
    "meta-llama/Llama-3.2-1B-Instruct": "Llama-3.2-1B",
    "meta-llama/Llama-3.2-3B-Instruct": "Llama-3.2-3B",
    "meta-llama/Llama-3.3-70B-Instruct": "Llama-3.3-70B",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "Llama-4-Scout-17B-16E",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8": "Llama-4-Maverick-17B-128E",
    "meta-llama/Llama-3.2-11B-Vision": "Llama-3.2-11B-Vision",
    "codellama/CodeLlama-34b-Instruct-hf": "CodeLlama-34B",
    "deepseek-ai/DeepSeek-V2-Chat-0628": "DeepSeek-V2",
    "deepseek-ai/DeepSeek-Coder-V2-Instruct-0724": "DeepSeek-V2",
    "deepseek-ai/DeepSeek-V2-Lite-Chat": "DeepSeek-V2-Lite",
    "deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct": "DeepSeek-V2-Lite",
    "deepseek-ai/DeepSeek-V3-0324": "DeepSeek-V3",
    "deepseek-ai/DeepSeek-R1": "DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.1-Terminus": "DeepSeek-V3",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": "Llama-3.1-8B",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": "Llama-3.1-70B",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": "DeepSeek-R1-Distill-Qwen-1.5B",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": "Qwen2.5-7B",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": "Qwen2.5-14B",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": "Qwen2.5-32B",
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": "Qwen3-8B",
    "Qwen/Qwen2.5-7B-Instruct-AWQ": "Qwen2.5-7B",
    "Qwen/Qwen2.5-Coder-7B-Instruct": "Qwen2.5-7B",
    "Qwen/Qwen2.5-Coder-32B-Instruct": "Qwen2.5-32B",
    "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4": "Qwen2.5-72B",
    "Qwen/QwQ-32B": "Qwen2.5-32B",
    "Qwen/Qwen3-0.6B": "Qwen3-0.6B",
    "Qwen/Qwen3-4B": "Qwen3-4B",
    "Qwen/Qwen3-4B-Instruct-2507": "Qwen3-4B-2507",
    "Qwen/Qwen3-8B": "Qwen3-8B",
    "Qwen/Qwen3-14B-AWQ": "Qwen3-14B",
    "Qwen/Qwen3-32B": "Qwen3-32B",
    "Qwen/Qwen3-30B-A3B": "Qwen3-30B-A3B",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "Qwen3-30B-A3B-2507",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "Qwen3-30B-A3B-2507",
    "Qwen/Qwen3-235B-A22B": "Qwen3-235B-A22B",
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": "Qwen3-Coder-480B-A35B",
    "Qwen/Qwen3-VL-8B-Instruct": "Qwen3-VL-8B",
    "Qwen/Qwen3-VL-30B-A3B-Instruct-FP8": "Qwen3-VL-30B-A3B",
    "Qwen/Qwen2.5-VL-7B-Instruct": "Qwen2.5-VL-7B",
    "Qwen/Qwen3.5-9B": "Qwen3.5-9B",
    "Qwen/Qwen3.5-397B-A17B": "Qwen3.5-397B-A17B",
    "Qwen/Qwen3.6-27B": "Qwen3.5-27B",
    "mistralai/Mistral-7B-Instruct-v0.3": "Mistral-7B-v0.3",
    "mistralai/Mistral-Nemo-Instruct-2407": "Mistral-Nemo",
    "mistralai/Mistral-Small-24B-Instruct-2501": "Mistral-Small-24B",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": "Mistral-Small-3.1-24B",
    "mistralai/Devstral-Small-2507": "Devstral-Small",
    "mistralai/Magistral-Small-2506": "Devstral-Small",
    "mistralai/Mistral-Large-Instruct-2411": "Mistral-Large",
    "mistralai/Mixtral-8x22B-Instruct-v0.1": "Mixtral-8x22B",
    "google/gemma-7b-it": "Gemma-7B",
    "google/gemma-2-9b-it": "Gemma-2-9B",
    "google/gemma-3-1b-it": "Gemma-3-1B",
    "google/gemma-3-4b-it": "Gemma-3-4B",
    "google/gemma-3-12b-it": "Gemma-3-12B",
    "google/gemma-3-27b-it": "Gemma-3-27B",
    "microsoft/phi-2": "Phi-2",
    "microsoft/Phi-3.5-mini-instruct": "Phi-3.5-mini",
    "microsoft/phi-4": "Phi-4",
    "microsoft/Phi-4-mini-instruct": "Phi-4-mini",
    "openai/gpt-oss-20b": "gpt-oss-20b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "HuggingFaceTB/SmolLM3-3B": "SmolLM3-3B",
    "allenai/OLMo-2-1124-7B-Instruct": "OLMo-2-7B",
    "ibm-granite/granite-3.3-8b-instruct": "Granite-3.3-8B",
    "zai-org/GLM-4-9B-0414": "GLM-4-9B-0414",
    "moonshotai/Kimi-K2-Instruct": "Kimi-K2",
    "tiiuae/Falcon3-7B-Instruct": "Falcon3-7B",
    "01-ai/Yi-1.5-34B-Chat": "Yi-34B",
    "bigcode/starcoder2-7b": "StarCoder2-7B",
    "zai-org/GLM-4.5": "GLM-4.5",
    "zai-org/GLM-4.5-Air": "GLM-4.5-Air",
    "zai-org/GLM-4.6-FP8": "GLM-4.6",
    "mistralai/Ministral-8B-Instruct-2410": "Ministral-8B",
    "MiniMaxAI/MiniMax-M2": "MiniMax-M2",
    "deepseek-ai/DeepSeek-V3.2-Exp": "DeepSeek-V3.2",
    "Qwen/Qwen3-Next-80B-A3B-Instruct": "Qwen3-Next-80B-A3B",
    "CohereLabs/c4ai-command-r-v01": "Command-R",
    "CohereLabs/c4ai-command-r7b-12-2024": "Command-R7B",
    "google/gemma-3n-E2B-it": "Gemma-3n-E2B",
    "unsloth/gemma-3n-E4B-it": "Gemma-3n-E4B",
    "google/gemma-4-E2B-it": "Gemma-4-E2B",
    "google/gemma-4-E4B-it": "Gemma-4-E4B",
    "google/gemma-4-12B-it": "Gemma-4-12B",
    "google/gemma-4-26B-A4B-it": "Gemma-4-26B-A4B",
    "RedHatAI/gemma-4-26B-A4B-it-NVFP4": "Gemma-4-26B-A4B",
    "google/gemma-4-31B-it": "Gemma-4-31B",
    "poolside/Laguna-S-2.1-INT4": "Laguna-S-2.1",
    "zai-org/GLM-4-32B-0414": "GLM-4-32B-0414",
    "mistralai/Devstral-Small-2-24B-Instruct-2512": "Devstral-Small-2-24B",
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": "Nemotron-Nano-9B-v2",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8": "Nemotron-3-Nano-30B-A3B",
    "nvidia/Nemotron-H-8B-Base-8K": "Nemotron-H-8B",
    "NousResearch/Hermes-3-Llama-3.1-8B": "Llama-3.1-8B",
}
"""Much used names of the Hugging Face hub from 2024 to 2026, with their presets."""


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_preset_has_exactly_the_published_parameters(name: str) -> None:
    row = PRESETS[name]
    assert parameters_of(shapes_of(sizes_of(row["config"]))) == row["parameters"]
    assert "/" in row["hub"]
    assert row["read"]


COUNTED = {
    "google-t5/t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "google-t5/t5-large": 737_668_096,
    "google-t5/t5-3b": 2_851_598_336,
    "google/flan-t5-small": 76_961_152,
    "google/flan-t5-base": 247_577_856,
    "google/t5-v1_1-large": 783_150_080,
    "google/flan-t5-xl": 2_849_757_184,
    "google/flan-t5-xxl": 11_135_332_352,
    "openai/whisper-tiny": 37_760_640,
    "openai/whisper-base": 72_593_920,
    "openai/whisper-small": 241_734_912,
    "openai/whisper-medium": 763_857_920,
    "openai/whisper-large": 1_543_304_960,
    "openai/whisper-large-v2": 1_543_304_960,
    "openai/whisper-large-v3": 1_543_490_560,
    "openai/whisper-large-v3-turbo": 808_878_080,
    "openai/whisper-tiny.en": 37_760_256,
}
"""Parameters that transformers counts, of T5 1.1 and Flan-T5 with the output layer of the files."""


@pytest.mark.parametrize("name", COUNTED)
def test_a_preset_with_an_encoder_has_the_parameters_that_transformers_counts(name: str) -> None:
    preset = find_preset(name)
    assert preset in WITH_ENCODER
    assert parameters_of(shapes_of(sizes_of(CONFIGURATIONS[preset]))) == COUNTED[name]


@pytest.mark.parametrize("server", [name for name in SERVERS if name != "transformers"])
@pytest.mark.parametrize("name", ["t5-small", "openai/whisper-tiny"])
def test_a_model_with_an_encoder_is_refused_by_formulas_of_servers(name: str, server: str) -> None:
    with pytest.raises(ConfigError, match=f"{server} has no encoder.*--server transformers"):
        held_of(name, server)


VISION = 416_866_032
"""Parameters of the image encoder of Gemma 3 from 4B on."""

IN_FILES = {
    "Llama-2-7B": (6_738_417_664, 32 * 64),
    "Moonlight-16B-A3B": (15_960_111_936, 27 * 64),
    "Llama-3.2-11B-Vision": (10_670_220_835, 895_028_755),
    "Llama-4-Scout-17B-16E": (108_641_793_536, 871_932_416),
    "Llama-4-Maverick-17B-128E": (401_583_781_376, 871_932_416),
    "Gemma-3-4B": (4_300_079_472, VISION + 1152 * 2560 + 1152),
    "Gemma-3-12B": (12_187_325_040, VISION + 1152 * 3840 + 1152),
    "Gemma-3-27B": (27_432_406_640, VISION + 1152 * 5376 + 1152),
    "Qwen2.5-VL-3B": (3_754_622_976, 668_684_288),
    "Qwen2.5-VL-7B": (8_292_166_656, 676_550_144),
    "Qwen2.5-VL-32B": (33_452_718_336, 688_841_984),
    "Qwen2.5-VL-72B": (73_410_777_344, 704_573_696),
    "Qwen3-VL-2B": (2_127_532_032, 406_957_056),
    "Qwen3-VL-4B": (4_437_815_808, 415_347_712),
    "Qwen3-VL-8B": (8_767_123_696, 576_388_336),
    "Qwen3-VL-32B": (33_357_390_064, 595_266_800),
    "Qwen3-VL-30B-A3B": (31_070_754_032, 538_631_408),
    "Qwen3-VL-235B-A22B": (235_670_022_896, 576_388_336),
    "Qwen3.5-4B": (4_539_265_536, 333_514_240),
    "Qwen3.5-9B": (9_409_813_744, 456_010_480),
    "Mistral-Small-3.1-24B": (24_011_361_280, 438_958_080),
    "Ministral-8B": (8_019_808_256, 0),
}
"""Elements of the hub's files, and those of rotary buffers or of the image encoder.

The encoders of Qwen and Mistral, and all of Llama 3.2 Vision, were counted in the models of
transformers 5.23.
"""


@pytest.mark.parametrize("name", IN_FILES)
def test_a_preset_has_the_elements_of_the_files_without_other_parts(name: str) -> None:
    elements, others = IN_FILES[name]
    assert PRESETS[name]["parameters"] == elements - others


@pytest.mark.parametrize(
    ("name", "elements"), [("gpt-oss-20b", 21_511_953_984), ("gpt-oss-120b", 120_412_337_472)]
)
def test_mxfp4_experts_have_the_scales_of_the_files(name: str, elements: int) -> None:
    sizes = sizes_of(CONFIGURATIONS[name])
    tensors = weights_of(shapes_of(sizes), "mxfp4", sizes).tensors
    assert sum(each.shape.elements + each.scales for each in tensors) == elements


def test_fp8_blocks_of_deepseek_v3_have_the_scales_of_the_files() -> None:
    """The files also have a layer that predicts a second token, with an embedding and a head."""
    sizes = sizes_of(CONFIGURATIONS["DeepSeek-V3"])
    tensors = weights_of(shapes_of(sizes), "fp8-blocks", sizes).tensors
    each = [(tensor.shape.layer, tensor.shape.elements + tensor.scales // 4) for tensor in tensors]
    second = sum(size for layer, size in each if layer == 60)
    second += 2 * (sizes.vocabulary + sizes.width) * sizes.width + 3 * sizes.width
    assert sum(size for _, size in each) + second == 684_531_386_000


def test_glm_4_5_air_has_the_elements_of_the_files() -> None:
    """The files also have a layer that predicts a second token, with an embedding and a head."""
    sizes = sizes_of(CONFIGURATIONS["GLM-4.5-Air"])
    shapes = shapes_of(sizes)
    second = parameters_of(each for each in shapes if each.layer == sizes.layers - 1)
    second += 2 * (sizes.vocabulary + sizes.width) * sizes.width + 3 * sizes.width
    assert parameters_of(shapes) + second == 110_468_824_832


@pytest.mark.parametrize("name", [name for name in IN_FILES if "encoder" in PRESETS[name]])
def test_the_encoder_of_images_has_the_other_elements_of_the_files(name: str) -> None:
    assert PRESETS[name]["encoder"] == IN_FILES[name][1]


SERVED = ("Nemotron", "Llama-3.2-11B-Vision", "Gemma-3n")


@pytest.mark.parametrize("name", [name for name in DECODERS if name.startswith(SERVED)])
def test_training_of_some_types_has_no_formula(name: str) -> None:
    with pytest.raises(ConfigError, match="by the formulas of serving, and not"):
        shape_of(model_of(name))


@pytest.mark.parametrize("server", SERVERS)
def test_an_encoder_is_not_served(server: str) -> None:
    with pytest.raises(ConfigError, match="ModernBERT-base answers no prompts"):
        held_of("answerdotai/ModernBERT-base", server)


@pytest.mark.parametrize("name", [name for name in DESCRIBED if not name.startswith(SERVED)])
def test_shape_of_has_the_parameters_of_the_tensors(name: str) -> None:
    said = shape_of(model_of(name)).parameters
    assert said == pytest.approx(PRESETS[name]["parameters"], rel=2e-5)


@pytest.mark.parametrize(("said", "meant"), POPULAR.items())
def test_a_hub_name_means_its_preset(said: str, meant: str) -> None:
    assert find_preset(said) == meant


@pytest.mark.parametrize("name", POPULAR)
def test_a_hub_name_is_answered_by_formula(name: str) -> None:
    served = serve(held_of(name, "vllm"), "vllm", find_gpu("H200"), decode=8)
    assert 0 < served.needs.low <= served.needs.high


def test_no_two_presets_have_a_name_in_common() -> None:
    for name, row in PRESETS.items():
        for other in (row["hub"], *row.get("names", ())):
            assert find_preset(other) == name, other


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("llama3.2:1b", "Llama-3.2-1B"),
        ("tinyllama", "TinyLlama-1.1B"),
        ("smollm3", "SmolLM3-3B"),
        ("ministral 8b", "Ministral-8B"),
        ("qwen3 coder 30b", "Qwen3-30B-A3B-2507"),
        ("gemma3 27b qat", "Gemma-3-27B"),
        ("llama3.1:8b-instruct-q4_K_M", "Llama-3.1-8B"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "Llama-3.1-8B"),
        ("TheBloke/Llama-2-7B-Chat-GPTQ", "Llama-2-7B"),
        ("lmsys/vicuna-13b-v1.5", "Llama-2-13B"),
        ("bartowski/gemma-3-27b-it-GGUF", "Gemma-3-27B"),
        ("HuggingFaceH4/zephyr-7b-beta", "Mistral-7B-v0.1"),
        ("nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", "Llama-3.1-70B"),
    ],
)
def test_a_converted_or_tuned_model_means_the_preset_of_its_architecture(
    said: str, meant: str
) -> None:
    assert find_preset(said) == meant


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "awq-int4"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "gptq-int8"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "gptq-int4"),
        ("unsloth/Llama-3.2-1B-bnb-4bit", "nf4-double"),
        ("Qwen/Qwen3-8B-FP8", "fp8-blocks"),
        ("neuralmagic/Llama-3.1-8B-Instruct-FP8", "fp8"),
        ("deepseek-ai/DeepSeek-R1", "fp8-blocks"),
        ("openai/gpt-oss-20b", "mxfp4"),
        ("unsloth/gpt-oss-20b-BF16", None),
        ("Qwen/Qwen2.5-7B-Instruct", None),
        ("RedHatAI/gemma-4-26B-A4B-it-NVFP4", "nvfp4"),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16", "gptq-int4"),
        ("RedHatAI/Llama-3.3-70B-Instruct-W4A16", "gptq-int4"),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8", "int8"),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a16", "gptq-int8"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "fp8-rows"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-block", "fp8-blocks"),
        ("poolside/Laguna-S-2.1-INT4", "gptq-int4"),
        ("Intel/Qwen3-14B-int4-AutoRound", "gptq-int4"),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", "nvfp4"),
        ("Qwen3-14B-gptq-4bit", "gptq-int4"),
        ("TheBloke/Llama-2-7B-GPTQ-4bit-32g", "gptq-int4-g32"),
        ("Qwen3-14B-4bit-AWQ", "awq-int4"),
        ("google/gemma-4-12B-it-qat-w4a16-ct", "gptq-int4"),
        ("google/gemma-3-27b-it-qat-q4_0-gguf", "Q4_0"),
        ("google/gemma-3-27b-it-qat-q4_0-unquantized", None),
        ("llama3.1:8b-instruct-q4_K_M", "Q4_K_M"),
        ("my/model", None),
    ],
)
def test_a_name_gives_the_format_of_its_weights(name: str, kind: str | None) -> None:
    assert published_format(name) == kind


@pytest.mark.parametrize(
    ("name", "helps"),
    [
        ("mlx-community/Llama-3.3-70B-Instruct-4bit", "'4bit' .* --weights gptq-int4"),
        ("bartowski/Llama-3.3-70B-Instruct-GGUF", "--weights Q4_K_M; --server llama.cpp"),
        ("Qwen3-14B-4bit", "--weights gptq-int4 or nf4"),
        ("turboderp/Llama-3.1-8B-exl2", "'exl2' in its name has no formula"),
        ("Llama-3.1-8B-int3-gptq", "'int3-gptq' in its name"),
        ("unsloth/Qwen3-14B-UD-Q4_K_XL", "'ud-q4-k-xl' in its name"),
        ("Qwen3-14B-MXFP4", "MXFP4 has a formula for experts only"),
    ],
)
def test_a_quantization_without_a_formula_is_refused(name: str, helps: str) -> None:
    with pytest.raises(ConfigError, match=helps):
        held_of(name, "vllm")


def test_a_group_size_that_the_name_does_not_give_is_noted() -> None:
    for name, count in (("Qwen3-14B-W4A16", 1), ("Qwen3-14B-W4A16-G64", 0), ("Qwen3-14B-GPTQ", 0)):
        served = serve(held_of(name, "vllm"), "vllm", find_gpu("H200"))
        assert sum("groups of 128" in note for note in served.needs.notes) == count


def test_a_dynamic_checkpoint_of_unsloth_is_noted() -> None:
    assert held_of("unsloth/Qwen3-4B-unsloth-bnb-4bit", "vllm").notes == (UNSLOTH_NOTE,)
    assert not held_of("unsloth/Qwen3-4B-bnb-4bit", "vllm").notes


def test_qlora_of_a_mixture_notes_that_its_experts_are_not_quantized() -> None:
    gpu = find_gpu("B200")
    task = Task(model=model_of("Qwen3-30B-A3B"), lora=16, quant="nf4-double", checkpointing=True)
    found = estimate(task, gpu)
    assert EXPERTS_IN_32_BITS in found.notes
    assert EXPERTS_IN_32_BITS in notes_of(task, gpu)
    sizes = sizes_of(CONFIGURATIONS["Qwen3-30B-A3B"])
    experts = sum(each.elements for each in shapes_of(sizes) if len(each.dims) == 3)
    assert experts == 48 * 128 * 3 * 2048 * 768
    (weights,) = (part.low for part in found.parts if part.name == "weights")
    assert 4 * experts < weights < 4 * experts + 4 * 2**30
    dense = replace(task, model=model_of("Qwen3-14B"))
    assert EXPERTS_IN_32_BITS not in (*estimate(dense, gpu).notes, *notes_of(dense, gpu))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama3.1:8b-instruct-fp16", "F16"),
        ("unsloth/gpt-oss-20b-BF16", "bf16"),
        ("gemma3:27b-it-qat", "Q4_0"),
        ("llama3.1:8b-instruct-q8_0", "Q8_0"),
        ("llama3.1:8b", "Q4_K_M"),
        ("bartowski/Llama-3.3-70B-Instruct-GGUF:Q5_K_M", "Q5_K_M"),
    ],
)
def test_ollama_has_the_type_that_the_name_gives(name: str, kind: str) -> None:
    held = held_of(name, "ollama")
    assert (held.weights.name, held.notes) == (kind, ())


def test_llama_cpp_names_the_words_that_it_does_not_use() -> None:
    assert "'awq' in the name is not used" in held_of("Qwen3-14B-AWQ", "llama.cpp").notes[0]
    held = held_of("gemma-3-27b-it-qat-q4_0-gguf", "llama.cpp")
    assert held.weights.name == "Q4_0"
    assert not held.notes


def test_a_training_names_the_quantization_that_it_does_not_use() -> None:
    task, gpu = Task(model=model_of("TheBloke/Mistral-7B-Instruct-v0.2-AWQ")), find_gpu("H100")
    assert any("'awq' in the name is not used" in note for note in notes_of(task, gpu))
    assert any("'awq' in the name is not used" in note for note in estimate(task, gpu).notes)
    frozen = replace(task, lora=8, quant="nf4")
    assert not any("in the name" in note for note in notes_of(frozen, gpu))
    plain = replace(task, model=model_of("mistralai/Mistral-7B-Instruct-v0.2"))
    assert not any("in the name" in note for note in notes_of(plain, gpu))


def test_an_image_generator_names_the_quantization_that_it_does_not_use() -> None:
    task, gpu = Task(model=model_of("FLUX.1-dev-fp8"), is_training=False), find_gpu("H100")
    assert (
        estimate(task, gpu).notes[0].startswith("weights: 'fp8' in the name is not used; --quant")
    )
    for other in (replace(task, quant="fp8"), replace(task, model=model_of("FLUX.1-dev"))):
        assert not any("in the name" in note for note in estimate(other, gpu).notes)


def test_a_plus_is_a_part_of_the_name() -> None:
    for name in ("command r+", "CohereForAI/c4ai-command-r-plus", "Command-R+"):
        assert find_preset(name) is None
    assert find_preset("command r") == "Command-R"


def test_a_served_model_has_the_weights_that_its_name_gives() -> None:
    assert held_of("Qwen/Qwen2.5-7B-Instruct-AWQ", "vllm").weights.name == "awq-int4"
    assert held_of("openai/gpt-oss-20b", "vllm").weights.name == "mxfp4"
    assert held_of("openai/gpt-oss-20b", "vllm", "bf16").weights.name == "bf16"
    assert held_of("Qwen/Qwen2.5-7B-Instruct-AWQ", "llama.cpp").weights.name == "Q4_K_M"


@pytest.mark.parametrize(
    ("said", "near"),
    [
        ("openai/gpt-oss-200b", "gpt-oss-20b"),
        ("Qwen/Qwen3-9B", "Qwen3"),
        ("google/gemma-3-5b-it", "Gemma-3-"),
        ("lama-3-8b", "Llama-3-8B"),
        ("deepseek-ai/DeepSeek-V4", "DeepSeek-V"),
    ],
)
def test_suggestions_are_of_the_family_that_is_meant(said: str, near: str) -> None:
    assert near_presets(said)[0].startswith(near)
    with pytest.raises(ConfigError, match=f"did you mean {near}"):
        model_of(said)


def test_a_name_of_no_family_has_no_suggestion() -> None:
    assert near_presets("xyzzy-7b") == ()
    assert near_presets("123") == ()
    assert set(near_presets("resnet51")) <= set(TORCHVISION)
