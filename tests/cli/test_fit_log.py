"""Sizes in a server's start-up log replace assumptions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim.fitting import held_of, serve
from allocsim.fitting.formulas import logged_in
from allocsim.phantom import Gpu
from allocsim.recording import figures_in
from allocsim.units import GIB, MIB
from tests.cli.conftest import Done

Cli = Callable[..., Done]

OLDER = """\
worker.py:243] Memory profiling results:
worker.py:243] total_gpu_memory     79.22GiB
worker.py:243] gpu_memory_utilization       0.90
worker.py:243] the current vLLM instance can use    71.29GiB
worker.py:243] model weights take   14.96GiB
worker.py:243] non_torch_memory     1.79GiB
worker.py:243] PyTorch activation peak memory       1.26GiB
worker.py:243] available_kv_cache_memory    53.29GiB
"""
"""Llama 3 8B, from vllm-project/vllm#10511."""
SMALL_CARD = """\
model_runner.py:1115] Loading model weights took 5.2032 GB
worker.py:267] the current vLLM instance can use total_gpu_memory (8.00GiB) x \
gpu_memory_utilization (0.70) = 5.60GiB
worker.py:267] model weights take 5.20GiB; non_torch_memory takes 0.03GiB; PyTorch activation peak \
memory takes 1.42GiB; the rest of the memory reserved for KV Cache is -1.05GiB.
"""
"""A quantised Qwen2.5 7B without enough room, from vllm-project/vllm#13882."""
LLAMA = """\
load_tensors:      CUDA0 model buffer size =  4403.50 MiB
load_tensors:   CPU_Mapped model buffer size =   281.81 MiB
llama_new_context_with_model: n_ctx      = 8192
llama_kv_cache_init:      CUDA0 KV buffer size =  1024.00 MiB
llama_context:      CUDA0 compute buffer size =   560.00 MiB
llama_context:  CUDA_Host compute buffer size =    24.01 MiB
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def answer(cli: Cli, log: Path, text: str, *words: str) -> dict[str, Any]:
    log.write_text(text)
    done = cli("fit", *words, "--log", str(log), "--json")
    assert done.code in (0, 3)
    document: dict[str, Any] = json.loads(done.out)
    return document


def test_the_room_is_what_the_server_logged(cli: Cli, log: Path) -> None:
    words = ("Llama-3-8B", "--server", "vllm", "--device-memory", f"{round(79.22 * GIB)}B")
    found = answer(cli, log, OLDER, *words)
    assert found["ranges"]["activations"] == [int(1.26 * GIB)] * 2
    assert found["ranges"]["CUDA context"] == [int(1.79 * GIB)] * 2
    tokens = 53.29 * GIB / 131_072
    assert found["room_tokens"][1] == pytest.approx(tokens, rel=0.001)
    assert "from the log: CUDA context, weights, activations" in found["notes"][-1]


def test_a_card_without_room_has_none(cli: Cli, log: Path) -> None:
    """By the log, 0.70 x 8.00 - 5.20 - 0.03 - 1.42 = -1.05 GiB are left."""
    words = ("Qwen2.5-7B", "--server", "vllm", "--weights", "awq-int4", "--device-memory", "8GiB")
    found = answer(cli, log, SMALL_CARD, *words)
    assert found["room_tokens"] == [0, 0]
    assert found["taken_bytes"][0] == pytest.approx(8 * GIB * 0.7, rel=0.001)
    assert found["breakdown"]["weights"] == int(5.2 * GIB)


def test_the_compute_buffer_is_of_its_context_alone(cli: Cli, log: Path) -> None:
    words = ("Llama-3-8B", "--server", "llama.cpp", "--gpu", "RTX 4090", "--prompt")
    same = answer(cli, log, LLAMA, *words, "8128")
    assert same["ranges"]["compute buffer"] == [560 * MIB] * 2
    longer = answer(cli, log, LLAMA, *words, "8192")
    assert longer["ranges"]["compute buffer"][0] < 560 * MIB
    assert longer["notes"][-1] == "the log has no figure for this work"


@pytest.mark.parametrize("host", ["CPU_AARCH64", "CPU_REPACK", "AMX", "ROCm_Host", "Vulkan_Host"])
def test_what_lies_in_the_host_s_memory_is_no_second_card(host: str) -> None:
    text = LLAMA.replace("CPU_Mapped", host).replace("CUDA_Host", host)
    logged = logged_in(figures_in(text), "llama.cpp")
    assert (logged.weights, logged.compute_buffer) == (4403.5 * MIB, 560 * MIB)


def test_a_log_of_sglang_says_its_fraction() -> None:
    text = (
        "server_args=ServerArgs(mem_fraction_static=0.8, tp_size=1)\n"
        "[TP0] Load weight end. type=X, avail mem=60.2 GB, mem usage=15.0 GB.\n"
        "[TP0] KV Cache is allocated. #tokens: 400000, K size: 24.41 GB, V size: 24.41 GB\n"
    )
    held, card = held_of("Llama-3-8B", "sglang"), Gpu("a card", 80 * GIB)
    logged = logged_in(figures_in(text), "sglang")
    found = serve(held, "sglang", card, logged=logged).needs
    assert {part.name: part.low for part in found.parts}["weights"] == 15 * GIB
    assert found.taken == (80 * GIB - round(80 * GIB * (1 - 0.8)), 80 * GIB)
    assert not any("on this card by default" in note for note in found.notes)
    assert logged.bytes_a_token == pytest.approx(131_072, rel=0.001)


@pytest.mark.parametrize(
    ("words", "text", "said"),
    [
        (
            ("Llama-3-8B", "--server", "sglang"),
            OLDER,
            "the text is a start-up log of vLLM; expected the start-up log of sglang",
        ),
        (("Llama-3-8B", "--server", "vllm"), "nothing at all", "the text is not a start-up log"),
        (
            ("Llama-3-8B", "--server", "tensorrt-llm"),
            OLDER,
            "tensorrt-llm has no known log format",
        ),
        (
            ("gpt2", "--server", "vllm"),
            OLDER + "kv_cache_utils.py] GPU KV cache size: 436,544 tokens\n",
            "the log's cache takes 131,074 bytes a token and gpt2 36,864",
        ),
        (
            ("Llama-3-8B", "--server", "vllm", "--tensor-parallel", "4"),
            "(Worker_TP0) Model loading took 7.5 GiB\n(Worker_TP1) Model loading took 7.5 GiB\n",
            "a log describes 2 cards; expected one of 4",
        ),
        (
            ("Llama-3-8B", "--server", "llama.cpp"),
            "load_tensors: CUDA0 model buffer size = 5 MiB\n"
            "load_tensors: CUDA1 model buffer size = 5 MiB\n",
            "the log is of CUDA0, CUDA1; expected one of a single card",
        ),
    ],
)
def test_a_log_of_something_else_is_refused(
    cli: Cli, log: Path, words: tuple[str, ...], text: str, said: str
) -> None:
    log.write_text(text)
    done = cli("fit", *words, "--gpu", "T4", "--log", str(log))
    assert done.code == 2
    assert said in done.err.replace("\n", " ")


def test_a_recording_is_no_log(cli: Cli) -> None:
    path = Path(__file__).parents[2] / "traces" / "gpt2-ragged-oom-torch2.15.pickle.gz"
    done = cli("fit", "gpt2", "--server", "vllm", "--gpu", "T4", "--log", str(path))
    assert done.code == 2
    assert "is a recording; --log expects the text that a server printed" in done.err


NEWER = """\
(APIServer pid=1) INFO [api_server.py:9] vLLM API server version 0.33.0
(APIServer pid=1) INFO [api_server.py:9] non-default args: {'max_model_len': 8192, \
'gpu_memory_utilization': 0.9}
(EngineCore pid=2) INFO [gpu_model_runner.py:9] Model loading took 15.0 GiB memory and 2.1 seconds
(EngineCore pid=2) INFO [gpu_model_runner.py:9] Estimated CUDA graph memory: 0.70 GiB total
(EngineCore pid=2) INFO [gpu_worker.py:9] Available KV cache memory: 53.1 GiB
(EngineCore pid=2) INFO [gpu_worker.py:9] CUDA graph memory profiling is enabled (default since \
v0.21.0). The current --gpu-memory-utilization=0.9000 is equivalent to \
--gpu-memory-utilization=0.8911 without CUDA graph memory profiling.
(EngineCore pid=2) INFO [kv_cache_utils.py:9] GPU KV cache size: 434,960 tokens, Maximum \
concurrency for 8,192 tokens per request: 53.10x
(EngineCore pid=2) INFO [gpu_model_runner.py:9] Graph capturing finished in 20 secs, took 0.38 GiB
(EngineCore pid=2) INFO [gpu_worker.py:9] CUDA graph pool memory: 0.38 GiB (actual), 0.70 GiB \
(estimated), difference: 0.32 GiB (84.2%).
"""
"""Llama 3.1 8B on an H100 with vLLM 0.33, with the figures of a start on a phantom GPU."""
LLAMA_8B = ("Llama-3.1-8B", "--server", "vllm", "--gpu", "H100")


def test_the_room_never_excludes_the_tokens_that_the_log_prints(cli: Cli, log: Path) -> None:
    found = answer(cli, log, NEWER, *LLAMA_8B)
    assert found["room_tokens"] == [434_960, 434_960]
    assert found["ranges"]["CUDA graphs"] == [int(0.38 * GIB)] * 2
    assert "from the log: weights, CUDA graphs, room of the cache" in found["notes"][-1]


def test_another_fraction_than_that_of_the_log_changes_the_room_in_proportion(
    cli: Cli, log: Path
) -> None:
    words = ("--server-args", "--gpu-memory-utilization 0.95")
    low, high = answer(cli, log, NEWER, *LLAMA_8B, *words)["room_tokens"]
    more = 0.05 * 79.1 * GIB / 131_072
    assert low <= 434_960 + more <= high


def test_another_number_of_sequences_than_that_of_the_log_needs_no_more_than_the_log(
    cli: Cli, log: Path
) -> None:
    words = ("--server-args", "--max-num-seqs 4")
    low, high = answer(cli, log, NEWER, *LLAMA_8B, *words)["room_tokens"]
    assert high > 434_960
    assert low > 400_000


def test_the_ranks_of_a_log_are_the_cards_of_the_answer(cli: Cli, log: Path) -> None:
    text = "".join(
        f"(Worker_TP{rank} pid=9) Model loading took 7.{50 + rank} GiB memory and 1.1 seconds\n"
        f"(Worker_TP{rank} pid=9) Available KV cache memory: {60 - rank}.00 GiB\n"
        for rank in range(2)
    )
    found = answer(cli, log, text, "Llama-3.1-8B", "--server", "vllm", "--gpu", "H100")
    assert found["tensor_parallel"] == 2
    assert found["ranges"]["weights"] == [int(7.51 * GIB)] * 2
    assert found["room_tokens"][0] <= 59 * GIB / 65_536 <= found["room_tokens"][1]


CONFIG = "LLM engine (v{}) with config: model='a/b', max_seq_len=131072, tensor_parallel_size=1\n"
TOO_LONG = (
    CONFIG.format("0.8.5")
    + "Model loading took 14.9889 GiB and 5.12 seconds\n"
    + "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 "
    "GiB KV cache is needed, which is larger than the available KV cache memory (4.75 GiB). Based "
    "on the available memory,  the estimated maximum model length is 38912. Try increasing\n"
)
"""Llama 3.1 8B: 38,912 tokens of 131,072 bytes are 4.75 GiB."""
TOO_MANY = (
    CONFIG.format("0.6.6")
    + """\
