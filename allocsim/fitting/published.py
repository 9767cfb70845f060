"""Format of published weights, from words of their name on the Hugging Face hub, such as "AWQ"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from allocsim.errors import ConfigError
from allocsim.fitting.formulas import FORMATS
from allocsim.fitting.model import Configured
from allocsim.fitting.presets import PRESETS, find_preset, format_words
from allocsim.fitting.task import Task

_QUANTISED: dict[str, dict[str, Any]] = {
    "awq-int4": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True,
                 "version": "gemm"},
    "gptq-int4": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False,
                  "sym": True},
    "gptq-int8": {"quant_method": "gptq", "bits": 8, "group_size": 128, "desc_act": False,
                  "sym": True},
    "fp8-blocks": {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                   "weight_block_size": [128, 128]},
    "mxfp4": {"quant_method": "mxfp4"},
}  # fmt: skip
"""Value of `quantization_config` in config.json for each format of published weights."""

_PLAIN = frozenset(("bf16", "fp16", "f16", "unquantized"))
_GGUF_TYPE = re.compile(r"i?q\d")
_BITS = re.compile(r"(?:int|w)(\d)(?:a\d+)?|(\d)bit")
_GROUP = re.compile(r"g(\d+)|(\d+)g")
_OTHERS = ("exl2", "exl3", "hqq", "aqlm", "mlx")
_FORMATS: dict[tuple[str, int], str] = {
    **{("awq", 4): "awq-int4", ("awq", 8): "gptq-int8", ("bnb", 4): "nf4", ("bnb", 8): "int8"},
    **{(method, bits): f"gptq-int{bits}" for method in ("gptq", "autoround") for bits in (4, 8)},
    **{("w4a16", 4): "gptq-int4", ("w8a16", 8): "gptq-int8", ("w8a8", 8): "int8"},
    **{("int4", 4): "gptq-int4", ("int8", 8): "int8"},
}
"""Dictionary from (word in a model's name, bits per weight) to the format of the weights."""


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """Quantization that a model's name indicates.

    words: words of the name that indicate it, such as "gptq-int4"; "" if there are none.
    format: a name of `FORMATS`, the type of a GGUF file, or "" if the words give neither.
    is_gguf: True if the weights are a GGUF file.
    is_assumed: True if scales for groups of 128 weights are a guess, as the name gives no size.
    """

    words: str = ""
    format: str = ""
    is_gguf: bool = False
    is_assumed: bool = False


def named_format(name: str) -> NamedFormat:
    """Return the quantization that a model's name indicates; 16-bit weights are not quantized."""
    words = format_words(name)
    if not words or set(words) & _PLAIN:
        return NamedFormat()
    owner = name.lower().rpartition("/")[0]
    said = "-".join(words)
    if set(words) & set(_OTHERS) or owner.endswith("mlx-community"):
        return NamedFormat(said)
    kind = next((word for word in words if _GGUF_TYPE.match(word)), "")
    if kind or "gguf" in words or words == ["qat"]:
        return NamedFormat(said, kind.upper().replace("-", "_"), is_gguf=True)
    found = _format_of(words, owner)
    group = next((int(m[1] or m[2]) for word in words if (m := _GROUP.fullmatch(word))), 0)
    if not found.startswith(("gptq", "awq")):
        return NamedFormat(said, found)
    suffix = f"-g{group}" if group not in (0, 128) else ""
    is_known = bool(group or {"gptq", "awq"} & set(words))
    return NamedFormat(said, found + suffix, is_assumed=not is_known)


def _format_of(words: Sequence[str], owner: str) -> str:
    if "nvfp4" in words or "fp4" in words:
        return "nvfp4"
    if "mxfp4" in words:
        return "mxfp4"
    if "fp8" in words:  # Qwen and DeepSeek have a scale for each block of 128 x 128 elements
        in_blocks = "block" in words or owner in ("qwen", "deepseek-ai")
        return "fp8-blocks" if in_blocks else "fp8-rows" if "dynamic" in words else "fp8"
    bits = next((int(m[1] or m[2]) for word in words if (m := _BITS.fullmatch(word))), 4)
    for (method, of), found in _FORMATS.items():
        if method in words and bits == of:
            return "nf4-double" if found == "nf4" and owner == "unsloth" else found
    return ""


UNSLOTH_NOTE = (
    "weights: Unsloth leaves some modules of such a checkpoint in 16 bits, which the formula does "
    "not count; two logs printed 5 % and 16 % more"
)
"""Note on dynamic checkpoints by Unsloth, which have "unsloth-bnb-4bit" in their names."""


def unused_words(name: str) -> Iterator[str]:
    """Yield a note if `name` indicates a quantization, which a run in 16 or 32 bits ignores."""
    if words := named_format(name).words:
        yield (
            f"weights: {words!r} in the name is not used, as a run has them in --dtype; --server "
            "ENGINE computes published weights, --lora RANK --quant nf4-double trains on 4 bits"
        )


def unused_words_of(task: Task) -> Iterator[str]:
    """Yield a note if the model's name indicates quantized weights, but `task.quant` is empty."""
    if isinstance(task.model, Configured) and not task.quant:
        yield from unused_words(task.model.said)


def published_format(name: str, server: str = "the engine") -> str | None:
    """Return the format of the weights published as `name` on the hub; None for 16 bits.

    Raises ConfigError if the name has words of a quantization that give no format of `FORMATS`.

    server: name of the serving engine, for the error.
    """
    named = named_format(name)
    if named.is_gguf and not named.format:
        raise ConfigError(
            f"{name[:80]}: {server} needs the type of a GGUF file, e.g. --weights Q4_K_M; "
            "--server llama.cpp or ollama assumes it"
        )
    if named.words and named.format not in FORMATS and not re.search(r"-g\d+$", named.format):
        raise ConfigError(
            f"{name[:80]}: {named.words!r} in its name has no formula; give the format of the "
            "weights, e.g. --weights gptq-int4 or nf4"
        )
    if named.words:
        return named.format
    preset = find_preset(name)
    kind = PRESETS[preset].get("weights") if preset in PRESETS else None
    return str(kind) if kind and not format_words(name) else None


def published_quantization(name: str) -> dict[str, Any]:
    weights = published_format(name)
    if weights is None:
        return {}
    if weights not in _QUANTISED:
        raise ConfigError(
            f"{name[:80]}: weights in {weights} cannot be described to an engine; expected 16 bits "
            f"or one of {', '.join(_QUANTISED)}, or a config.json"
        )
    return {"quantization_config": _QUANTISED[weights]}
