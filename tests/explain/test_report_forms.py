"""Every form of out-of-memory message in public bug reports leads to the right cause.

Each form is named after a report. The wording is that of PyTorch, the engine or the launcher, the
sizes are our own, in the same relation to each other.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim.cli import main

from .test_public_reports import NEIGHBOUR, modern, old

START = "did not start"
"""Verdict on a server that refused to start; other verdicts begin with the name of a cause."""

NVML = 'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "{}":{}, please report a bug.'
POOL = (
    "free_upper_bound + pytorch_used_bytes[device] <= device_total INTERNAL ASSERT FAILED at "
    '"{}CUDAMallocAsyncAllocator.cpp":540, please report a bug to PyTorch.'
)
NOT_FREE = (
    "ValueError: Free memory on device ({}/{} GiB) on startup is less than desired GPU memory "
    "utilization (0.9, {} GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
    "processes."
)
BUFFER = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating {} MiB on device 0: {} failed: out of "
    "memory"
)
SERVED = "\x1b[36m(WorkerDict pid=4711, ip=10.0.0.7)\x1b[0m {}"
BAR = "Processed prompts:  97%|█████████▋| 1240/1280 [00:10<00:00, 693.22it/s]"
TRACEBACK = 'Traceback (most recent call last):\n  File "execution.py", line 31, in execute\n'


def pool(allocated: str, tried: str, total: str, free: str, limit: str) -> str:
    """Return an error in the words of the cudaMallocAsync backend."""
    return (
        "Allocation on device 0 would exceed allowed memory. (out of memory)\n"
        f"Currently allocated     : {allocated}\nRequested               : {tried}\n"
        f"Device limit            : {total}\nFree (according to CUDA): {free}\n"
        "PyTorch limit (set by user-supplied memory fraction)\n"
        f"                        : {limit}\n"
    )


NO_LIMIT = "17179869184.00 GiB"

FORMS: dict[str, tuple[str, str, str]] = {
    # name: (text, verdict, words of the answer)
    "pytorch 152135": (
        modern("128.00 MiB", "23.64 GiB", "90.00 MiB", "12.50 GiB", "10.10 GiB"),
        "fragmentation", "expandable_segments:True before",
    ),
    "pytorch 138002": (
        modern("6.64 GiB", "19.92 GiB", "6.22 GiB", "5.34 GiB", "7.10 GiB", backend="HIP"),
        "fragmentation", "below ROCm 7",
    ),
    "pytorch 121899": (
        NVML.format("../c10/cuda/CUDACachingAllocator.cpp", 830), "no_figures", "MIG",
    ),
    "pytorch 185240": (
        NVML.format("/opt/pytorch/pytorch/c10/cuda/CUDACachingAllocator.cpp", 995),
        "no_figures", "Jetson",
    ),
    "pytorch 175666": (
        NOT_FREE.format("22.1", "31.36", "28.22"), START, "--gpu-memory-utilization 0.70",
    ),
    "pytorch 139382": (
        f"RuntimeError: {POOL.format('../c10/cuda/')}", "no_figures", "cudaMallocAsync backend",
    ),
    "TheRock 4598": (
        modern("14.00 GiB", "15.47 GiB", "92.00 GiB", "9.00 GiB", "100.00 MiB", backend="HIP"),
        "free_above_request", "sizes contradict each other",
    ),
    "TheRock 2396": (
        modern("1.50 GiB", "31.98 GiB", "4.00 GiB", "26.00 GiB", "900.00 MiB", backend="HIP"),
        "free_above_request", "set_per_process_memory_fraction",
    ),
    "intel-extension-for-pytorch 629": (
        "RuntimeError: Current platform can NOT allocate memory block with size larger than 4GB! "
        "Tried to allocate 5.25 GiB (GPU  0; 15.56 GiB total capacity; 0 bytes already allocated; "
        "0 bytes reserved in total by PyTorch)",
        "impossible", "UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1",
    ),
    "intel-extension-for-pytorch 846": (
        modern("4.20 GiB", "15.11 GiB", "14.00 GiB", "512.00 MiB", "20.00 MiB", backend="XPU"),
        "free_above_request", "single allocations above 4.00 GiB",
    ),
    "intel-extension-for-pytorch 863": (
        "RuntimeError: XPU out of memory. Tried to allocate 512.00 MiB (GPU 0; 15.91 GiB total "
        "capacity; 14.90 GiB already allocated; 15.10 GiB reserved in total by PyTorch)",
        "no_figures", "how much memory was free",
    ),
    "intel-xpu-backend-for-triton 7477": (
        modern("4.00 GiB", "15.11 GiB", "15.11 GiB", "1024 bytes", "2.00 MiB", backend="XPU"),
        "free_above_request", "single allocations above 4.00 GiB",
    ),
    "Intel's driver": (
        "RuntimeError: Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_"
        "MEMORY)",
        "no_figures", "call outside PyTorch's allocator",
    ),
    "Intel's older driver": (
        "RuntimeError: Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES)",
        "no_figures", "call outside PyTorch's allocator",
    ),
    "ComfyUI 6073": (
        "2026-11-16 17:10:56,767 - root - ERROR - !!! Exception during processing !!! Allocation "
        f"on device \n2026-11-16 17:10:56,770 - root - ERROR - {TRACEBACK}"
        "torch.OutOfMemoryError: Allocation on device \n",
        "no_figures", "cudaMallocAsync backend",
    ),
    "ComfyUI 4852": (
        "## Error Details\n- **Node Type:** KSampler\n- **Exception Type:** "
        "torch.OutOfMemoryError\n- **Exception Message:** Allocation on device \n",
        "no_figures", "cudaMallocAsync backend",
    ),
    "ComfyUI 10662": (
        "!!! Exception during processing !!! Allocation on device \nThis error means you ran out "
        "of memory on your GPU.\n\nTIPS: You might have set the batch_size to a large number.\n",
        "no_figures", "cudaMallocAsync backend",
    ),
    "ComfyUI 11584": (
        "torch.AcceleratorError: CUDA error: out of memory\nCUDA kernel errors might be "
        "asynchronously reported at some other API call\n",
        "no_figures", "call outside PyTorch's allocator",
    ),
    "ComfyUI 8984": (
        "RuntimeError: CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in the "
        "documentation for more information.\n",
        "no_figures", "call outside PyTorch's allocator",
    ),
    "ComfyUI 12360": (
        pool("14.81 GiB", "320.00 MiB", "15.92 GiB", "0 bytes", NO_LIMIT).replace("\n", " "),
        "full", "320.00 MiB tried > 0 bytes free",
    ),
    "joy_caption_two 28": (
        pool("15.16 GiB", "512.00 KiB", "15.99 GiB", "0 bytes", NO_LIMIT),
        "full", "512.00 KiB are missing",
    ),
    "DynamiCrafterWrapper 119": (
        pool("8.28 GiB", "8.01 GiB", "15.70 GiB", "38.06 MiB", NO_LIMIT),
        "full", "8.01 GiB tried > 38.06 MiB free",
    ),
    "cudaMallocAsync with a fraction": (
        pool("9.00 GiB", "2.00 GiB", "23.99 GiB", "14.00 GiB", "10.00 GiB"),
        "fraction_limit", "10.00 GiB allowed",
    ),
    "x-flux-comfyui 161": (
        POOL.format(r"C:\\actions-runner\\_work\\pytorch\\pytorch\\c10\\cuda\\"),
        "no_figures", "On Windows the driver lends host memory",
    ),
    "vllm 19186": (
        "(VllmWorker rank=1 pid=311) ERROR 06-05 10:11:12 [multiproc_executor.py:522] " + modern(
            "896.00 MiB", "79.25 GiB", "702.88 MiB", "76.90 GiB", "240.11 MiB",
            more="Process 311 has 78.55 GiB memory in use. ",
        ),
        "full", "only 0.3% of 77.13 GiB is idle",
    ),
    "vllm 20305": (
        f"ERROR 07-01 08:00:00 [core.py:515] {NOT_FREE.format('3.9', '22.16', '19.94')}",
        START, "--gpu-memory-utilization 0.17",
    ),
    "vllm 25350": (
        "(EngineCore_DP0 pid=99) ERROR [core.py:718] ValueError: To serve at least one request "
        "with the models's max seq len (262144), (24.00 GiB KV cache is needed, which is larger "
        "than the available KV cache memory (9.75 GiB). Based on the available memory, the "
        "estimated maximum model length is 106496.",
        START, "--max-model-len 106496",
    ),
    "vllm 13061": (
        "INFO model_runner.py:1115] Loading model weights took 13.9476 GB\n[rank0]: ValueError: "
        "The model's max seq len (131072) is larger than the maximum number of tokens that can be "
        "stored in KV cache (10960).",
        START, "13.95 GiB weights",
    ),
    "vllm without a cache": (
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.",
        START, "leave no memory for the cache",
    ),
    "vllm's sampler": (
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy "
        "requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization`.",
        START, "--max-num-seqs 128",
    ),
    "sglang 5285": (
        "[2026-11-11 10:00:00 TP0] Scheduler hit an exception: " + TRACEBACK + modern(
            "3.50 GiB", "95.22 GiB", "2.10 GiB", "88.00 GiB", "1.10 GiB",
            more="Including non-PyTorch memory, this process has 93.00 GiB memory in use. ",
        ),
        "full", "307.20 MiB would still be missing",
    ),
    "sglang 4330": (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        START, "a larger --mem-fraction-static",
    ),
    "llama.cpp 11476": (
        "load_tensors:        CUDA0 model buffer size = 18000.00 MiB\n"
        f"{BUFFER.format('9866.00', 'cudaMalloc')}\n"
        "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 10345250816\n",
        START, "17.58 GiB weights of CUDA0",
    ),
    "llama.cpp 26297": (
        f"llama_kv_cache:      CUDA0 KV buffer size =  4096.00 MiB\n"
        f"{BUFFER.format('2048.00', 'cudaMalloc')}\n"
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 2147483648\n",
        START, "card 0 has no 2,048.00 MiB",
    ),
    "llama.cpp over HIP": (BUFFER.format("5120.00", "hipMalloc"), START, "5,120.00 MiB"),
    "llama.cpp while it runs": (
        "CUDA error: out of memory\n  current device: 1, in function alloc at "
        "ggml/src/ggml-cuda/ggml-cuda.cu:431\n  cuMemCreate(&handle, reserve_size, &prop, 0)\n",
        START, "memory of card 1 ran out",
    ),
    "ollama 6860": (
        "Error: llama runner process has terminated: cudaMalloc failed: out of memory\n"
        "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 2147483648\n",
        START, "card 0 has no 2,048.00 MiB",
    ),
    "ollama 9782": (
        '{"error":"llama runner process has terminated: CUDA error: out of memory\\n  current '
        'device: 0, in function alloc at ggml-cuda.cu:375"}',
        START, "-ub 256",
    ),
    "EasyR1 9": (
        SERVED.format(BAR) + "\n" + SERVED.format(modern(
            "2.50 GiB", "79.19 GiB", "1.94 GiB", "60.00 GiB", "15.00 GiB",
            more="Process 118847 has 77.24 GiB memory in use. ",
        )),
        "fragmentation", "2.50 GiB tried <= 15.00 GiB idle",
    ),
    "EasyR1 9, in a progress bar": (
        f"\x1b[36m(Runner pid=104449)\x1b[0m   File \"actor.py\", line 12, in f\r {BAR} "
        + modern("2.50 GiB", "79.19 GiB", "1.94 GiB", "74.00 GiB", "500.00 MiB"),
        "full", "73.44 MiB would still be missing",
    ),
    "verl's task": (
        "ray.exceptions.RayTaskError(OutOfMemoryError): ray::WorkerDict.update_actor() "
        "(pid=118848, ip=10.0.0.7, repr=<x>)\n"
        + modern("2.50 GiB", "79.19 GiB", "1.94 GiB", "74.00 GiB", "500.00 MiB"),
        "full", "73.44 MiB would still be missing",
    ),
    "a neighbour on the card": (
        modern(
            "256.00 MiB", "79.15 GiB", "100.00 MiB", "37.00 GiB", "128.00 MiB",
            more=NEIGHBOUR.format("41.00 GiB", "38.00 GiB"),
        ),
        "full", "process 4010 held 41.00 GiB",
    ),
    "a limit beside a neighbour": (
        modern(
            "996.00 MiB", "44.43 GiB", "9.06 GiB", "17.44 GiB", "59.88 MiB",
            more="Process 4010 has 17.54 GiB memory in use. Including non-PyTorch memory, this "
            "process has 17.81 GiB memory in use. 17.69 GiB allowed; ",
        ),
        "fraction_limit", "not the card Because 17.50 GiB reserved",
    ),
    "a limit that does not decide": (
        modern(
            "130.00 MiB", "191.69 GiB", "0 bytes", "9.58 GiB", "20.00 MiB",
            more="50.00 GiB allowed; ",
        ),
        "full", "outside this PyTorch held 182.09 GiB",
    ),
    "a limit in a text that is cut": (
        "CUDA out of memory. Tried to allocate 512.00 MiB. \nGPU 0 has a total capacity of 23.99 "
        "GiB of which 3.42 GiB is free. \n19.19 GiB allowed; Of the allocated memory 19.01 GiB is "
        "allocated by PyTorch",
        "fraction_limit", "19.01 GiB in use + 512.00 MiB tried > 19.19 GiB allowed",
    ),
    "WSL, with processes of unknown size": (
        modern(
            "3.98 GiB", "31.84 GiB", "16.30 GiB", "6.74 GiB", "7.02 GiB",
            more="Process 23 has 17179869184.00 GiB memory in use. Including non-PyTorch memory, "
            "this process has 17179869184.00 GiB memory in use. 17.51 GiB allowed; ",
        ),
        "fraction_limit", "13.76 GiB reserved + 3.98 GiB tried > 17.51 GiB allowed",
    ),
    "WSL, full": (
        modern(
            "3.98 GiB", "31.84 GiB", "0 bytes", "29.74 GiB", "1.02 GiB",
            more="Including non-PyTorch memory, this process has 17179869184.00 GiB memory in "
            "use. ",
        ),
        "full", "2.96 GiB would still be missing",
    ),
    "the allocator's warning before the error": (
        "[W903 13:41:51.709566905 CUDACachingAllocator.cpp:3934] memory allocation failed with OOM "
        "on device 0 while trying to allocate 42949672960 bytes (free: 33136967680, total: "
        f"33668857856).\n{TRACEBACK}"
        + modern("40.00 GiB", "31.36 GiB", "30.86 GiB", "0 bytes", "0 bytes"),
        "impossible", "40.00 GiB tried > 31.36 GiB",
    ),
    "NWPU-MOC 7": (
        old("11.50 GiB", "12.00 GiB", "11.80 GiB", "0 bytes", "23.40 GiB"),
        "host_fallback", "23.40 GiB reserved > 12.00 GiB",
    ),
    "derrian-distro 178": (
        old("20.00 MiB", "8.00 GiB", "7.20 GiB", "0 bytes", "7.33 GiB"),
        "fragmentation", "Only 1.8% of PyTorch's memory is idle",
    ),
    "Apple": (
        "RuntimeError: MPS backend out of memory (MPS allocated: 17.26 GB, other allocations: "
        "768.00 KB, max allowed: 18.13 GB). Tried to allocate 1.00 GB on private pool.",
        "full", "17.26 GiB in use + 1024.00 MiB tried > 18.13 GiB allowed",
    ),
    "Ascend": (
        "RuntimeError: NPU out of memory. Tried to allocate 2.32 GiB (NPU 0; 60.97 GiB total "
        "capacity; 57.21 GiB already allocated; 57.21 GiB current active; 1.54 GiB free; 58.27 GiB "
        "reserved in total by PyTorch)",
        "fragmentation_likely", "1.06 GiB idle + 1.54 GiB free",
    ),
    "translated": (
        "RuntimeError: CUDA 显存不足。尝试分配 2.00 GiB。GPU 0 的总容量为 23.99 GiB，其中 1.20 GiB "  # noqa: RUF001
        "可用。PyTorch 已分配 20.10 GiB，已保留但未分配 500.00 MiB。",  # noqa: RUF001
        "full", "500.00 MiB idle + 1.20 GiB free",
    ),
    "translated, older": (
        "RuntimeError: CUDA недостаточно памяти. Попытка выделить 2.00 GiB (GPU 0; 8.00 GiB "
        "всего; 4.20 GiB уже выделено; 1.10 GiB свободно; 6.50 GiB зарезервировано PyTorch)",
        "fragmentation", "2.30 GiB idle",
    ),
    "NCCL": (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled "
        "cuda error\nLast error:\nFailed to CUDA calloc async 2432 bytes\n",
        "no_figures", "call outside PyTorch's allocator",
    ),
    "cuBLAS": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "no_figures", "call outside PyTorch's allocator",
    ),
    "PyTorch 2.3": ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU ", "no_figures", "2.3"),
    "PyTorch 2.12, refused by the policy": (
        "torch.OutOfMemoryError: CUDA out of memory. Allocation was preemptively rejected because "
        "it would exceed per_process_memory_fraction limit. Requested size: 53.61 MiB",
        "fraction_limit", "53.61 MiB tried",
    ),
    "more than an exbibyte": (
        "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        "impossible", "larger than any card",
    ),
}  # fmt: skip


UNPROVED = [
    name
    for name, (_, verdict, _) in FORMS.items()
    if verdict in {"fragmentation", "full"} and name != "Apple"
]
"""Forms for which a setting may help, or whose memory a recording would show."""


def explained(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the answer of `allocsim explain` on a log, on one line."""
    log = tmp_path / "job.log"
    log.write_text(text, encoding="utf-8")
    assert main(["explain", str(log)]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", FORMS)
def test_message_of_a_public_report_has_its_cause(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, verdict, words = FORMS[name]
    answer = explained(text, tmp_path, capsys)
    assert f"Verdict {verdict}:" in answer
    assert words in answer
    assert "Errors " not in answer


@pytest.mark.parametrize(
    "allowed", ["1.05 GiB", "1.10 GiB", "30.00 GiB", "300.00 GiB"], ids=lambda size: size
)
def test_printed_limit_decides_only_if_the_sizes_exceed_it(
    allowed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1,017 MiB allocated, 55 idle and 2 requested are 1.049 GiB."""
    more = f"{allowed} allowed; "
    text = modern("2.00 MiB", "255.98 GiB", "244.65 GiB", "1017.01 MiB", "54.99 MiB", more=more)
    assert "Verdict free_above_request:" in explained(text, tmp_path, capsys)
    over = text.replace(allowed, "1.04 GiB")
    assert "Verdict fraction_limit:" in explained(over, tmp_path, capsys)


@pytest.mark.parametrize("name", UNPROVED)
def test_text_that_proves_no_setting_says_how_to_record(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = explained(FORMS[name][0], tmp_path, capsys)
    assert "To paste" not in answer
    assert "python -m allocsim.capture run.pickle" in answer
