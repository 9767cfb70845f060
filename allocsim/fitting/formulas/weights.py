"""Bytes of a model's weights in each format, such as "awq-int4", and their division over GPUs.

Every tensor is counted: a quantised tensor with its scales, zero points and indices, and any other
tensor in 16 bits.
"""

# Sources. LLM.int8 and NF4: `bitsandbytes`, nn/modules.py (`Int8Params.SCB`) and functional.py
# (`quantize_4bit`: blocks of 64, nested blocks of 256), and Dettmers et al., QLoRA (2023), section
# 3. GPTQ: `AutoGPTQ`/`GPTQModel`, `QuantLinear` (qweight, qzeros, scales, g_idx). AWQ: `AutoAWQ`,
# `WQLinear_GEMM`. FP8: vLLM's and llm-compressor's W8A8 documentation; with a scale per row:
# FBGEMM's, as in transformers' `FbgemmFp8Linear`; by blocks: DeepSeek-V3's technical report (2024).
# MXFP4, for the experts of gpt-oss: OCP Microscaling Formats (2023), 32 elements share an 8-bit
# scale. NVFP4: compressed-tensors `nvfp4-pack-quantized`, 16 elements share an 8-bit scale, and a
# matrix has two 32-bit scales. Configurations: compressed-tensors, `QuantizationArgs`; ModelOpt;
# AutoRound. GGUF: `ggml.py`. Skipped layers: transformers'
# `get_keys_to_not_convert`; GPTQ and AWQ quantise only the modules of the layers. Tensor
# parallelism: Shoeybi et al., "Megatron-LM" (2019), section 3; vLLM,
# model_executor/layers/linear.py (QKVParallelLinear) and vocab_parallel_embedding.py
# (DEFAULT_VOCAB_PADDING_SIZE).

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeGuard

from allocsim.errors import ConfigError
from allocsim.fitting.formulas.ggml import BASES, bytes_in, kind_of
from allocsim.fitting.formulas.shapes import Shape
from allocsim.fitting.formulas.sizes import ModelSizes
from allocsim.units import round_up

_GROUP = 128
_BLOCK = 128
"""Rows and columns of a block of a matrix that has one scale in DeepSeek's FP8."""
_GROUPED = re.compile(r"(gptq-int4|gptq-int8|awq-int4)-g(\d{1,5})")
_PLAIN = {"fp32": 4, "bf16": 2, "fp16": 2}
_EMBEDDINGS = ("token_embd", "token_embd_layers", "position")
_PART = {**dict.fromkeys(_EMBEDDINGS, "embeddings"), "output": "head"}

FORMATS = (
    *_PLAIN,
    *("fp8", "fp8-rows", "fp8-blocks", "mxfp4", "nvfp4", "int8", "nf4", "nf4-double"),
    *("gptq-int4", "gptq-int8", "awq-int4"),
    *(name for name in BASES if name not in ("F32", "F16", "BF16")),
)
"""Names of formats; in "gptq-int4-g32", the suffix "-g32" gives the group size (default: 128)."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes that one tensor takes in a format.

    shape: role and dimensions of the tensor.
    size: bytes of the tensor's elements.
    scales: bytes of the tensor's scales, zero points and indices.
    is_quantised: True if an element has fewer bits than an element of activations.
    """

    shape: Shape
    size: int
    scales: int = 0
    is_quantised: bool = False


@dataclass(frozen=True, slots=True)
class Weights:
    """All tensors of a model, stored in one format.

    name: name of the format, such as "bf16" or "awq-int4".
    """

    name: str
    tensors: tuple[Stored, ...]

    @property
    def size(self) -> int:
        """Bytes of all tensors, with scales."""
        return sum(each.size + each.scales for each in self.tensors)

    @property
    def parameters(self) -> int:
        return sum(each.shape.elements for each in self.tensors)

    @property
    def bits(self) -> float:
        """Average bits per parameter, including scales."""
        return 8 * self.size / self.parameters

    @property
    def parts(self) -> dict[str, int]:
        """Bytes keyed by kind of tensor: "embeddings", "head", "norms and biases" and so on."""
        found: dict[str, int] = {}
        for each in self.tensors:
            part = _PART.get(each.shape.role)
            if each.is_quantised and part is None:
                part = "quantised weights"
            elif part is None:
                is_small = each.shape.role in ("norm", "bias")
                part = "norms and biases" if is_small else "weights"
            found[part] = found.get(part, 0) + each.size
            if each.scales:
                key = "scales and zero points"
                found[key] = found.get(key, 0) + each.scales
        return found

    def in_layers(self, first: int, end: int) -> int:
        """Return the bytes of the tensors in the layers with indices `first` to `end` - 1."""
        return sum(
            each.size + each.scales
            for each in self.tensors
            if each.shape.layer is not None and first <= each.shape.layer < end
        )

    def of_role(self, role: str) -> int:
        """Return the bytes of all tensors with a role of `Shape`, such as "output"."""
        found = (each for each in self.tensors if each.shape.role == role)
        return sum(each.size + each.scales for each in found)