Loading model weights took 14.2487 GB
the current vLLM instance can use total_gpu_memory (23.69GiB) x gpu_memory_utilization (0.90) = \
21.32GiB
model weights take 14.25GiB; non_torch_memory takes 0.12GiB; PyTorch activation peak memory takes \
4.31GiB; the rest of the memory reserved for KV Cache is 2.64GiB.
# GPU blocks: 3089, # CPU blocks: 4681
ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can \
be stored in KV cache (49424). Try increasing `gpu_memory_utilization`
"""
)
"""Qwen2.5 7B: activations that exceed those of the formula."""


def test_a_failed_start_is_the_verdict_and_its_length_is_pasted(cli: Cli, log: Path) -> None:
    words = ("Llama-3.1-8B", "--server", "vllm", "--gpu", "L4")
    found = answer(cli, log, TOO_LONG, *words)
    assert (found["fits"], found["may_fit"]) == (False, False)
    assert found["room_tokens"] == [38_912, 38_912]
    assert found["paste"] == "--gpu-memory-utilization 0.90 --max-model-len 38912 --max-num-seqs 1"
    done = cli("fit", *words, "--log", str(log))
    assert "did not start with the options of the log: one request of" in done.out.replace(
        "\n", " "
    )
    assert done.code == 3
    other = answer(cli, log, TOO_LONG, *words, "--server-args", "--max-model-len 8192")
    assert other["fits"]


@pytest.mark.parametrize(
    ("model", "options"),
    [("Llama-3.1-8B", "--port 8000"), ("Llama-3.1-8B-AWQ", "--quantization awq_marlin")],
)
def test_options_without_effect_leave_the_verdict_of_a_failed_start(
    cli: Cli, log: Path, model: str, options: str
) -> None:
    words = (model, "--server", "vllm", "--gpu", "L4", "--server-args", options)
    found = answer(cli, log, TOO_LONG, *words)
    assert (found["fits"], found["may_fit"]) == (False, False)
    assert found["room_tokens"] == [38_912, 38_912]


def test_a_failed_start_says_nothing_of_other_cards(cli: Cli, log: Path) -> None:
    words = ("Llama-3.1-8B", "--server", "vllm", "--gpu", "L4", "--gpu", "H100")
    found = answer(cli, log, TOO_LONG, *words)
    assert [card["fits"] for card in found["cards"]] == [True, True]


def test_the_largest_safe_fraction_has_the_activations_of_the_log(cli: Cli, log: Path) -> None:
    """0.06 of 23.69 GiB are 1.42 GiB more than the 2.64 GiB of 49,424 tokens."""
    words = ("Qwen2.5-7B", "--server", "vllm", "--gpu", "3090")
    found = answer(cli, log, TOO_MANY, *words)
    assert found["paste"] == "--gpu-memory-utilization 0.90 --max-model-len 49424 --max-num-seqs 1"
    largest = found["largest"]
    assert (largest["value"], largest["has_to_be_set"]) == (0.96, True)
    measured = 49_424 + 0.06 * 23.69 * GIB / 57_344
    assert largest["room_tokens"][0] == pytest.approx(measured, rel=0.01)
    followed = f"--gpu-memory-utilization 0.96 {largest['beside']} --max-model-len "
    followed += str(largest["longest_request"])
    again = answer(cli, log, TOO_MANY, *words, "--server-args", followed)
    assert again["room_tokens"] == largest["room_tokens"]
    assert again["paste"] == followed.replace(" --max-num-seqs 1", "") + " --max-num-seqs 1"


def test_a_start_that_other_processes_prevent_gets_a_fraction_of_the_free_memory(
    cli: Cli, log: Path
) -> None:
    """18.20 of 23.52 GiB are 0.774."""
    text = CONFIG.format("0.22.0") + (
        "ValueError: Free memory on device cuda:0 (18.20/23.52 GiB) on startup is less than "
        "desired GPU memory utilization (0.92, 21.64 GiB). Decrease GPU memory utilization\n"
    )
    found = answer(cli, log, text, "Qwen3-8B", "--server", "vllm", "--gpu", "4090")
    assert found["paste"].startswith("--gpu-memory-utilization 0.77 ")
    assert not found["fits"]


def test_a_log_that_ends_while_weights_load_is_answered_by_formula(cli: Cli, log: Path) -> None:
    text = CONFIG.format("0.11.0") + (
        "Starting to load model a/b...\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 270.00 MiB. GPU 0 has a "
        "total capacity of 23.52 GiB of which 148.81 MiB is free.\n"
    )
    found = answer(cli, log, text, "Qwen2.5-32B", "--server", "vllm", "--gpu", "4090")
    assert not found["may_fit"]
    assert found["paste"] is None
    assert "defaults of vllm serve 0.11" in found["notes"][0]


STARTED = """\
server_args=ServerArgs(model_path='a/b', mem_fraction_static={fraction}, tp_size=1)
Load weight begin. avail mem=23.20 GB
Load weight end. type=X, dtype=torch.bfloat16, avail mem=7.88 GB, mem usage=15.32 GB.
KV Cache is allocated. #tokens: 32012, K size: 2.20 GB, V size: 2.20 GB
Memory pool end. avail mem={free} GB
Capture cuda graph end. Time elapsed: 3.50 s. mem usage=0.30 GB. avail mem={end} GB.
max_total_num_tokens=32012, context_len=40960, available_gpu_mem={end} GB
"""


@pytest.mark.parametrize(
    ("fraction", "end", "largest"),
    [
        (0.85, 2.9, 0.85),  # above SGLang's default of 0.845, and proved
        (0.8, 5.9, 0.909),  # SGLang leaves 3,728 MiB of 24 GiB, so 2.56 of 23.20 GiB are spare
        (0.6, 3.0, 0.845),
    ],
)
def test_a_start_of_sglang_proves_its_fraction(
    cli: Cli, log: Path, fraction: float, end: float, largest: float
) -> None:
    text = STARTED.format(fraction=fraction, free=end + 0.3, end=end)
    found = answer(cli, log, text, "Qwen3-8B", "--server", "sglang", "--gpu", "3090")
    assert found["largest"]["value"] == pytest.approx(largest, abs=0.0011)
    assert f"--mem-fraction-static {fraction:g} " in found["paste"]
    assert found["fits"]
    high = found["ranges"]["activations and CUDA graphs"][1]
    assert high == pytest.approx((end + 0.3) * GIB)
    if fraction == largest:
        assert found["largest"]["room_tokens"] == found["room_tokens"]


def test_a_start_of_sglang_that_failed_gets_a_smaller_fraction(cli: Cli, log: Path) -> None:
    text = STARTED.format(fraction=0.85, free=2.02, end=1.9).partition("Capture")[0]
    text += (
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 1.16 GiB.\n"
    )
    found = answer(cli, log, text, "Qwen3-8B", "--server", "sglang", "--gpu", "3090")
    assert (found["fits"], found["may_fit"]) == (False, False)
    assert found["largest"]["value"] == 0.8
    assert found["paste"].startswith("--mem-fraction-static 0.8 ")


def test_a_start_of_sglang_without_free_memory_before_proves_its_own_fraction(
    cli: Cli, log: Path
) -> None:
    text = STARTED.format(fraction=0.85, free=3.2, end=2.9).replace("23.20 GB", "0.00 GB")
    found = answer(cli, log, text, "Qwen3-8B", "--server", "sglang", "--gpu", "3090")
    assert found["largest"]["value"] == 0.85
