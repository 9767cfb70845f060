"""Published configurations of common models, by name.

Rule: a configuration holds the values that determine a tensor's shape or a kernel, under the keys
of the model's configuration file. Weights are not needed. Sources: the publishers' configuration
files and, for `TORCHVISION`, the functions of torchvision with those names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["CONFIGURATIONS", "TORCHVISION", "find_preset"]

Configuration = Mapping[str, Any]


def _gpt2(width: int, layers: int, heads: int) -> Configuration:
    return {
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
    }


_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
)


def _like_llama(model_type: str, *sizes: int, **more: Any) -> Configuration:
    """Return a configuration with Llama's keys.

    sizes: values of `_SIZES`, in that order.
    """
    return {"model_type": model_type, **dict(zip(_SIZES, sizes, strict=True)), **more}


def _rope(theta: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


def _llama3_rope(factor: float) -> dict[str, Any]:
    """Return the scaled rotary embedding of Llama 3.1 and later."""
    return {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    }


def _llama(*sizes: int, rope: Mapping[str, Any], tied: bool = False, **more: Any) -> Configuration:
    return _like_llama("llama", *sizes, tie_word_embeddings=tied, **rope, **more)


def _qwen2(*sizes: int, tied: bool) -> Configuration:
    """Return a configuration of Qwen2.5."""
    return _like_llama("qwen2", *sizes, tie_word_embeddings=tied, **_rope(1000000.0))


def _mistral(*sizes: int, theta: float, window: int | None = None) -> Configuration:
    return _like_llama("mistral", *sizes, sliding_window=window, **_rope(theta))


def _phi3(*sizes: int, window: int | None, pad: int = 32000) -> Configuration:
    return _like_llama("phi3", *sizes, sliding_window=window, pad_token_id=pad, **_rope(10000.0))


def _gemma2(*sizes: int, head: int, scale: int) -> Configuration:
    """Return a configuration of Gemma 2.

    sizes: hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
    num_key_value_heads.
    """
    return _like_llama(
        "gemma2",
        *(256000, *sizes, 8192),
        head_dim=head,
        query_pre_attn_scalar=scale,
        sliding_window=4096,
        tie_word_embeddings=True,
    )


def _bert(width: int, inner: int, layers: int, heads: int) -> Configuration:
    return {
        "model_type": "bert",
        "vocab_size": 30522,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 512,
    }


CONFIGURATIONS: dict[str, Configuration] = {
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "Llama-2-7B": _llama(32000, 4096, 11008, 32, 32, 32, 4096, rope=_rope(10000.0)),
    "Llama-2-13B": _llama(32000, 5120, 13824, 40, 40, 40, 4096, rope=_rope(10000.0)),
    "Llama-2-70B": _llama(32000, 8192, 28672, 80, 64, 8, 4096, rope=_rope(10000.0)),
    "Llama-3-8B": _llama(128256, 4096, 14336, 32, 32, 8, 8192, rope=_rope(500000.0)),
    "Llama-3-70B": _llama(128256, 8192, 28672, 80, 64, 8, 8192, rope=_rope(500000.0)),
    "Llama-3.1-8B": _llama(128256, 4096, 14336, 32, 32, 8, 131072, rope=_llama3_rope(8.0)),
    "Llama-3.1-70B": _llama(128256, 8192, 28672, 80, 64, 8, 131072, rope=_llama3_rope(8.0)),
    "Llama-3.1-405B": _llama(128256, 16384, 53248, 126, 128, 8, 131072, rope=_llama3_rope(8.0)),
    "Llama-3.2-1B": _llama(
        128256, 2048, 8192, 16, 32, 8, 131072, rope=_llama3_rope(32.0), tied=True, head_dim=64
    ),
    "Llama-3.2-3B": _llama(
        128256, 3072, 8192, 28, 24, 8, 131072, rope=_llama3_rope(32.0), tied=True, head_dim=128
    ),
    "Llama-3.3-70B": _llama(128256, 8192, 28672, 80, 64, 8, 131072, rope=_llama3_rope(8.0)),
    "TinyLlama-1.1B": _llama(32000, 2048, 5632, 22, 32, 4, 2048, rope=_rope(10000.0)),
    "SmolLM2-135M": _llama(49152, 576, 1536, 30, 9, 3, 8192, rope=_rope(100000.0), tied=True),
    "SmolLM2-360M": _llama(49152, 960, 2560, 32, 15, 5, 8192, rope=_rope(100000.0), tied=True),
    "SmolLM2-1.7B": _llama(49152, 2048, 8192, 24, 32, 32, 8192, rope=_rope(130000.0), tied=True),
    "Qwen2.5-0.5B": _qwen2(151936, 896, 4864, 24, 14, 2, 32768, tied=True),
    "Qwen2.5-1.5B": _qwen2(151936, 1536, 8960, 28, 12, 2, 131072, tied=True),
    "Qwen2.5-3B": _qwen2(151936, 2048, 11008, 36, 16, 2, 32768, tied=True),
    "Qwen2.5-7B": _qwen2(152064, 3584, 18944, 28, 28, 4, 131072, tied=False),
    "Qwen2.5-14B": _qwen2(152064, 5120, 13824, 48, 40, 8, 131072, tied=False),
    "Qwen2.5-32B": _qwen2(152064, 5120, 27648, 64, 40, 8, 131072, tied=False),
    "Qwen2.5-72B": _qwen2(152064, 8192, 29568, 80, 64, 8, 131072, tied=False),
    "Mistral-7B-v0.1": _mistral(32000, 4096, 14336, 32, 32, 8, 32768, theta=1e4, window=4096),
    "Mistral-7B-v0.3": _mistral(32768, 4096, 14336, 32, 32, 8, 32768, theta=1e6),
    "Mixtral-8x7B": _like_llama(
        *("mixtral", 32000, 4096, 14336, 32, 32, 8, 32768),
        num_local_experts=8,
        num_experts_per_tok=2,
        sliding_window=None,
        **_rope(1000000.0),
    ),
    "Phi-3-mini": _phi3(32064, 3072, 8192, 32, 32, 32, 4096, window=2047),
    "Phi-3-medium": _phi3(32064, 5120, 17920, 40, 40, 10, 4096, window=2047),
    "Gemma-2-2B": _gemma2(2304, 9216, 26, 8, 4, head=256, scale=256),
    "Gemma-2-9B": _gemma2(3584, 14336, 42, 16, 8, head=256, scale=256),
    "Gemma-2-27B": _gemma2(4608, 36864, 46, 32, 16, head=128, scale=144),
    "BERT-base": _bert(768, 3072, 12, 12),
    "BERT-large": _bert(1024, 4096, 24, 16),
}
"""Configurations of language models for Hugging Face transformers."""

TORCHVISION = {
    "ViT-B/16": "vit_b_16",
    "ViT-B/32": "vit_b_32",
    "ViT-L/16": "vit_l_16",
    "ResNet-18": "resnet18",
    "ResNet-34": "resnet34",
    "ResNet-50": "resnet50",
    "ResNet-101": "resnet101",
    "ResNet-152": "resnet152",
    "ConvNeXt-Base": "convnext_base",
    "EfficientNet-B0": "efficientnet_b0",
    "Swin-B": "swin_b",
}
"""Function of torchvision.models that builds each image classifier."""

_OTHER_NAMES = {
    "gpt2small": "gpt2",
    "gpt2124m": "gpt2",
    "mistral7b": "Mistral-7B-v0.1",
    "mixtral": "Mixtral-8x7B",
    "mixtral8x7bv01": "Mixtral-8x7B",
    "phi3mini4k": "Phi-3-mini",
    "phi3medium4k": "Phi-3-medium",
    "bert": "BERT-base",
    "bertbaseuncased": "BERT-base",
    "bertlargeuncased": "BERT-large",
    "vit": "ViT-B/16",
    "vitb16": "ViT-B/16",
}


def _key(name: str) -> str:
    """Return a name in lower case, without publisher, punctuation and words such as "instruct"."""
    plain = name if name in TORCHVISION else name.rsplit("/", 1)[-1]
    key = "".join(c for c in plain.lower() if c.isalnum())
    key = key.replace("instruct", "").replace("chat", "")
    for suffix in ("it", "hf"):
        key = key.removesuffix(suffix)
    return key.removeprefix("meta")


def find_preset(name: str) -> str | None:
    """Return the name of the preset that `name` means, or None if there is none.

    "Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b" and "Qwen2.5-7B" mean the same preset.
    """
    every = (*CONFIGURATIONS, *TORCHVISION)
    if name in every:
        return name
    known = {**_OTHER_NAMES, **{_key(each): each for each in every}}
    known |= {function.replace("_", ""): each for each, function in TORCHVISION.items()}
    whole = "".join(c for c in name.lower() if c.isalnum())
    return known.get(_key(name), known.get(whole))