def format_in(config: Mapping[str, Any]) -> str | None:
    """Return the name of the format in a model's quantization_config; None without it."""
    found = config.get("quantization_config")
    if not isinstance(found, Mapping):
        return None
    method, bits, group = (found.get(key) for key in ("quant_method", "bits", "group_size"))
    if (method, bits) in (("gptq", 4), ("gptq", 8), ("awq", 4)) or _is_rounded(found):
        return f"{'awq' if method == 'awq' else 'gptq'}-int{bits}{_suffix(group)}"
    if method in ("compressed-tensors", "modelopt") and (kind := _format_of_groups(found)):
        return kind
    if method == "bitsandbytes" and found.get("load_in_4bit"):
        return "nf4-double" if found.get("bnb_4bit_use_double_quant") else "nf4"
    if method == "bitsandbytes" and found.get("load_in_8bit"):
        return "int8"
    in_blocks = found.get("weight_block_size") == [_BLOCK, _BLOCK]
    kinds = {"fbgemm_fp8": "fp8-rows", "fp8": "fp8-blocks" if in_blocks else "fp8"}
    kinds["mxfp4"] = "mxfp4"
    if method in kinds:
        return kinds[str(method)]
    raise ConfigError(
        f"quantization_config {method!r:.40} with {bits!r:.20} bits has no formula; use --weights"
    )


def _is_grouped(group: object) -> TypeGuard[int]:
    return type(group) is int and 0 < group < 100_000


def _is_rounded(found: Mapping[str, Any]) -> bool:
    is_int = found.get("data_type", "int") == "int" and _is_grouped(found.get("group_size"))
    return found.get("quant_method") == "auto-round" and found.get("bits") in (4, 8) and is_int


def _suffix(group: object) -> str:
    return f"-g{group}" if _is_grouped(group) and group != _GROUP else ""


_ALGORITHMS = {
    **{"FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8-rows", "FP8_PB_WO": "fp8-blocks"},
    **{"NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4", "W4A16_AWQ": "awq-int4"},
}
"""Dictionary from a value of quant_algo, which NVIDIA's ModelOpt writes, to the format."""
_BY_STRATEGY: dict[tuple[str, int, str], str] = {
    **{("float", 8, "tensor"): "fp8", ("float", 8, "channel"): "fp8-rows"},
    **{("float", 8, "block"): "fp8-blocks", ("float", 4, "16"): "nvfp4"},
    **{("int", 8, "tensor"): "int8", ("int", 8, "channel"): "int8"},
}
"""Dictionary from (type, bits, strategy or group size) of weights, as compressed-tensors writes
them, to the format."""


def _format_of_groups(found: Mapping[str, Any]) -> str | None:
    within = found.get("quantization")
    algorithm = (within if isinstance(within, Mapping) else found).get("quant_algo")
    if algorithm is not None:
        return _ALGORITHMS.get(str(algorithm))
    groups = found.get("config_groups")
    kinds = {
        _format_of_group(each.get("weights") if isinstance(each, Mapping) else None)
        for each in (groups.values() if isinstance(groups, Mapping) else ())
    }
    return kinds.pop() if len(kinds) == 1 else None


def _format_of_group(weights: object) -> str | None:
    if not isinstance(weights, Mapping):
        return None
    kind, bits, group = (weights.get(key) for key in ("type", "num_bits", "group_size"))
    if kind == "int" and bits in (4, 8) and _is_grouped(group):
        return f"gptq-int{bits}{_suffix(group)}"
    how = group if _is_grouped(group) else weights.get("strategy") or "tensor"
    if how == "block" and weights.get("block_structure") != [_BLOCK, _BLOCK]:
        return None
    return _BY_STRATEGY.get((str(kind), bits if type(bits) is int else 0, str(how)))


