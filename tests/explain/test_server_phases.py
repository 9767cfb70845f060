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


@pytest.mark.parametrize(
    ("line", "when"),
    [
        ("model_runner.py:1115] Starting to load model a/b...", "loaded the weights"),
        ("INFO model_runner.py:1115] Loading model weights took 14.2487 GB", "ran a trial batch"),
        ("INFO Model loading took 15.0 GiB memory and 2.1 seconds", "ran a trial batch"),
        ("Profiling CUDA graph memory: PIECEWISE=51, FULL=35", "captured CUDA graphs beside the w"),
        ("GPU KV cache size: 436,544 tokens", "allocated the KV cache"),
        ("# cuda blocks: 3089, # CPU blocks: 4681", "allocated the KV cache"),
        ("Capturing CUDA graph shapes:   3%|", "warmed up or captured"),
        ("Capturing eagle decode CUDA graphs:  50%|", "warmed up or captured"),
        ("Avg prompt throughput: 3.1 tokens/s", "served requests"),
        ("Capture draft extend cuda graph begin. This can take", "captured CUDA graphs"),
        ("Prefill batch. #new-seq: 1, #new-token: 7", "served requests"),
        ("Decode batch [33], #running-req: 1", "served requests"),
    ],
)
def test_lines_of_several_releases_show_the_phase(line: str, when: str) -> None:
    assert f"ran out of memory while it {when}" in last(f"{line}\n{OUT}").advice[0]


def assert_of_a_program(text: str) -> None:
    said = " ".join(last(text).advice)
    assert "vLLM" not in said
    assert "SGLang" not in said
    assert "checkpointing" in said


@pytest.mark.parametrize(
    "line",
    [
        "Dataset loading took 3.1 seconds",
        "[train.py:45] Starting to load model llama",
        "Capturing CUDA graph for training step",
        "Graph capturing finished",
        "Decode batch 3 of the beam search",
        "Prefill batch of 4 prompts",
        "Load weight begin",
    ],
)
def test_similar_lines_of_other_programs_show_no_phase(line: str) -> None:
    assert_of_a_program(f"{line}\n{OUT}")


HEAD = "Traceback (most recent call last):\n"
TRAINING = frames("compute_loss", file="trl/trainer/grpo_trainer") + frames(
    "backward", file="torch/_tensor"
)


@pytest.mark.parametrize("head", [HEAD, ""])
def test_a_training_that_started_an_engine_gets_no_option_of_a_server(head: str) -> None:
    started = "".join(VLLM)
    assert_of_a_program(started + head + TRAINING + OUT)
    earlier = HEAD + frames("load_model") + "ValueError: no such file\n"
    assert_of_a_program(earlier + started + head + TRAINING + OUT)
    assert_of_a_program(started + head + TRAINING + OUT + OUT)


def test_only_the_traceback_of_the_error_shows_that_it_is_not_of_the_engine() -> None:
    """Tracebacks before the phase, and ends of tracebacks of other ranks, do not count."""
    started = "".join(VLLM)
    torch = frames("forward", file="torch/nn/modules/linear")
    together = started + (HEAD + frames("run_busy_loop")) * 2 + torch + OUT + torch + OUT
    for text in (HEAD + TRAINING + started + OUT, together):
        assert "served requests" in last(text).advice[0]


@pytest.mark.parametrize(
    ("cause", "error"),
    [
        ("host_memory", "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to "
         "allocate 4294967296 bytes. Error code 12 (Cannot allocate memory)\n"),
        ("impossible", OUT.replace("1.10 GiB", "110.00 GiB")),
        ("free_above_request", OUT.replace("148.81 MiB", "12.00 GiB").replace("22.80", "8.80")),
    ],
)  # fmt: skip
def test_causes_that_no_option_of_a_phase_helps_against(cause: str, error: str) -> None:
    verdict = last("".join(VLLM) + error)
    assert verdict.cause == cause
    said = " ".join(verdict.advice)
    assert "vLLM" not in said
    assert "--max-num-seqs" not in said


@pytest.mark.parametrize("folder", ["/envs/vllm/lib/python3.10", "C:\\vllm\\Lib", "/vllm/.venv/x"])
def test_the_name_of_an_environment_is_no_engine(folder: str) -> None:
    frame = f'  File "{folder}/site-packages/{{}}", line 146, in load_model\n'
    assert_of_a_program(frame.format("llamafactory/model/loader.py") + OUT)
    advice = last(frame.format("sglang/srt/model_executor/model_runner.py") + OUT).advice
    assert advice[0].startswith("SGLang ran out of memory while it loaded the weights")
    assert last(frame.format("vllm/v1/worker/gpu_worker.py") + OUT).advice[0].startswith("vLLM")


def test_error_outside_an_engine_or_before_its_lines_gets_no_option_of_a_server() -> None:
    other = FRAME.format("train/worker", "execute_model")
    of_sglang = frames("execute_model", file="sglang/srt/models/x")
    for text in (OUT, other + OUT, of_sglang + OUT, OUT + VLLM[1]):
        said = " ".join(last(text).advice)
        assert "vLLM" not in said
        assert "checkpointing" in said
