"""Recognise texts that users pass in place of a recording, such as a log of vLLM.

A text is recognised by words that only one program prints.
"""

from __future__ import annotations

import re

__all__ = ["TEXTS", "name_of_text"]

TEXTS = (
    ("memory_summary", "a table of torch.cuda.memory_summary()", rb"PyTorch CUDA memory summary"),
    (
        "oom",
        "text with an out-of-memory error",
        rb"OutOfMemoryError|\b(?:CUDA|HIP|XPU|NPU) out of memory",
    ),
    (
        "vllm",
        "a start-up log of vLLM",
        rb"GPU KV cache size:|Available KV cache memory|[Mm]odel weights take"
        rb"|# (?:GPU|cuda) blocks:|[Mm]odel loading took|Loading model weights took",
    ),
    (
        "sglang",
        "a start-up log of SGLang",
        rb"KV Cache is allocated|Load weight (?:begin|end)\b|max_total_num_tokens=",
    ),
    (
        "llama.cpp",
        "a start-up log of llama.cpp",
        rb"(?:llm_load_tensors|load_tensors|llama_kv_cache\w*|llama_new_context_with_model"
        rb"|llama_context|ggml_backend_\w+|llama_model_load\w*):",
    ),
)
"""Short name, description and regular expression of each known text."""


def name_of_text(text: bytes) -> str | None:
    """Return a description of the text, or None if it is unknown."""
    for _, what, words in TEXTS:
        if re.search(words, text):
            return what
    return None
