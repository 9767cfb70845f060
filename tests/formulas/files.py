"""Small model files, written by the rules of their formats without code of the package."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["gguf_bytes", "safetensors_bytes", "small_gguf", "small_safetensors"]


def safetensors_bytes(header: Mapping[str, Any], data: int) -> bytes:
    """Return the contents of a file with the given header and `data` bytes of data."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data)


def small_safetensors() -> bytes:
    """Return the contents of a file with two matrices and a vector."""
    header = {
        "__metadata__": {"format": "pt"},
        "model.embed_tokens.weight": {
            "dtype": "BF16",
            "shape": [64, 8],
            "data_offsets": [0, 1024],
        },
        "model.layers.0.mlp.up_proj.weight": {
            "dtype": "F8_E4M3",
            "shape": [16, 8],
            "data_offsets": [1024, 1152],
        },
        "model.norm.weight": {"dtype": "F32", "shape": [8], "data_offsets": [1152, 1184]},
    }
    return safetensors_bytes(header, 1184)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    return struct.pack(f"<IIQ{len(value)}I", 9, 4, len(value), *value)


def gguf_bytes(
    metadata: Mapping[str, Any], tensors: Sequence[tuple[str, int, Sequence[int], int]]
) -> bytes:
    """Return the contents of a GGUF file of version 3.

    tensors: name, number of the type, dimensions with the row's first, and bytes.
    """
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += _text(key) + _value(value)
    place = 0
    for name, kind, dims, size in tensors:
        out += _text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        out += struct.pack("<IQ", kind, place)
        place += -(-size // 32) * 32
    return out + bytes(-len(out) % 32) + bytes(place)


def small_gguf() -> bytes:
    """Return the contents of a file with one layer, 256 wide, in Q4_K, Q6_K and F32."""
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.embedding_length": 256,
        "llama.feed_forward_length": 512,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": [2],
        "tokenizer.ggml.tokens": ["a", "b", "c"],
    }
    tensors = [
        ("token_embd.weight", 12, (256, 64), 64 * 144),
        ("blk.0.attn_q.weight", 12, (256, 256), 256 * 144),
        ("blk.0.ffn_down.weight", 14, (512, 256), 256 * 2 * 210),
        ("output_norm.weight", 0, (256,), 1024),
    ]
    return gguf_bytes(metadata, tensors)