def weights_of(
    shapes: Iterable[Shape],
    name: str,
    sizes: ModelSizes,
    *,
    has_imatrix: bool = False,
    is_unconverted: Callable[[Shape], bool] = lambda _: False,
) -> Weights:
    """Return the bytes of each tensor of a model in a format.

    shapes: tensors of the model.
    name: name of the format, one of `FORMATS`.
    sizes: sizes of the model.
    has_imatrix: True if a GGUF file was made with an importance matrix.
    is_unconverted: function that returns True for a tensor that stays in 16 bits; it is not called
        for GGUF formats.
    """
    plain = name.lower()
    if plain in _PLAIN:
        each = _PLAIN[plain]
        return Weights(plain, tuple(Stored(shape, each * shape.elements) for shape in shapes))
    if name.upper() in BASES:
        kind = name.upper()
        return Weights(kind, tuple(_ggml(kind, shape, sizes, has_imatrix) for shape in shapes))
    grouped = _GROUPED.fullmatch(plain)
    group = int(grouped[2]) if grouped else _GROUP
    kind = grouped[1] if grouped else plain
    if kind not in FORMATS or not group:
        raise ConfigError(
            f"weights {name[:40]!r} are not a known format; expected one of {', '.join(FORMATS)}"
        )
    return Weights(
        plain,
        tuple(
            Stored(shape, 2 * shape.elements)
            if is_unconverted(shape)
            else _quantised(kind, shape, group)
            for shape in shapes
        ),
    )


def _ggml(recipe: str, shape: Shape, sizes: ModelSizes, has_imatrix: bool) -> Stored:
    kind = kind_of(recipe, shape, sizes, has_imatrix=has_imatrix)
    is_quantised = kind not in ("F32", "F16", "BF16")
    return Stored(shape, bytes_in(kind, shape.elements), 0, is_quantised)


def _quantised(kind: str, shape: Shape, group: int) -> Stored:
    is_kept = kind == "mxfp4" and len(shape.dims) < 3
    if is_kept or not shape.role.startswith(("attn_", "ffn_")):
        return Stored(shape, 2 * shape.elements)
    size = shape.elements // 2 if "4" in kind else shape.elements
    return Stored(shape, size, _scales(kind, shape, group), is_quantised=True)


