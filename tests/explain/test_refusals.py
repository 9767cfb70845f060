"""Refusals of servers to start are explained from their logs, with the smallest change that works.

The texts are our own, with the wording of the engines.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allocsim.cli import main
from allocsim.recording import LogFigures, figures_in

NOT_FREE = (
    "ValueError: Free memory on device {}(19.77/22.05 GiB) on startup is less than desired GPU "
    "memory utilization (0.9, 19.84 GiB). Decrease GPU memory utilization or reduce GPU memory "
    "used by other processes.\n"
)
CACHE = (
    "ValueError: To serve at least one request with the model's max seq len (131072), (16.00 GiB "
    "KV cache is needed, which is larger than the available KV cache memory (4.75 GiB). {}Try "
    "increasing `gpu_memory_utilization` or decreasing `max_model_len`.\n"
)
TOKENS = (
    "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that "
    "can be stored in KV cache (38944). Try increasing `gpu_memory_utilization` or decreasing "
    "`max_model_len` when initializing the engine.\n"
)
SAMPLER = (
    "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. "
    "Please try lowering `max_num_seqs` or `gpu_memory_utilization`.\n"
)
STATIC = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
LOADED = (
    "[TP0] Load weight begin. avail mem=23.10 GB\n"
    "[TP0] Load weight end. type=X, avail mem=4.00 GB, mem usage=19.10 GB.\n"
)
BUFFER = (
    "load_tensors:      CUDA0 model buffer size =  4403.50 MiB\n"
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 560.00 MiB on device 0: cudaMalloc "
    "failed: out of memory\n"
)

NO_CACHE = (
    "INFO [gpu_model_runner.py:9] Model loading took 27.5681 GiB and 5.12 seconds\n"
    "INFO [gpu_worker.py:9] Available KV cache memory: {} GiB\n"
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` "
    "when initializing the engine.\n"
)
OUT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 270.00 MiB. GPU 0 has a total "
    "capacity of 23.52 GiB of which 148.81 MiB is free. Process 12345 has 23.37 GiB memory in use. "
    "Of the allocated memory 22.95 GiB is allocated by PyTorch, and 17.66 MiB is reserved by "
    "PyTorch but unallocated.\n"
)
LOADING = (
    "INFO [core.py:76] Initializing a V1 LLM engine (v0.11.0) with config: model='a/b', "
    "max_seq_len=32768, tensor_parallel_size=2, quantization=None\n"
    "INFO [gpu_model_runner.py:9] Starting to load model a/b...\n"
)


def read(text: str) -> LogFigures:
    found = figures_in(text)
    assert found is not None
    return found


def helps(text: str) -> str:
    (refusal,) = read(text).refusals
    return refusal.helps


@pytest.mark.parametrize("device", ["", "cuda:0 "])
def test_too_little_free_memory_gives_the_largest_utilization_that_starts(device: str) -> None:
    """19.77 of 22.05 GiB are 0.8966 of the card."""
    (refusal,) = read(NOT_FREE.format(device)).refusals
    assert refusal.what == "19.77 of 22.05 GiB are free, and 0.9 of the card is 19.84 GiB"
    assert refusal.helps == "--gpu-memory-utilization 0.89, or 0.07 GiB less in other use"


def test_full_card_gets_no_utilization() -> None:
    text = NOT_FREE.format("").replace("(19.77/", "(0.10/")
    assert helps(text) == "end the processes that hold 21.95 GiB of the card"


def test_a_request_beyond_the_cache_gets_the_length_that_vllm_prints() -> None:
    estimate = "Based on the available memory, the estimated maximum model length is 38912. "
    assert helps(CACHE.format(estimate)) == "--max-model-len 38912"


def test_request_beyond_the_cache_gets_a_proportional_length() -> None:
    """131,072 x 4.745 / 16.005 tokens are 38,859, and 38,848 is a whole number of blocks."""
    assert helps(CACHE.format("")) == "--max-model-len 38848"


def test_a_request_beyond_the_cache_gets_a_utilization_if_the_card_is_known() -> None:
    """11.26 of 40 GiB are 0.2815 of the card."""
    text = "total_gpu_memory (40.00GiB) x gpu_memory_utilization (0.50) = 20GiB\n" + CACHE
    assert helps(text.format("")).endswith(", or --gpu-memory-utilization 0.79")


def test_request_longer_than_the_tokens_gets_the_number_of_tokens() -> None:
    assert helps(TOKENS) == "--max-model-len 38944, or a larger --gpu-memory-utilization"


def test_no_cache_at_all_gets_the_utilization_that_leaves_some() -> None:
    """-1.05 of 8.00 GiB are 0.131 of the card, which had 0.70."""
    text = (
        "the current vLLM instance can use total_gpu_memory (8.00GiB) x gpu_memory_utilization "
        "(0.70) = 5.60GiB\nmodel weights take 5.20GiB; the rest of the memory reserved for KV "
        "Cache is -1.05GiB.\nValueError: No available memory for the cache blocks. Try increasing\n"
    )
    assert helps(text).startswith("--gpu-memory-utilization 0.84 or more, ")


def test_missing_memory_of_the_cache_is_a_negative_size() -> None:
    """Activations of 6.97 GiB are impossible, and so is 27.57 GiB of weights in this share."""
    found = read(NO_CACHE.format("-6.97"))
    (refusal,) = found.refusals
    assert refusal.what.endswith("; 6.97 GiB are missing")
    assert refusal.helps == (
        "more cards (--tensor-parallel-size), weights of fewer bits, or a larger card"
    )
    assert [str(each) for each in found.figures] == ["27.57 GiB", "-6.97 GiB"]


def test_little_missing_memory_gets_a_larger_utilization_and_a_smaller_batch() -> None:
    found = helps(NO_CACHE.format("-0.72"))
    assert found.startswith(
        "a --gpu-memory-utilization that is larger by at least 0.72 GiB of the card, a smaller "
        "--max-num-batched-tokens or --max-num-seqs, more cards"
    )


def test_activations_below_the_missing_memory_get_no_smaller_batch() -> None:
    text = "PyTorch activation peak memory takes 0.50GiB;\n" + NO_CACHE.format("-0.72")
    assert "--max-num-seqs" not in helps(text)


def test_a_request_without_any_cache_gets_the_missing_memory() -> None:
    text = NO_CACHE.splitlines()[1].format("-0.72") + "\n"
    (refusal,) = read(text + CACHE.format("").replace("(4.75", "(-0.72")).refusals
    assert refusal.what.endswith("; 0.72 GiB are missing")


def test_memory_that_runs_out_in_loading_gets_the_remedies_of_a_server() -> None:
    (refusal,) = read(LOADING + OUT).refusals
    assert refusal.what == (
        "memory ran out while the weights were loaded, at a request of 270.00 MiB on a card of "
        "23.52 GiB"
    )
    assert refusal.helps == (
        "more cards (--tensor-parallel-size 4), weights of fewer bits, a larger card, or a "
        "smaller model"
    )
    begins = "[TP0] Load weight begin. avail mem=23.10 GB\n"
    assert helps(begins + OUT).startswith("more cards (--tp-size 2), ")


def test_memory_that_runs_out_after_loading_is_an_error_of_pytorch() -> None:
    assert read(LOADING + "Model loading took 14.2 GiB and 5.1 seconds\n" + OUT).refusals == ()


def test_a_sampler_without_memory_gets_fewer_sequences() -> None:
    assert helps(SAMPLER).startswith("--max-num-seqs 512")


def test_weights_beyond_the_static_memory_of_sglang_get_a_larger_fraction() -> None:
    """19.10 of 23.10 GiB are 0.8268."""
    assert helps(LOADED + STATIC).startswith("--mem-fraction-static 0.83 or more")


def test_a_buffer_that_llama_cpp_cannot_allocate_keeps_the_figures_before_it() -> None:
    found = read(BUFFER)
    assert found.refusals[0].what == "card 0 has no 560.00 MiB for the next buffer"
    assert [figure.name for figure in found.figures] == ["weights_bytes"]


@pytest.mark.parametrize(
    ("use", "name", "first"),
    [
        ("llama_model_load: error loading model: unable to allocate CUDA0 buffer", "weights",
         "fewer layers on the card (-ngl), a quantization of fewer bits, or more cards (-ts)"),
        ("llama_init_from_model: failed to allocate buffer for kv cache", "KV cache",
         "fewer layers on the card (-ngl), a shorter context (-c), or -ctk q8_0 -ctv q8_0"),
        ("graph_reserve: failed to allocate compute buffers", "computation", "-ub 256, "),
    ],
)  # fmt: skip
def test_a_buffer_of_llama_cpp_gets_what_reduces_its_use(use: str, name: str, first: str) -> None:
    size = "alloc_tensor_range: failed to allocate CUDA0 buffer of size 587202560\n"
    (refusal,) = read(BUFFER + size + use + "\n").refusals
    assert refusal.what.endswith(f"560.00 MiB for {'the ' * (name != 'computation')}{name}")
    assert refusal.helps.startswith(first)


def test_explain_reports_a_refusal_of_all_ranks_once() -> None:
    text = "".join(f"(Worker_TP{rank} pid=9) ERROR {NOT_FREE.format('')}" for rank in range(4))
    (refusal,) = read(text).refusals
    assert refusal.line == 1


def test_explain_joins_lines_that_a_terminal_wrapped() -> None:
    assert helps(TOKENS.replace(" tokens", "\ntokens")).startswith("--max-model-len 38944")


@pytest.mark.parametrize("text", [NOT_FREE.format(""), SAMPLER, BUFFER], ids=["f", "s", "b"])
def test_explain_begins_with_the_refusal(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.log"
    path.write_text(text)
    assert main(["explain", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Verdict         did not start: ")
    assert len(lines) <= 22
    assert main(["explain", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["log"]
    assert document["refusals"][0]["helps"]
