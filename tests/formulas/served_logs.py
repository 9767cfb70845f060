"""Start-up logs with the figures of public rows, in the words of each engine and release."""

from __future__ import annotations

import re
from collections.abc import Iterator

Row = dict[str, str]


def log_of(row: Row) -> str:
    """Return a log of our own making that prints the figures of a row of logs.csv."""
    texts = {"vllm": _vllm, "sglang": _sglang, "llama.cpp": _llama_cpp, "ollama": _llama_cpp}
    return "".join(f"{line}\n" for line in texts[row["server"]](row))


def _option(row: Row, name: str) -> str:
    found = re.search(rf"{name} (\S+)", row["options"])
    return found[1] if found else ""


def _release(row: Row) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", row["release"])
    return (int(found[1]), int(found[2])) if found else (0, 12)


def _vllm(row: Row) -> Iterator[str]:
    release, cards = _release(row), _option(row, "--tensor-parallel-size")
    fraction = _option(row, "--gpu-memory-utilization")
    given = {"gpu_memory_utilization": fraction, "max_num_seqs": _option(row, "--max-num-seqs")}
    named = ", ".join(f"'{name}': {value}" for name, value in given.items() if value)
    if row["release"]:
        yield f"INFO [api_server.py:18] vLLM API server version {row['release']}"
    yield f"INFO [api_server.py:20] args: non-default args: {{{named}}}"
    yield (
        f"INFO [core.py:70] Initializing a V1 LLM engine (v{row['release'] or '0.12.0'}) with "
        f"config: max_seq_len={_option(row, '--max-model-len') or 8192}, "
        f"tensor_parallel_size={cards or 1}, pipeline_parallel_size=1"
    )
    if chunk := _option(row, "--max-num-batched-tokens"):
        yield f"INFO [scheduler.py:9] Chunked prefill is enabled: max_num_batched_tokens={chunk}."
    who = "(Worker_TP0 pid=7) " if cards else "(EngineCore_0 pid=7) "
    if weights := row["weights_gib"]:
        unit = "GB" if release < (0, 9) else "GiB"
        said = "Loading model weights took" if release < (0, 8) else "Model loading took"
        yield f"{who}INFO [gpu_model_runner.py:9] {said} {weights} {unit} and 3.1 seconds"
    yield from _vllm_memory(row, who, fraction or "0.9")
    if tokens := row["tokens"]:
        if row["engine"] == "V0":
            yield f"INFO [executor.py:9] # cuda blocks: {int(tokens) // 16}, # CPU blocks: 9362"
        else:
            yield f"INFO [kv_cache_utils.py:9] GPU KV cache size: {int(tokens):,} tokens"
        yield "INFO [kv_cache_utils.py:9] Maximum concurrency for 4,096 tokens per request: 5.00x"
    if graphs := row["graphs_gib"]:
        yield f"{who}INFO [runner.py:9] Graph capturing finished in 9 secs, took {graphs} GiB"


def _vllm_memory(row: Row, who: str, fraction: str) -> Iterator[str]:
    """Yield the lines about the budget, which differ most between releases."""
    cache, activation, beside = row["cache_gib"], row["activation_gib"], row["beside_gib"]
    total = row["total"]
    if row["engine"] == "V0" or _release(row) < (0, 8):
        if total:
            yield f"the current vLLM instance can use total_gpu_memory ({total}GiB) x "
            yield f"gpu_memory_utilization ({fraction}) = 9.99GiB"
        yield (
            f"model weights take {row['weights_gib']}GiB; non_torch_memory takes {beside or 0}GiB; "
            f"PyTorch activation peak memory takes {activation}GiB; the rest of the memory "
            f"reserved for KV Cache is {cache or 1}GiB."
        )
        return
    if estimate := row["estimate_gib"]:
        yield f"{who}INFO [gpu_model_runner.py:9] Estimated CUDA graph memory: {estimate} GiB total"
    if cache:
        yield f"{who}INFO [gpu_worker.py:9] Available KV cache memory: {cache} GiB"
    if activation and total:
        weights = float(row["weights_gib"])
        usage = f"{weights} GiB for weight, {activation} GiB for peak activation, {beside} GiB for "
        usage += "non-torch memory, and 0.1 GiB for CUDAGraph memory"
        if _release(row) >= (0, 26):
            usage = f"{weights + 0.3:.2f} GiB for consumed memory (weights + non-torch), "
            usage += f"{activation} GiB for peak activation, and 0.1 GiB for CUDAGraph memory"
        yield (
            f"{who}INFO [gpu_worker.py:9] Free memory on device (3.0/{total} GiB) on startup. "
            f"Desired GPU memory utilization is ({fraction}, 9.99 GiB). Actual usage is {usage}. "
            "Replace gpu_memory_utilization config with `--kv-cache-memory=9103417344` (8.48 GiB) "
            f"to fit into requested memory. Current kv cache memory in use is {cache} GiB."
        )


def _sglang(row: Row) -> Iterator[str]:
    cards = _option(row, "--tp-size")
    yield (
        f"server_args=ServerArgs(mem_fraction_static={_option(row, '--mem-fraction-static')}, "
        f"tp_size={cards or 1}, cuda_graph_max_bs=1)"
    )
    rank = " TP0" if cards else ""
    if weights := row["weights_gib"]:
        yield (
            f"[2026-06-10 10:00:00{rank}] Load weight end. elapsed=8.0 s, type=X, "
            f"dtype=torch.bfloat16, avail mem=12.91 GB, mem usage={weights} GB."
        )
    tokens, cache = row["tokens"], row["cache_gib"]
    if tokens and cache and "gemma" in row["model"]:
        yield (
            f"[2026-06-10 10:00:01{rank}] SWAKVPool mem usage: {cache} GB, swa size: 24474, "
            f"full size: {tokens}"
        )
    elif tokens and cache:
        half = float(cache) / 2
        yield (
            f"[2026-06-10 10:00:01{rank}] KV Cache is allocated. #tokens: {tokens}, "
            f"K size: {half:.3f} GB, V size: {half:.3f} GB"
        )
    yield f"[2026-06-10 10:00:02{rank}] Memory pool end. avail mem=3.43 GB"


def _llama_cpp(row: Row) -> Iterator[str]:
    layers = _option(row, "-ngl") or "29"
    yield "build: 8179 (0123abcd) with GNU 13.3.0"
    yield f"load_tensors: offloaded {layers}/37 layers to GPU"
    yield "load_tensors:   CPU_Mapped model buffer size =   337.51 MiB"
    yield f"load_tensors:        CUDA0 model buffer size = {_mib(row['weights_gib'])} MiB"
    yield f"llama_context: n_ctx         = {_option(row, '-c')}"
    yield f"llama_kv_cache:      CUDA0 KV buffer size = {_mib(row['cache_gib'])} MiB"
    if row["compute_gib"]:
        yield f"llama_context:      CUDA0 compute buffer size = {_mib(row['compute_gib'])} MiB"
    yield "llama_context:  CUDA_Host compute buffer size =    24.01 MiB"


def _mib(gib: str) -> str:
    return f"{float(gib) * 1024:.2f}"
