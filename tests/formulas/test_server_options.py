"""Options of servers: what a formula uses is read, and everything else is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allocsim.errors import ConfigError
from allocsim.fitting import held_of, serve
from allocsim.fitting.formulas import ServerOptions, options_in, version_of
from allocsim.fitting.formulas.server_options import of_vllm, options_again
from allocsim.phantom import find_gpu
from allocsim.units import GIB


def test_the_words_of_a_command_become_options() -> None:
    text = "--gpu-memory-utilization 0.85 --max-model-len=32K -tp 2 --enforce-eager"
    found = options_in(f"{text} --kv-cache-dtype fp8_e4m3", "vllm")
    assert found == ServerOptions(
        fraction=0.85, longest=32768, cards=2, is_eager=True, kv_type="fp8"
    )


def test_underscores_are_dashes_as_in_vllm() -> None:
    assert options_in("--max_num_seqs 8", "vllm") == ServerOptions(sequences=8)


def test_automatic_values_are_the_defaults() -> None:
    assert options_in("--kv-cache-dtype auto", "vllm") == ServerOptions()
    assert options_in("-fa auto", "llama.cpp") == ServerOptions()


@pytest.mark.parametrize(
    ("text", "server", "said"),
    [
        ("--enable-lora", "vllm", "'--enable-lora' may change the memory, and the formula of"),
        ("--port=8000 stray", "vllm", "^'stray' belongs to no option of vllm; omit it$"),
        ("--port 8000 stray -1", "vllm", "^'stray', '-1' belong to no option of vllm; omit them$"),
        ("--trust-remote-code true --host a", "vllm", "^'true' belongs to no option of vllm"),
        ("--served-model-name a b", "sglang", "^'b' belongs to no option of sglang"),
        ("--jinja on", "llama.cpp", "^'on' belongs to no option of llama.cpp"),
        ("--max-model-len 8192 more", "vllm", "^'more' belongs to no option of vllm"),
        ("-n -x", "llama.cpp", "'-x' may change the memory"),
        ("--max-model-len", "vllm", "--max-model-len of vllm needs a value"),
        ("--max-model-len many", "vllm", "expected a whole number, 1 to"),
        ("--max-model-len 0", "vllm", "expected a whole number, 1 to"),
        ("--gpu-memory-utilization 1.5", "vllm", "expected a number above 0, at most 1"),
        ("--quantization exl3", "vllm", "'exl3' has no formula; expected fp8"),
        ("--dtype float32", "vllm", "'float32' has no formula; expected auto, half"),
        (
            "--enable-lora --port 1 --speculative-config {} --max-loras 4",
            "vllm",
            "'--speculative-config', '--max-loras' may change .* does not use them; omit",
        ),
        ("--enforce-eager=yes", "vllm", "--enforce-eager has no value"),
        ("--tp 2 --tp-size 4", "sglang", "--tp-size 4 contradicts an earlier option"),
        ("--max-model-len 'open", "vllm", "No closing quotation"),
        ("-ngl 3", "vllm", "'-ngl' may change the memory, and the formula of vllm"),
        ("-ctk q8_0", "llama.cpp", "-ctk needs the same type for keys and values"),
        ("-ctk q8_0 -ctv q4_0", "llama.cpp", "-ctv q4_0 contradicts an earlier option"),
        ("--any", "ollama", "the formula of ollama has no server options"),
    ],
)
def test_anything_else_is_refused_with_a_sentence(text: str, server: str, said: str) -> None:
    with pytest.raises(ConfigError, match="(?s)" + said.replace("(", r"\(")):
        options_in(text, server)


@pytest.mark.parametrize(
    ("text", "server", "names"),
    [
        ("--port 8000 --trust_remote_code --served-model-name a b", "vllm", 3),
        ("--dtype half --enable-auto-tool-choice --tool-call-parser=hermes", "vllm", 2),
        ("--host 0.0.0.0 --random-seed 1", "sglang", 2),
        ("-t 8 --alias a --jinja", "llama.cpp", 3),
        ("--seed -1 --port 8000", "vllm", 2),
        ("-s -1 -n -1 --temp -0.5 -v", "llama.cpp", 4),
    ],
)
def test_options_without_effect_on_memory_are_named(text: str, server: str, names: int) -> None:
    found = options_in(text, server)
    assert found == ServerOptions(ignored=found.ignored)
    assert found.ignored
    assert len(found.ignored) == names
    plain = serve(held_of("Qwen3-4B", server), server, find_gpu("H200"))
    served = serve(held_of("Qwen3-4B", server), server, find_gpu("H200"), options=found)
    assert (served.needs.low, served.needs.high) == (plain.needs.low, plain.needs.high)
    assert served.needs.paste == plain.needs.paste
    assert served.needs.notes[0].startswith(f"{', '.join(found.ignored)}: ignored")


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("awq_marlin", "Qwen3-14B-AWQ"),
        ("gptq_marlin", "Qwen3-14B-GPTQ-Int8"),
        ("compressed-tensors", "RedHatAI/Qwen3-14B-quantized.w4a16"),
        ("modelopt", "nvidia/Qwen3-14B-FP8"),
        ("modelopt_fp4", "nvidia/Qwen3-14B-FP4"),
        ("mxfp4", "gpt-oss-20b"),
    ],
)
def test_the_method_that_a_model_already_has_changes_nothing(method: str, name: str) -> None:
    held, gpu = held_of(name, "vllm"), find_gpu("H200")
    found = serve(held, "vllm", gpu, options=options_in(f"--quantization {method}", "vllm"))
    assert found.needs == serve(held, "vllm", gpu).needs
    with pytest.raises(ConfigError, match=f"{method} reads only .* Qwen3-14B are in bf16"):
        serve(held_of("Qwen3-14B", "vllm"), "vllm", gpu, options=found.work.options)


def test_the_line_to_paste_repeats_what_was_given() -> None:
    text = "--enforce-eager --kv-cache-dtype fp8 --max-num-batched-tokens 4096 --max-num-seqs 3"
    again = options_again(options_in(text, "vllm"), "vllm").split()
    assert again == [
        *("--max-num-batched-tokens", "4096", "--enforce-eager", "--kv-cache-dtype", "fp8")
    ]
    graphs = options_in("--cuda-graph-sizes 256", "vllm")
    for version, option in [((0, 11), "--cuda-graph-sizes"), ((0, 12), "--max-cudagraph-cap")]:
        older = options_again(replace(graphs, version=version), "vllm")
        assert older.startswith(f" {option}")
        assert options_in(older, "vllm") == graphs
    cache = options_again(options_in("-ctk q8_0 -ctv q8_0", "llama.cpp"), "llama.cpp")
    assert cache == " --cache-type-k q8_0 --cache-type-v q8_0"


@pytest.mark.parametrize(
    ("memory", "card", "version", "is_offline", "expected"),
    [
        (79, "NVIDIA H100 80GB HBM3", (0, 12), None, (1024, 8192, 0.9)),
        (79, "NVIDIA H100 80GB HBM3", (0, 33), True, (1024, 16384, 0.92)),
        (79, "NVIDIA A100-SXM4-80GB", (0, 12), None, (256, 2048, 0.9)),
        (24, "NVIDIA GeForce RTX 4090", (0, 33), None, (256, 2048, 0.92)),
        (24, "NVIDIA GeForce RTX 4090", (0, 33), True, (256, 8192, 0.92)),
        (178, "NVIDIA B200", (0, 33), None, (1024, 16384, 0.92)),
        (24, "NVIDIA GeForce RTX 4090", (0, 6), None, (256, 2048, 0.9)),
    ],
)
def test_defaults_are_those_of_card_release_and_use(
    memory: int,
    card: str,
    version: tuple[int, int],
    is_offline: bool | None,
    expected: tuple[int, int, float],
) -> None:
    """As `EngineArgs` of vLLM 0.33 and the configuration lines of the logs of 0.12 have them."""
    options = ServerOptions(version=version, is_offline=is_offline)
    found = of_vllm(options, memory * GIB, card)
    assert (found.sequences, found.chunk, found.fraction) == expected


def test_a_release_is_read_as_engines_print_it() -> None:
    assert version_of("0.26.1rc1.dev156+g0eec856cc.d20260731") == (0, 26)
    assert version_of("v0.6.4.post1") == (0, 6)
    with pytest.raises(ConfigError, match="expected a number such as"):
        version_of("latest")


def test_a_request_beyond_the_longest_of_the_server_is_refused() -> None:
    held, gpu = held_of("Qwen2.5-7B", "vllm"), find_gpu("L4")
    with pytest.raises(ConfigError, match=r"a request of 5,000 tokens exceeds the server's 4,096"):
        serve(held, "vllm", gpu, prompt=4900, decode=100, options=ServerOptions(longest=4096))


def test_fewer_sequences_leave_more_tokens() -> None:
    held, gpu = held_of("Qwen2.5-7B", "vllm"), find_gpu("H100")
    rooms = [
        serve(held, "vllm", gpu, options=ServerOptions(sequences=count)).needs.room
        for count in (1024, 64)
    ]
    assert rooms[0] is not None
    assert rooms[1] is not None
    assert rooms[0][0] < rooms[1][0]
    assert rooms[0][1] < rooms[1][1]