def _scales(kind: str, shape: Shape, group: int) -> int:
    columns = shape.dims[-1]
    rows = shape.elements // columns
    if kind == "fp8":
        return 4 * (shape.elements // (columns * shape.dims[-2]))  # one 32-bit scale per matrix
    if kind == "fp8-blocks":
        return 4 * (rows // shape.dims[-2] * -(-shape.dims[-2] // _BLOCK) * -(-columns // _BLOCK))
    if kind in ("mxfp4", "nvfp4"):
        matrices = rows // shape.dims[-2]
        return shape.elements // 32 if kind == "mxfp4" else shape.elements // 16 + 8 * matrices
    if kind in ("int8", "fp8-rows"):
        return 4 * rows
    if kind.startswith("nf4"):
        return _block_scales(shape.elements, is_nested=kind == "nf4-double")
    groups = -(-columns // group)
    bits = 8 if kind.endswith("8") else 4
    scales = 2 * groups * rows + groups * rows * bits // 8
    return scales + (4 * columns if kind.startswith("gptq") else 0)  # g_idx, one index per column


def _block_scales(elements: int, *, is_nested: bool) -> int:
    # bitsandbytes: each block of 64 elements has a 32-bit scale. If scales are nested, it has an
    # 8-bit scale, and 256 blocks share a 32-bit scale. A tensor has tables of 16 and 256 values.
    blocks = -(-elements // 64)
    if not is_nested:
        return 4 * blocks + 4 * 16
    return blocks + 4 * -(-blocks // 256) + 4 * (16 + 256 + 1)


_BY_ROWS = (
    *("attn_q", "attn_q_b", "attn_kv_b", "ffn_gate", "ffn_up", "attn_linear_in", "linear_gate"),
    "linear_kernel",
)
_OF_HEADS = ("attn_k", "attn_v")
_BY_COLUMNS = ("attn_output", "ffn_down", "attn_linear_out")
_OF_VOCABULARY = ("token_embd", "token_embd_layers", "output")
_PADDING = 64
_SCALES_WHOLE = ("fp8",)
"""Formats with one scale per matrix, which each tensor parallel GPU copies."""
_SCALES_OF_ROWS = ("int8", "fp8-rows")
"""Formats with one scale per row of a matrix."""


def sizes_of_rank(sizes: ModelSizes, ranks: int) -> ModelSizes:
    """Return the sizes of the part of a model on one of `ranks` tensor parallel GPUs.

    Raises ConfigError if the number of heads or the MLP's width is not a multiple of `ranks`.
    """
    counts: tuple[tuple[str, int], ...] = (
        ("attention heads", sizes.heads),
        ("inner features", sizes.inner),
        ("inner features of an expert", sizes.expert_inner),
        ("inner features of a shared expert", sizes.shared_inner),
    )
    linear, whole = sizes.linear, sizes.whole
    if whole is not None:
        counts += (("attention heads", whole.heads),)
        kv_heads = max(whole.kv_heads // ranks, 1)
        whole = replace(whole, heads=whole.heads // ranks, kv_heads=kv_heads)
    if linear is not None:
        counts += (("heads of linear attention", linear.key_heads),)
        counts += (("heads of linear attention", linear.value_heads),)
        linear = replace(
            linear,
            key_heads=linear.key_heads // ranks,
            value_heads=linear.value_heads // ranks,
        )
    for name, count in counts:
        if count % ranks:
            raise ConfigError(f"{ranks} cards do not divide {count:,} {name}")
    if sizes.kv_heads % ranks and ranks % sizes.kv_heads:
        raise ConfigError(f"{ranks} cards do not divide {sizes.kv_heads:,} key and value heads")
    return replace(
        sizes,
        heads=sizes.heads // ranks,
        kv_heads=max(sizes.kv_heads // ranks, 1),
        inner=sizes.inner // ranks,
        expert_inner=sizes.expert_inner // ranks,
        shared_inner=sizes.shared_inner // ranks,
        linear=linear,
        whole=whole,
    )


def weights_of_rank(weights: Weights, sizes: ModelSizes, ranks: int) -> Weights:
    """Return the part of `weights` on one of `ranks` tensor parallel GPUs."""
    part = sizes_of_rank(sizes, ranks)
    tensors = []
    owner = ""
    for each in weights.tensors:
        role, layer = each.shape.role, each.shape.layer or 0
        share = _share(
            owner if role == "bias" else role, sizes.of_layer(layer), part.of_layer(layer), ranks
        )
        # If columns are divided, partial outputs are added up, and the sum gets the bias once.
        if role == "bias" and owner in _BY_COLUMNS:
            share = None
        tensors.append(each if share is None else _divided(each, share, weights.name))
        owner = owner if role == "bias" else role
    return replace(weights, tensors=tuple(tensors))


_Share = tuple[int, int]
"""Fraction of a tensor on one tensor parallel GPU, as (numerator, denominator)."""


def _share(role: str, sizes: ModelSizes, part: ModelSizes, ranks: int) -> _Share | None:
    if role in _BY_ROWS or role in _BY_COLUMNS:
        return 1, ranks
    if role in _OF_HEADS:
        return part.kv_heads, sizes.kv_heads
    if role == "attn_qkv":
        return part.heads + 2 * part.kv_heads, sizes.heads + 2 * sizes.kv_heads
    if role in _OF_VOCABULARY:
        return round_up(round_up(sizes.vocabulary, _PADDING), ranks) // ranks, sizes.vocabulary
    return None


def _divided(each: Stored, share: _Share, kind: str) -> Stored:
    held, of = share
    shape = each.shape
    at = len(shape.dims) - 1 if shape.role in _BY_COLUMNS else max(len(shape.dims) - 2, 0)
    dims = tuple(
        -(-size * held // of) if number == at else size for number, size in enumerate(shape.dims)
    )
    elements = prod(dims)
    is_whole = kind in _SCALES_WHOLE
    is_whole |= kind in _SCALES_OF_ROWS and shape.role in _BY_COLUMNS
    return replace(
        each,
        shape=Shape(shape.role, dims, shape.layer),
        size=each.size * elements // max(shape.elements, 1),
        scales=each.scales if is_whole else -(-each.scales * held // of),
    )
