"""An error inside a serving engine gets the options that help in the phase of the error.

The texts are our own, with log lines and names of functions of the engines.
"""

from __future__ import annotations

import pytest

from allocsim import explain
from allocsim.analysis.explain import Verdict
from allocsim.report import explain_message

OUT = (
    "ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.10 GiB. GPU 0 has a "
    "total capacity of 23.52 GiB of which 148.81 MiB is free. Of the allocated memory 22.80 GiB is "
    "allocated by PyTorch, and 17.66 MiB is reserved by PyTorch but unallocated.\n"
)
VLLM = (
    "INFO [gpu_model_runner.py:9] Starting to load model a/b...\n",
    "INFO [gpu_model_runner.py:9] Model loading took 14.2 GiB and 5.1 seconds\n",
    "INFO [gpu_worker.py:9] Available KV cache memory: 4.75 GiB\n",
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   4%|4         | 3/67\n",
    "INFO [core.py:9] init engine (profile, create kv cache, warmup model) took 35.2 seconds\n",
)
SGLANG = (
    "[TP0] Load weight begin. avail mem=23.10 GB\n",
    "[TP0] Load weight end. type=X, avail mem=9.00 GB, mem usage=14.10 GB.\n",
    "[TP0] Memory pool end. avail mem=2.60 GB\n",
    "[TP0] max_total_num_tokens=41669, chunked_prefill_size=8192\n",
)
FRAME = '  File "/opt/lib/python3.12/site-packages/{}.py", line 481, in {}\n'
OF_PROGRAMS = ("checkpointing", "gradient accumulation", "inference_mode", "allocsim.capture")


def last(text: str) -> Verdict:
    return explain(text)[-1]


def frames(*functions: str, file: str = "vllm/v1/worker/gpu_model_runner") -> str:
    return "".join(FRAME.format(file, name) for name in functions)


@pytest.mark.parametrize(
    ("log", "when", "helps", "harms"),
    [
        (VLLM[:2], "ran a trial batch", "--max-num-batched-tokens", "a smaller --gpu-memory"),
        (VLLM[:3], "allocated the KV cache", "a smaller --gpu-memory-utilization", "--enforce"),
        (VLLM[:4], "warmed up or captured CUDA graphs", "--enforce-eager", "no effect"),
        (VLLM, "served requests", "--max-num-seqs", "no effect"),
        (SGLANG[:2], "allocated the KV cache", "a smaller --mem-fraction-static", "--chunked"),
        (SGLANG[:3], "captured CUDA graphs", "--cuda-graph-max-bs", "--chunked-prefill"),
        (SGLANG, "served requests", "--chunked-prefill-size", "--gpu-memory-utilization"),
    ],
)
def test_advice_is_of_the_last_phase_in_the_log(
    log: tuple[str, ...], when: str, helps: str, harms: str
) -> None:
    verdict = last("".join(log) + OUT)
    engine = "vLLM" if log[0] == VLLM[0] else "SGLang"
    assert verdict.cause == "full"
    assert verdict.advice[0].startswith(f"{engine} ran out of memory while it {when}")
    said = " ".join(verdict.advice)
    assert helps in said
    assert harms not in said
    assert not any(each in said for each in OF_PROGRAMS)
    shown = " ".join(str(explain_message.screen([verdict])).split())
    assert verdict.advice[1] in shown


def test_the_fraction_is_smaller_by_the_missing_share_of_the_card() -> None:
    """1.10 GiB - 148.81 MiB are 0.0406 of 23.52 GiB."""
    assert "utilization (by at least 0.05)," in last("".join(VLLM) + OUT).advice[1]
    bare = "CUDA error: out of memory\n"
    assert "by at least" not in " ".join(last("".join(VLLM) + bare).advice)


@pytest.mark.parametrize(
    ("functions", "when"),
    [
        (("load_model", "__init__"), "loaded the weights"),
        (("determine_available_memory", "profile_run", "execute_model"), "ran a trial batch"),
        (("determine_available_memory", "profile_cudagraph_memory"), "captured CUDA graphs beside"),
        (("initialize_from_config", "initialize_kv_cache_tensors"), "allocated the KV cache"),
        (("compile_or_warm_up_model", "capture_model"), "warmed up or captured"),
        (("run_busy_loop", "_process_engine_step", "execute_model"), "served requests"),
        (("worker_busy_loop", "execute_model"), "served requests"),
    ],
)
def test_a_traceback_of_vllm_shows_the_phase(functions: tuple[str, ...], when: str) -> None:
    verdict = last(frames(*functions) + OUT)
    assert verdict.advice[0].startswith(f"vLLM ran out of memory while it {when}")


@pytest.mark.parametrize(
    ("file", "functions"),
    [
        ("scheduler", ("event_loop_overlap", "run_batch")),
        ("tp_worker_overlap_thread", ("forward_thread_func", "forward_thread_func_")),
    ],
)
def test_a_traceback_of_sglang_shows_the_phase(file: str, functions: tuple[str, ...]) -> None:
    text = frames(*functions, file=f"sglang/srt/managers/{file}") + OUT
    assert last(text).advice[0].startswith("SGLang ran out of memory while it served requests")


def test_functions_of_workers_do_not_contradict_the_log() -> None:
    text = "".join(VLLM[:4]) + frames("worker_busy_loop", "execute_model") + OUT
    assert "captured CUDA graphs" in last(text).advice[0]


def test_a_new_start_in_the_same_log_begins_with_the_first_phase_again() -> None:
    text = "".join(VLLM) + OUT + "".join(VLLM[:2]) + OUT
    first, second = explain(text)
    assert "served requests" in first.advice[0]
    assert "ran a trial batch" in second.advice[0]


def test_idle_memory_of_an_engine_gets_expandable_segments_too() -> None:
    fragmented = OUT.replace("22.80 GiB", "19.80 GiB").replace("17.66 MiB", "3.00 GiB")
    advice = last("".join(VLLM) + fragmented).advice
    assert "served requests" in advice[0]
    assert any("expandable_segments:True" in each for each in advice)


def test_error_outside_an_engine_or_before_its_lines_gets_no_option_of_a_server() -> None:
    other = FRAME.format("train/worker", "execute_model")
    for text in (OUT, other + OUT, OUT + VLLM[1]):
        said = " ".join(last(text).advice)
        assert "vLLM" not in said
        assert "checkpointing" in said
