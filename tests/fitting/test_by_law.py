"""Answers by law compared with runs of real PyTorch at other sizes, and tasks without a law."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allocsim import load, replay
from allocsim.errors import ConfigError, UnavailableError
from allocsim.fitting import (
    CUDNN_NOTE,
    Fit,
    Task,
    fit,
    fit_cards,
    largest,
    model_of,
    program_of,
    run_by_law,
    run_program,
)
from allocsim.fitting.by_law import peak_by_law, why_no_law
from allocsim.fitting.model import Configured
from allocsim.phantom import find_gpu
from benchmarks.drawn import rows as drawn_rows
from benchmarks.truth import gpu_of, rows, task_of, without_cudnn
from tests.pythons import NEEDS_TORCH, pythons_of

LIKE_LLAMA = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads"),
)
MADE_UP = [
    (("llama", True, 61_007, 2304, 6208, 5, 18, 6), 3, 777, "bf16", "adamw", False, "RTX 4090"),
    (("llama", True, 99_999, 1536, 4096, 9, 24, 24), 1, 4000, "bf16", "sgd", False, "H100"),
    (("qwen2", True, 32_003, 1152, 3008, 7, 18, 2), 6, 1024, "bf16", "adamw", False, "L40S"),
    (("qwen2", True, 77_777, 1920, 5312, 4, 15, 5), 2, 1500, "bf16", "adamw-fused", True, "A10G"),
    (("llama", False, 50_000, 640, 1792, 11, 10, 5), 8, 132, "bf16", "adamw", True, "A100 40GB"),
    (("llama", True, 64_000, 1280, 3456, 6, 20, 4), 4, 600, "autocast-bf16", "adamw-fused", False,
     "RTX 3090"),
    (("gemma2", True, 50_000, 1152, 3008, 8, 9, 3), 3, 777, "bf16", "adamw", False, "RTX 4090"),
    (("gemma2", True, 99_999, 1536, 4096, 4, 12, 12), 1, 2504, "bf16", "adamw", False, "H100"),
    (("gemma2", True, 61_007, 1280, 3456, 6, 10, 5), 2, 1500, "bf16", "adamw", True, "A10G"),
    (("gemma2", True, 77_777, 1152, 3008, 4, 9, 9), 5, 300, "autocast-bf16", "adamw", False, "L4"),
    (("gemma2", True, 50_000, 1536, 4096, 8, 12, 4), 1, 3500, "autocast-bf16", "adamw", True,
     "A100 40GB"),
    (("mistral", False, 61_007, 1536, 4096, 5, 12, 4), 3, 777, "autocast-bf16", "adamw", False,
     "RTX 4090"),
    (("mistral", False, 32_003, 1920, 5312, 4, 15, 5), 2, 1600, "autocast-bf16", "adamw", True,
     "L40S"),
    (("qwen2", True, 140_003, 1536, 4096, 5, 12, 4), 2, 700, "bf16", "adafactor", True, "RTX 4090"),
    (("qwen2", False, 150_000, 2048, 5504, 4, 16, 8), 3, 500, "bf16", "adafactor", False, "H100"),
    (("llama", True, 49_152, 576, 1536, 7, 9, 3), 5, 1000, "bf16", "adafactor", False, "RTX 4090"),
    (("llama", False, 32_000, 2048, 5632, 5, 16, 16), 1, 2048, "bf16", "adafactor", False, "L40S"),
    (("llama", True, 48_001, 1792, 4864, 6, 14, 7), 2, 900, "fp32", "adamw", True, "A100 80GB"),
    (("llama", False, 32_000, 1536, 4096, 5, 12, 12), 3, 700, "autocast-bf16", "adamw", False,
     "RTX 4090"),
    (("llama", True, 61_007, 1024, 2816, 6, 16, 8), 4, 600, "bf16", "adamw-foreach-off", False,
     "A10G"),
    (("qwen2", False, 140_003, 1152, 3008, 4, 9, 3), 2, 512, "fp32", "sgd", False, "L40S"),
    (("qwen2", True, 77_777, 1536, 4096, 4, 12, 4), 2, 1200, "autocast-bf16", "adamw-fused", True,
     "H100"),
    (("gpt2", True, 50_257, 1152, 5, 18, 2048), 3, 700, "bf16", "adamw-fused", True, "RTX 3090"),
]  # fmt: skip
"""Models that were not recorded: their sizes, training options and card."""

WITHOUT: dict[str, Any] = {"dtype": "autocast-fp16", "optimizer": "adamw-foreach-off"}
"""Options of GPT-2 without a law."""

LIKE_GPT2 = ("vocab_size", "n_embd", "n_layer", "n_head", "n_positions")
SERVED = [
    (("llama", True, 61_007, 2304, 6208, 5, 18, 6), 3, 250, "bf16", {"decode": 12}, "RTX 4090"),
    (("llama", False, 32_000, 1536, 4096, 7, 12, 12), 1, 777, "fp16", {"decode": 1}, "H100"),
    (("llama", True, 128_256, 1024, 2816, 4, 16, 4), 300, 16, "bf16", {"requests": 1}, "L40S"),
    (("qwen2", True, 151_936, 1152, 3008, 7, 18, 2), 6, 1024, "bf16", {"requests": 3}, "A10G"),
    (("qwen2", False, 140_001, 1920, 5312, 4, 15, 5), 2, 100, "fp32", {"decode": 9}, "RTX 3090"),
    (("llama", True, 99_999, 1280, 3456, 6, 20, 4), 4, 300, "bf16", {"attention": "eager"},
     "A100 80GB"),
    (("gpt2", True, 50_257, 1152, 5, 18, 2048), 5, 250, "fp16", {"decode": 20}, "A100 40GB"),
    (("gemma2", True, 200_003, 1152, 3008, 6, 9, 3), 3, 60, "bf16",
     {"decode": 20, "attention": "eager"}, "RTX 4090"),
    (("gemma2", True, 256_000, 1536, 4096, 4, 12, 12), 1, 90, "bf16",
     {"decode": 6, "requests": 1, "attention": "eager"}, "H100"),
    (("mixtral", False, 61_007, 1152, 1600, 5, 18, 6), 3, 250, "bf16", {"decode": 9}, "RTX 4090"),
    (("mixtral", False, 32_000, 1280, 960, 4, 10, 10), 6, 900, "fp16", {}, "H100"),
]  # fmt: skip
"""Models that were not recorded: their sizes, serving options and card."""


SEEN = [
    ((1000, 768, 3072, 5, 12, 16), 64, "bf16", False, "RTX 4090"),
    ((37, 1152, 4304, 4, 18, 14), 9, "bf16", True, "H100"),
    ((2, 640, 2000, 7, 10, 32), 200, "autocast-bf16", False, "L40S"),
    ((21_843, 1280, 5120, 3, 20, 28), 3, "autocast-bf16", True, "A10G"),
]
"""Vision transformers that were not recorded: kind, width, layers, heads and patch."""

OTHERWISE = [
    ("Mistral-7B-v0.1", "H100", {"seq": 600, "checkpointing": True}),
    ("Phi-3-mini", "A100 80GB", {"batch": 2, "seq": 777}),
    ("Phi-3-mini", "A100 80GB", {"seq": 2504, "checkpointing": True, "start": "made"}),
    ("Phi-3-mini", "H100", {"batch": 2, "seq": 600, "dtype": "autocast-bf16"}),
    ("BERT-base", "RTX 4090", {"batch": 16, "seq": 512}),
    ("BERT-base", "RTX 4090", {"batch": 24, "seq": 256, "checkpointing": True}),
    ("ViT-L/16", "L40S", {"batch": 24}),
    ("ViT-B/32", "RTX 3090", {
        "batch": 100, "dtype": "autocast-bf16", "optimizer": "adamw-fused", "start": "made",
    }),
    ("Qwen2.5-0.5B", "RTX 4090", {"batch": 3, "seq": 700, "attention": "eager"}),
    ("gpt2", "A10G", {
        "batch": 5, "seq": 333, "dtype": "fp32", "optimizer": "adamw-foreach-off", "start": "made",
    }),
    ("gpt2", "RTX 4090", {"batch": 4, "seq": 700, "optimizer": "adafactor"}),
    ("gpt2-medium", "H100", {"batch": 3, "seq": 1024, "optimizer": "adafactor", "start": "made"}),
    ("Llama-3.2-1B", "RTX 4090", {
        "batch": 3, "seq": 1500, "checkpointing": True, "start": "made",
        "lora": 8, "lora_targets": ("v_proj", "q_proj"),
    }),
    ("gpt2", "RTX 4090", {"batch": 4, "seq": 512, "lora": 8}),
    ("gpt2", "RTX 4090", {"batch": 3, "seq": 600, "optimizer": "adamw8bit"}),
    ("Llama-3.2-1B", "L40S", {"seq": 600, "lora": 64, "optimizer": "paged-adamw8bit"}),
    ("gpt2-medium", "A10G", {
        "batch": 2, "seq": 600, "dtype": "fp32", "optimizer": "momentum", "checkpointing": True,
    }),
    ("Llama-3.2-1B", "A100 80GB", {"seq": 1024, "dtype": "fp32", "attention": "eager"}),
    ("Phi-3-mini", "H100", {
        "seq": 904, "dtype": "autocast-bf16", "optimizer": "adamw-fused", "checkpointing": True,
    }),
    ("BERT-base", "RTX 3090", {
        "batch": 24, "seq": 384, "dtype": "autocast-bf16", "checkpointing": True,
    }),
]  # fmt: skip
"""Published models on cards and at sizes that are in no row of the truth."""


def made_up(model_type: str, is_tied: bool, *sizes: int, rope_type: str = "default") -> Configured:
    config = {"model_type": model_type, "tie_word_embeddings": is_tied}
    keys = LIKE_GPT2 if model_type == "gpt2" else LIKE_LLAMA
    more: dict[str, Any] = {}
    if model_type == "gemma2":
        more["sliding_window"] = 64  # 60 tokens do not fill it, 90 do
    if model_type == "mixtral":
        more |= {"num_local_experts": 5, "num_experts_per_tok": 3}
    if model_type != "gpt2":
        more["max_position_embeddings"] = 8192
        more["rope_parameters"] = {"rope_type": rope_type, "rope_theta": 10_000.0}
    config |= dict(zip(keys, sizes, strict=True)) | more
    return Configured("made up", config, "AutoModelForCausalLM")


def seeing(kinds: int, *sizes: int) -> Configured:
    keys = (
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        "patch_size",
    )
    config = {"model_type": "vit", "num_labels": kinds, **dict(zip(keys, sizes, strict=True))}
    return Configured("made up", config, "AutoModelForImageClassification")


WITHOUT_A_LAW = {
    "20251-025": "torchvision-vit_fp32_momentum",
    "20252-000": "mistral_untied_autocast-bf16_sgd_checkpointing_eager",
    "20252-023": "phi3_untied_16-bit_serve",
    "20253-001": "qwen3_tied_fp32_adamw",
}
"""Tasks drawn at random whose programs, or their regimes, were not recorded."""


AS_THE_PROGRAM = {"4090-015": 491_520, "4090-015-clean": 491_520}
"""Bytes that programs allocate less at the peak than real runs (benchmarks/results/truth.txt)."""


def compare(row: dict[str, Any], question: Task) -> None:
    ran = run_by_law(question, gpu_of(row))
    assert ran.engine == "laws"
    less = AS_THE_PROGRAM.get(row["id"], 0)
    assert ran.peak_allocated_bytes == row["peak_allocated"] - less
    assert ran.peak_reserved_bytes == row["peak_reserved"]
    assert ran.is_out_of_memory == ("oom_in_step" in row)


@pytest.mark.parametrize("name", ["a100-003-clean", "a100-003", "4090-021-clean"])
def test_run_by_law_equals_pytorch_to_the_byte_however_the_model_begins(
    name: str, tmp_path: Path
) -> None:
    """Run two trainings, and a serving that runs out of memory."""
    (row,) = [row for row in rows() if row["id"] == name]
    compare(row, task_of(row, tmp_path))


@pytest.mark.parametrize("name", ["20251-009", "20251-020", "20251-032", "chosen-0"])
def test_run_by_law_equals_pytorch_to_the_byte_for_tasks_drawn_at_random(
    name: str, tmp_path: Path
) -> None:
    """Run Adafactor with adapters, a prompt larger than its token, Qwen3 and GLM-4."""
    (row,) = [row for row in drawn_rows() if row["id"] == name]
    compare(row, task_of(row, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("row", drawn_rows(), ids=lambda row: row["id"])
def test_every_drawn_task_is_exact_by_law_or_names_the_program_without_one(
    row: dict[str, Any], tmp_path: Path
) -> None:
    if row["id"] in WITHOUT_A_LAW:
        expected = f"there is no law for {WITHOUT_A_LAW[row['id']]}"
        assert why_no_law(task_of(row, tmp_path), gpu_of(row)).startswith(expected)
    else:
        compare(row, task_of(row, tmp_path))


@pytest.mark.slow
def test_run_by_law_equals_pytorch_to_the_byte_in_every_recorded_row(tmp_path: Path) -> None:
    for row in rows():
        question = task_of(row, tmp_path)
        if not why_no_law(question, gpu_of(row)):
            compare(row, question)


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("case", MADE_UP, ids=str)
def test_run_by_law_of_unrecorded_models_equals_pytorch(case: tuple[Any, ...]) -> None:
    sizes, batch, seq, dtype, optimizer, checkpointing, card = case
    task = Task(
        model=made_up(*sizes),
        batch=batch, seq=seq, dtype=dtype, optimizer=optimizer, checkpointing=checkpointing,
        attention="eager" if sizes[0] == "gemma2" else "sdpa",
    )  # fmt: skip
    is_as_real_pytorch_runs_it(task, card)


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("case", SEEN, ids=str)
def test_run_by_law_of_unrecorded_image_models_equals_pytorch(case: tuple[Any, ...]) -> None:
    sizes, batch, dtype, checkpointing, card = case
    task = Task(model=seeing(*sizes), batch=batch, dtype=dtype, checkpointing=checkpointing)
    is_as_real_pytorch_runs_it(task, card)


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("case", SERVED, ids=str)
def test_serving_by_law_of_unrecorded_models_equals_pytorch(
    case: tuple[Any, ...],
) -> None:
    sizes, batch, prompt, dtype, more, card = case
    more = {"decode": 4, **more}
    task = Task(
        model=made_up(*sizes), is_training=False, batch=batch, prompt=prompt, dtype=dtype, **more
    )
    is_as_real_pytorch_runs_it(task, card)


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize(("name", "card", "options"), OTHERWISE)
def test_run_by_law_with_other_options_equals_pytorch(
    name: str, card: str, options: dict[str, Any]
) -> None:
    is_as_real_pytorch_runs_it(Task(model=model_of(name), **{"seq": 1, **options}), card)


def is_as_real_pytorch_runs_it(task: Task, card: str) -> None:
    gpu = find_gpu(card)
    for python in pythons_of("2.15"):
        law = run_by_law(task, gpu)
        text = without_cudnn(program_of(task))
        program = run_program(text, gpu, python=python, values=False)
        assert law.peak_allocated_bytes == program.peak_allocated_bytes
        assert law.peak_reserved_bytes == program.peak_reserved_bytes
        assert law.is_out_of_memory == program.is_out_of_memory


@pytest.mark.parametrize(
    ("name", "options", "reserved", "allocated"),
    [
        ("gpt2", {"batch": 1, "seq": 256}, 1_082_130_432, 924_488_704),
        ("gpt2", {"batch": 4, "seq": 700}, 4_041_211_904, 3_817_661_952),
        ("Llama-3.2-1B", {"seq": 512, "lora": 16}, 4_823_449_600, 4_625_477_632),
    ],
)
def test_8_bit_adamw_reserves_what_it_did_with_bitsandbytes(
    name: str, options: dict[str, Any], reserved: int, allocated: int
) -> None:
    """The peaks are of runs of bitsandbytes 0.50.2 over a phantom GPU."""
    task = Task(model=model_of(name), optimizer="adamw8bit", **options)
    ran = run_by_law(task, find_gpu("RTX 4090"))
    assert (ran.peak_reserved_bytes, ran.peak_allocated_bytes) == (reserved, allocated)


def test_paged_optimizer_keeps_only_large_states_out_of_the_allocator() -> None:
    plain, paged = (
        run_by_law(Task(model=model_of("gpt2"), seq=256, optimizer=each), find_gpu("L4"))
        for each in ("adamw8bit", "paged-adamw8bit")
    )
    large = 124_439_808 - 121_344  # vectors have fewer than 100,000 elements
    assert plain.peak_allocated_bytes - paged.peak_allocated_bytes == pytest.approx(2 * large, 0.01)


def gpt2(**options: Any) -> Task:
    return Task(model=model_of("gpt2"), **{"dtype": "bf16", **options})


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        (gpt2(is_training=False, prompt=64, attention="flash"), "there is no law for attention 'f"),
        (gpt2(is_training=False, lengths=(9, 12)), "there is no law for lengths (9, 12)"),
        (gpt2(attention="flash"), "there is no law for attention 'flash'"),
        (
            Task(model=model_of("ViT-B/16"), image=384),
            "there is no law for channels last, or images of 384 pixels",
        ),
        (
            gpt2(lora=8, lora_targets=("c_attn", "lm_head")),
            "there is no law for gpt2_tied_bf16_adamw_lora-c_attn-lm_head; the nearest is for ",
        ),
        (
            gpt2(**WITHOUT),
            "there is no law for gpt2_tied_autocast-fp16_adamw-foreach-off; the nearest is "
            "for gpt2_tied_autocast-bf16_adamw-foreach-off",
        ),
        (
            Task(model=model_of("ResNet-50")),
            "there is no law for ResNet-50: its architecture has none",
        ),
        (
            Task(model=model_of("Gemma-2-2B"), attention="sdpa"),
            "transformers runs Gemma-2-2B with attention 'eager' alone",
        ),
        (
            Task(model=made_up("gemma2", True, 50_000, 1152, 3008, 7, 9, 3), attention="eager"),
            "7 layers: the law is for a multiple of 2",
        ),
    ],
)
def test_run_by_law_names_what_has_no_law(task: Task, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_by_law(task, find_gpu("A100 80GB"))
    assert str(caught.value).startswith(sentence)


def test_run_by_law_names_a_regime_that_was_not_recorded() -> None:
    config = {**model_of("gpt2").config, "n_positions": 8192}  # type: ignore[union-attr]
    model = Configured("long", config, "AutoModelForCausalLM")
    long = Task(model=model, dtype="bf16", batch=2, seq=4096)
    with pytest.raises(ConfigError, match=r"at batch 2 x 4,096 tokens: its kernels' way there"):
        run_by_law(long, find_gpu("A100 80GB"))


@pytest.mark.parametrize(
    ("task", "way"),
    [
        (gpt2(is_training=False, prompt=1), r"at batch 1 x 1 tokens: .*\(start\.one token\)"),
        (
            Task(
                model=made_up("llama", True, 32_000, 960, 2560, 4, 12, 4),
                is_training=False,
                prompt=100,
            ),
            r"at batch 1 x 100 tokens: .*\(start\.heads of 80\)",
        ),
        (
            Task(
                model=made_up("qwen2", True, 32_000, 768, 2560, 4, 12, 4),
                is_training=False,
                prompt=100,
            ),
            r"\(start\.single\.shared\.whole\.at-once\) was not recorded",
        ),
        (
            Task(
                model=made_up("llama", True, 32_000, 768, 2560, 4, 12, 4, rope_type="linear"),
                is_training=False,
                prompt=100,
            ),
            r"\(make\.linear\) was not recorded",
        ),
    ],
)
def test_run_by_law_names_a_way_of_serving_that_was_not_recorded(task: Task, way: str) -> None:
    with pytest.raises(ConfigError, match=way):
        run_by_law(task, find_gpu("A100 80GB"))


def test_run_by_law_refuses_more_steps_than_can_be_replayed() -> None:
    task = Task(model=model_of("Llama-3.2-1B"), is_training=False, decode=3000)
    with pytest.raises(ConfigError, match=r"steps are more than can be replayed"):
        run_by_law(task, find_gpu("A100 80GB"))


def test_run_by_law_refuses_a_card_without_flash_attention() -> None:
    with pytest.raises(ConfigError, match=r"T4: laws are for cards of compute capability 8\.0"):
        run_by_law(gpt2(), find_gpu("T4"))


def test_run_by_law_runs_out_of_memory_where_pytorch_does(tmp_path: Path) -> None:
    keep = tmp_path / "out.pickle"
    gpu = replace(find_gpu("A100 80GB"), memory=4 << 30)
    ran = run_by_law(gpt2(batch=8), gpu, keep=keep)
    assert ran.is_out_of_memory
    made = load(keep).provenance
    assert made is not None
    assert made.oom_text.startswith("CUDA out of memory. Tried to allocate")


def test_laws_answer_where_pytorch_is_missing_and_formulas_without_a_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: object) -> str:
        raise UnavailableError("no torch here (pip install 'allocsim[fit]', or --python)")

    monkeypatch.setattr("allocsim.fitting.by_engine.find_install", missing)
    gpu = find_gpu("RTX 4090")
    assert fit(gpt2(batch=2), gpu).engine == "laws"
    assert largest(gpt2(batch=2), "batch", gpu, first=18).engine == "laws"
    for task in (gpt2(**WITHOUT), gpt2(accumulate=5)):
        assert fit(task, gpu).engine == "formula"
    with pytest.raises(UnavailableError, match="no torch here"):
        fit(gpt2(), gpu, python="/named/python")


def test_a_law_lacks_the_attention_of_cudnn_where_pytorch_prefers_it() -> None:
    def is_noted(card: str, **options: Any) -> bool:
        return CUDNN_NOTE in fit(gpt2(batch=2, **options), find_gpu(card), engine="laws").notes

    assert is_noted("H100")
    assert is_noted("B200")
    assert not is_noted("H100", dtype="fp32")
    assert not is_noted("A100 80GB")
    assert not is_noted("RTX 5090")


def test_run_by_law_equals_the_replay_of_its_recording(tmp_path: Path) -> None:
    """The run by law makes no replay, and plays only a part of the requests."""
    keep, gpu = tmp_path / "out.pickle", find_gpu("A100 80GB")
    ran = run_by_law(gpt2(is_training=False, prompt=900, decode=12), gpu, keep=keep)
    (run,) = replay(load(keep)).devices
    assert run.fidelity == ran.device_run.fidelity
    assert run.stats == ran.device_run.stats
    assert run.peak == ran.device_run.peak
    for name in ("entry", "allocated", "reserved"):
        expected, found = (getattr(each.timeline, name) for each in (run, ran.device_run))
        assert expected.tolist() == found.tolist()


@pytest.mark.parametrize("start", ["clean", "made"])
@pytest.mark.parametrize("share", [0.1, 0.9, 0.99, 1, 1.05])
def test_peak_by_law_equals_that_of_the_run(share: float, start: str) -> None:
    task = gpt2(seq=512, batch=2, start=start)
    gpu = find_gpu("L4")
    most = run_by_law(task, gpu).peak_reserved_bytes
    tight = replace(gpu, memory=gpu.context_memory + int(share * most))
    ran, (peak, is_out_of_memory) = run_by_law(task, tight), peak_by_law(task, tight)
    assert (peak, is_out_of_memory) == (ran.peak_reserved_bytes, ran.is_out_of_memory)
    assert peak_by_law(task, tight, needs_peak=False)[1] == is_out_of_memory


def test_run_by_law_is_replayed_on_a_card_where_only_a_retry_helps() -> None:
    """The release of a full cache is found by the replay, as for any recording."""
    gpu = find_gpu("A100 80GB")
    task = gpt2(batch=4, seq=512)
    need = run_by_law(task, gpu)
    memory = gpu.context_memory + (need.peak_reserved_bytes + need.peak_allocated_bytes) // 2
    ran = run_by_law(task, replace(gpu, memory=memory))
    assert ran.device_run.stats["num_alloc_retries"] > 0
    assert ran.device_run.fidelity is not None and ran.device_run.fidelity.is_exact
    assert ran.peak_reserved_bytes <= memory - gpu.context_memory


@pytest.mark.parametrize("options", [{}, {"checkpointing": True}], ids=["plain", "checkpointing"])
def test_cards_that_share_a_replay_are_answered_as_alone(options: dict[str, Any]) -> None:
    """Memory and CUDA contexts of the cards differ; the task fits some of them."""
    names = ("RTX 3070", "RTX 3060 Ti", "RTX 3060", "RTX 3090", "A100 40GB", "A100 80GB")
    cards = [find_gpu(name) for name in names]
    assert len({card.context_memory for card in cards}) > 1
    task = Task(model=model_of("Llama-3.2-1B"), **options)
    found = fit_cards(task, cards, engine="laws")
    assert {each.fits for each in found} == {True, False}
    for card, each in zip(cards, found, strict=True):
        assert isinstance(each, Fit)
        alone = run_by_law(task, card)
        assert each.ran.is_out_of_memory == alone.is_out_of_memory
        assert each.ran.peak_reserved_bytes == alone.peak_reserved_bytes
        assert each.ran.peak_allocated_bytes == alone.peak_allocated_bytes
        assert (each.ran.oom and each.ran.oom.message) == (alone.oom and alone.oom.message)
