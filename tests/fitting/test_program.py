"""Text of the generated program, which reads as if a person had written it."""

from __future__ import annotations

import ast
import builtins
from itertools import product
from typing import Any

import pytest

from allocsim.fitting import (
    ATTENTION,
    DTYPES,
    OPTIMIZERS,
    PARALLEL,
    STARTS,
    Task,
    model_of,
    program_of,
    usual_lengths,
)


def task(model: str = "gpt2", **more: Any) -> Task:
    found = model_of(model)
    return Task(model=found, **{**usual_lengths(found), **more})


def test_program_of_a_training_is_the_usual_loop() -> None:
    text = program_of(task(optimizer="sgd", seq=16, steps=2))
    loop = text[text.index("for step") :]
    assert loop == (
        "for step in range(2):\n"
        "    loss = model(input_ids=ids, labels=ids).loss\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad(set_to_none=True)\n"
    )
    assert 'ids = torch.randint(0, config.vocab_size, (1, 16), device="cuda")' in text


def test_program_of_serving_is_a_prompt_and_greedy_tokens() -> None:
    text = program_of(task(is_training=False, prompt=16, decode=3, requests=5))
    assert "for request in range(5):" in text
    assert "for token in range(1 + 3):" in text
    assert "DynamicCache(config=config)" in text
    assert "logits_to_keep=1" in text


def test_program_of_a_speech_model_trains_on_thirty_seconds_of_sound() -> None:
    text = program_of(task("openai/whisper-tiny", batch=2))
    assert "AutoModelForSpeechSeq2Seq" in text
    assert "frames = (2, config.num_mel_bins, 2 * config.max_source_positions)" in text
    assert '(2, 448), device="cuda")' in text
    assert "model(input_features=features, labels=ids).loss" in text


def test_program_of_t5_has_the_output_layer_of_the_published_files() -> None:
    assert "model.lm_head = torch.nn.Linear(" in program_of(task("google/flan-t5-small"))
    assert "lm_head" not in program_of(task("t5-small"))


@pytest.mark.parametrize("model", ["t5-small", "openai/whisper-tiny"])
def test_program_of_serving_an_encoder_encodes_once(model: str) -> None:
    text = program_of(task(model, is_training=False, batch=3, decode=5))
    assert text.count("model.get_encoder()(") == 1
    assert text.index("get_encoder") < text.index("for token in range(1 + 5):")
    assert "encoder_outputs=encoded, decoder_input_ids=ids" in text
    assert "cache = EncoderDecoderCache(*caches)" in text
    assert undefined(text) == set()


def test_fsdp_shards_the_layers_of_encoder_and_decoder() -> None:
    text = program_of(task("t5-small", parallel="fsdp", ranks=2))
    assert "isinstance(each, kind)]" in text
    assert undefined(text) == set()


@pytest.mark.parametrize(
    "model", ["gpt2", "BERT-base", "resnet50", "flan-t5-small", "whisper-tiny", "pkg.mod:make"]
)
def test_program_of_every_combination_of_options_compiles(model: str) -> None:
    """It parses, and it binds every name that it uses."""
    for dtype, optimizer, start, accumulate in product(DTYPES, OPTIMIZERS, STARTS, (1, 3)):
        made = task(model, dtype=dtype, optimizer=optimizer, start=start, accumulate=accumulate)
        assert undefined(program_of(made)) == set()
        if model != "pkg.mod:make":
            for parallel in PARALLEL:
                shared = task(model, dtype=dtype, start=start, parallel=parallel, ranks=8)
                assert undefined(program_of(shared)) == set()
    if model == "gpt2":
        flags = ("checkpointing", "compiles", "channels_last")
        for attention, values in product(ATTENTION, product((False, True), repeat=3)):
            more: dict[str, Any] = dict(zip(flags, values, strict=True))
            for lengths, rank in product(((), (4, 9)), (0, 8)):
                made = task(attention=attention, lengths=lengths, lora=rank, **more)
                assert undefined(program_of(made)) == set()
                if not rank:
                    serves = task(is_training=False, attention=attention, lengths=lengths, seq=8)
                    assert undefined(program_of(serves)) == set()


def undefined(text: str) -> set[str]:
    """Return the names that a program reads and never binds."""
    read, bound = set(), set(dir(builtins))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name):
                bound.add(name)
            case ast.alias():
                bound.add((node.asname or node.name).partition(".")[0])
            case ast.FunctionDef():
                bound |= {node.name, *(each.arg for each in node.args.args)}
    return read - bound


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"dtype": "autocast-bf16"}, 'with torch.autocast("cuda", dtype=torch.bfloat16):'),
        ({"dtype": "autocast-fp16"}, "scaler.scale(loss).backward()"),
        ({"optimizer": "adamw-fused"}, "AdamW(parameters, lr=1e-4, fused=True)"),
        ({"optimizer": "adamw-foreach-off"}, "AdamW(parameters, lr=1e-4, foreach=False)"),
        ({"optimizer": "adam8bit"}, "bitsandbytes.optim.Adam8bit"),
        ({"optimizer": "paged-adamw8bit"}, "bitsandbytes.optim.PagedAdamW8bit"),
        ({"lora": 8, "quant": "nf4"}, "prepare_model_for_kbit_training(model"),
        ({"lora": 8, "quant": "nf4"}, "bnb_4bit_use_double_quant=False"),
        ({"lora": 8, "quant": "nf4-double", "dtype": "fp16"}, "compute_dtype=torch.float16"),
        ({"checkpointing": True}, '{"use_reentrant": False}'),
        ({"lora": 16}, "LoraConfig(r=16, lora_alpha=32, target_modules=targets)"),
        ({"lora": 16, "lora_targets": ("c_attn",)}, "targets = ['c_attn']"),
        ({"accumulate": 3}, "loss = loss / 3"),
        ({"compiles": True}, "model = torch.compile(model)"),
        ({"parallel": "fsdp", "ranks": 8}, "    fully_shard(part)"),
        ({"parallel": "fsdp", "ranks": 8, "rank": 3}, "rank=3, world_size=8"),
        ({"parallel": "fsdp", "dtype": "autocast-bf16"}, "    fully_shard(part, mp_policy=policy)"),
        ({"parallel": "ddp", "ranks": 2}, "DistributedDataParallel(model, device_ids=[0])"),
        ({"start": "clean"}, "torch.cuda.reset_peak_memory_stats()"),
        ({"lengths": (5, 7)}, "lengths = [5, 7]"),
        ({"attention": "flash"}, 'attn_implementation="flash_attention_2"'),
    ],
)
def test_option_adds_its_line_to_the_program(more: dict[str, Any], line: str) -> None:
    assert line in program_of(task(**more))
    assert line not in program_of(task(start="made"))
