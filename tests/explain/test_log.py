"""Figures of start-up logs and tables, with device and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim import CachingAllocator
from allocsim.cli import main
from allocsim.errors import RecordingError
from allocsim.recording import TEXTS, LogFigures, figures_in, load
from allocsim.units import GIB, MIB

VLLM = """\
INFO 01-30 03:18:12 gpu_model_runner.py:848] Loading model weights took 14.5 GB
Memory profiling results: total_gpu_memory=24.00GiB initial_memory_usage=15.34GiB \
peak_torch_memory=17.5GiB non_torch_memory=0.5GiB kv_cache_size=4.00GiB
INFO 01-30 03:19:14 kv_cache_utils.py:395] # GPU blocks: 1381
INFO kv_cache_utils.py:524] GPU KV cache size: 22,096 tokens
INFO kv_cache_utils.py:527] Maximum concurrency for 2,048 tokens per request: 10.79x
(Worker_TP1 pid=12) INFO gpu_worker.py:300] Available KV cache memory: 8.25 GiB
INFO Graph capturing finished in 20 secs, took 0.25 GiB
"""
SGLANG = """\
[2026-07-15 13:14:53 TP0] Load weight begin. avail mem=137.29 GB
[2026-07-15 13:14:53 TP0] Load weight end. type=X, avail mem=230.20 GB, mem usage=56.5 GB.
[2026-07-15 13:14:54 TP0] KV Cache is allocated. #tokens: 1669816, K size: 76.5 GB, V size: 38.5 GB
[2026-07-15 13:14:54 TP0] Memory pool end. avail mem=74.5 GB
[2026-07-15 13:14:58 TP0] max_total_num_tokens=1669816, chunked_prefill_size=8192
"""
LLAMA = """\
llm_load_tensors:        CPU buffer size =   512.00 MiB
load_tensors:      CUDA0 model buffer size =  5434.50 MiB
llama_new_context_with_model: n_ctx      = 4096
llama_kv_cache_init:      CUDA0 KV buffer size =  1536.00 MiB
llama_context:      CUDA0 compute buffer size =   672.00 MiB
llama_context:  CUDA_Host  output buffer size =     1.50 MiB
"""


def figures(text: str) -> dict[tuple[str, str], float]:
    found = figures_in(text)
    assert found is not None
    return {(figure.name, figure.device): figure.value for figure in found.figures}


def test_a_log_of_vllm() -> None:
    assert figures(VLLM) == {
        ("weights_bytes", ""): 14.5 * GIB,
        ("peak_torch_bytes", ""): 17.5 * GIB,
        ("other_bytes", ""): GIB / 2,
        ("kv_cache_bytes", ""): 4 * GIB,
        ("total_bytes", ""): 24 * GIB,
        ("kv_cache_blocks", ""): 1381,
        ("kv_cache_tokens", ""): 22_096,
        ("concurrency", ""): 10.79,
        ("max_model_len", ""): 2048,
        ("kv_cache_bytes", "Worker_TP1"): 8.25 * GIB,
        ("graphs_bytes", ""): GIB / 4,
    }


def test_a_log_of_sglang() -> None:
    assert figures(SGLANG) == {
        ("free_before_bytes", "TP0"): int(137.29 * GIB),
        ("free_loaded_bytes", "TP0"): int(230.2 * GIB),
        ("weights_bytes", "TP0"): 56.5 * GIB,
        ("kv_cache_tokens", "TP0"): 1_669_816,
        ("k_cache_bytes", "TP0"): 76.5 * GIB,
        ("v_cache_bytes", "TP0"): 38.5 * GIB,
        ("free_bytes", "TP0"): 74.5 * GIB,
        ("max_total_tokens", "TP0"): 1_669_816,
    }


def test_a_log_of_llama_cpp() -> None:
    assert figures(LLAMA) == {
        ("weights_bytes", "CPU"): 512 * MIB,
        ("weights_bytes", "CUDA0"): 5434.5 * MIB,
        ("context_tokens", ""): 4096,
        ("kv_cache_bytes", "CUDA0"): 1536 * MIB,
        ("compute_bytes", "CUDA0"): 672 * MIB,
        ("output_bytes", "CUDA_Host"): 1.5 * MIB,
    }


def test_a_table_of_memory_summary() -> None:
    allocator = CachingAllocator("1GiB")
    blocks = [allocator.malloc(32 * MIB) for _ in range(4)]
    allocator.free(blocks[0])
    found = figures(allocator.memory_summary())
    stats = allocator.memory_stats()
    for name in ("allocated", "reserved"):
        assert found[f"{name}_bytes", ""] == stats[f"{name}_bytes.all.current"]
        assert found[f"peak_{name}_bytes", ""] == stats[f"{name}_bytes.all.peak"]
    assert found["num_ooms", ""] == 0


def test_later_figure_of_a_log_replaces_the_earlier_one() -> None:
    text = LLAMA + "llama_kv_cache:      CUDA0 KV buffer size =  64.00 MiB\n"
    assert figures(text)["kv_cache_bytes", "CUDA0"] == 64 * MIB


def test_ordinary_text_has_no_log_figures() -> None:
    assert figures_in("epoch 1, loss 2.3\n") is None
    assert figures_in("") is None
    assert figures_in("llama_context: nothing of interest\n") is None


@given(st.text(max_size=200), st.sampled_from([VLLM, SGLANG, LLAMA]), st.integers(0, 500))
def test_figures_in_accepts_any_text(text: str, log: str, at: int) -> None:
    found = figures_in(log[:at] + text + log[at:])
    assert found is None or isinstance(found, LogFigures)


@pytest.mark.parametrize("text", [VLLM, SGLANG, LLAMA], ids=["vllm", "sglang", "llama.cpp"])
def test_explain_command_prints_the_figures_of_a_log(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.log"
    path.write_text(text)
    assert main(["explain", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "start-up log of" in shown
    assert "weights" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert main(["explain", "--json", str(path)]) == 0
    document = json.loads(capsys.readouterr().out)["log"]
    assert document["kind"] in {kind for kind, *_ in TEXTS}
    assert len(document["figures"]) == len(figures(text))


@pytest.mark.parametrize("text", [VLLM, SGLANG, LLAMA], ids=["vllm", "sglang", "llama.cpp"])
def test_load_refuses_a_log_and_suggests_explain(text: str, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(text)
    with pytest.raises(
        RecordingError, match=r"start-up log of .* explain FILE to read its figures"
    ):
        load(path)


@pytest.mark.parametrize("before", ["<html><p>", "<string>:1: ", "[2026-07-15] ", "[rank0]: "])
def test_explain_reads_text_that_begins_like_a_recording_as_text(
    before: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page"
    path.write_text(before + "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB.")
    assert main(["explain", str(path)]) == 0
    assert "No out-of-memory error" not in capsys.readouterr().out


def test_an_error_in_a_log_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.log"
    path.write_text(VLLM + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n")
    assert main(["explain", str(path)]) == 0
    assert capsys.readouterr().out.startswith("Verdict")


def test_a_unit_is_bytes_by_the_thousand_or_the_kibi() -> None:
    """The "i" of a unit needs a prefix: "iB" alone is not a unit."""
    line = "load_tensors: CUDA{} model buffer size = 5 {}\n"
    units = ("B", "KB", "MiB", "GiB", "iB")
    text = LLAMA + "".join(line.format(9 + n, unit) for n, unit in enumerate(units))
    values = {each.device: each.value for each in figures_in(text).figures}  # type: ignore[union-attr]
    found = [values.get(f"CUDA{9 + n}") for n in range(len(units))]
    assert found == [5, 5 << 10, 5 << 20, 5 << 30, None]
