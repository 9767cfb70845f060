"""Bytes of a model's weights in each format, including scales and unconverted tensors.

Rule: every tensor is counted separately: a quantised tensor with its scales, zero points and
indices, other tensors in 16 bits.

Sources. LLM.int8 and NF4: `bitsandbytes`, nn/modules.py (`Int8Params.SCB`) and functional.py
(`quantize_4bit`: blocks of 64, nested blocks of 256), and Dettmers et al., QLoRA (2023), section 3.
GPTQ: `AutoGPTQ`/`GPTQModel`, `QuantLinear` (qweight, qzeros, scales, g_idx). AWQ: `AutoAWQ`,
`WQLinear_GEMM`. FP8: vLLM's and llm-compressor's W8A8 documentation; by rows: FBGEMM's, as in
transformers' `FbgemmFp8Linear`; by blocks: DeepSeek-V3's technical report (2024).
MXFP4, for the experts of gpt-oss: OCP Microscaling Formats (2023), 32 elements share an 8-bit
scale. GGUF: `mixtures.py`. All formats skip embeddings and norms, and all but GGUF skip the head
(transformers' `get_keys_to_not_convert`; GPTQ and AWQ quantise the modules of the layers).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from allocsim.errors import ConfigError
from allocsim.fitting.formulas.blocks import bytes_in
from allocsim.fitting.formulas.mixtures import BASES, kind_of
from allocsim.fitting.formulas.shapes import Shape
from allocsim.fitting.formulas.sizes import Sizes

__all__ = ["FORMATS", "Stored", "Weights", "format_in", "weights_of"]

_GROUP = 128
_BLOCK = 128
"""Rows and columns that share a scale in DeepSeek's FP8."""
_GROUPED = re.compile(r"(gptq-int4|gptq-int8|awq-int4)-g(\d{1,5})")
_PLAIN = {"fp32": 4, "bf16": 2, "fp16": 2}
_PART = {"token_embd": "embeddings", "position": "embeddings", "output": "head"}

FORMATS = (
    *_PLAIN,
    *(
        "fp8",
        "fp8-rows",
        "fp8-blocks",
        "mxfp4",
        "int8",
        "nf4",
        "nf4-double",
        "gptq-int4",
        "gptq-int8",
        "awq-int4",
    ),
    *(name for name in BASES if name not in ("F32", "F16", "BF16")),
)
"""Names of formats. A suffix as in "gptq-int4-g32" sets the group size of GPTQ and AWQ (128)."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor in a format.

    size: bytes of its elements.
    scales: bytes of scales, zero points and indices.
    is_quantised: whether its elements have fewer bits than the model computes with.
    """

    shape: Shape
    size: int
    scales: int = 0
    is_quantised: bool = False


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's weights in one format."""

    name: str
    tensors: tuple[Stored, ...]

    @property
    def size(self) -> int:
        """Bytes of all tensors, with scales."""
        return sum(each.size + each.scales for each in self.tensors)

    @property
    def parameters(self) -> int:
        """Number of elements of all tensors."""
        return sum(each.shape.elements for each in self.tensors)

    @property
    def bits(self) -> float:
        """Average bits per parameter."""
        return 8 * self.size / self.parameters

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by kind of tensor."""
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
        """Return the bytes of the tensors in the layers from `first` to `end` - 1."""
        return sum(
            each.size + each.scales
            for each in self.tensors
            if each.shape.layer is not None and first <= each.shape.layer < end
        )

    def of_role(self, role: str) -> int:
        """Return the bytes of the tensors of one role."""
        found = (each for each in self.tensors if each.shape.role == role)
        return sum(each.size + each.scales for each in found)


def format_in(config: Mapping[str, Any]) -> str | None:
    """Return the format of a configuration's quantization_config, or None without one.

    Raises ConfigError for a method without a formula.
    """
    found = config.get("quantization_config")
    if not isinstance(found, Mapping):
        return None
    method, bits, group = (found.get(key) for key in ("quant_method", "bits", "group_size"))
    is_grouped = type(group) is int and 0 < group < 100_000
    suffix = f"-g{group}" if is_grouped and group != _GROUP else ""
    if (method, bits) in (("gptq", 4), ("gptq", 8), ("awq", 4)):
        return f"{method}-int{bits}{suffix}"
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


def weights_of(
    shapes: Iterable[Shape],
    name: str,
    sizes: Sizes,
    *,
    has_imatrix: bool = False,
    is_unconverted: Callable[[Shape], bool] = lambda _: False,
) -> Weights:
    """Return the weights of the tensors `shapes` in the format `name`, one of `FORMATS`.

    has_imatrix: whether a GGUF file was made with an importance matrix.
    is_unconverted: whether a tensor of another format stays in 16 bits (`unconverted.py`).

    Raises ConfigError for an unknown format.
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


def _ggml(recipe: str, shape: Shape, sizes: Sizes, has_imatrix: bool) -> Stored:
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
    """Return the bytes of a quantised matrix's scales, zero points and indices."""
    columns = shape.dims[-1]
    rows = shape.elements // columns
    if kind == "fp8":
        return 4 * (shape.elements // (columns * shape.dims[-2]))  # one 32-bit scale per matrix
    if kind == "fp8-blocks":
        return 4 * (rows // shape.dims[-2] * -(-shape.dims[-2] // _BLOCK) * -(-columns // _BLOCK))
    if kind == "mxfp4":
        return shape.elements // 32
    if kind in ("int8", "fp8-rows"):
        return 4 * rows
    if kind.startswith("nf4"):
        return _block_scales(shape.elements, is_nested=kind == "nf4-double")
    groups = -(-columns // group)
    bits = 8 if kind.endswith("8") else 4
    scales = 2 * groups * rows + groups * rows * bits // 8
    return scales + (4 * columns if kind.startswith("gptq") else 0)  # g_idx, one index per column


def _block_scales(elements: int, *, is_nested: bool) -> int:
    """Return the bytes of bitsandbytes' scales and code tables.

    Each block of 64 elements has a 32-bit scale. If nested, it has an 8-bit scale, and 256 blocks
    share a 32-bit scale. The tables of 16 and 256 code values belong to the tensor.
    """
    blocks = -(-elements // 64)
    if not is_nested:
        return 4 * blocks + 4 * 16
    return blocks + 4 * -(-blocks // 256) + 4 * (16 + 256 + 1)
