"""Weights of a model as its files store them, with roles from the names in the headers.

Rule: the bytes are those of the files. A name only gives the role, and a tensor of unknown name is
an ordinary weight. Sources: the tensor names of docs/gguf.md and of transformers' modules; for
scales and zero points, the names that GPTQ, AWQ, bitsandbytes and compressed-tensors write.

A configuration lists the modules that a quantised model stores in 16 bits. A name covers one
module, or all modules within it. Source: transformers, quantizers/base.py
(`modules_to_not_convert`), and the lists of published models, for instance every `self_attn` of
Llama-3.1-405B-Instruct-FP8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from allocsim.fitting.formulas.safetensors import StoredTensor
from allocsim.fitting.formulas.shapes import Shape
from allocsim.fitting.formulas.weights import Stored, Weights

_LAYER = re.compile(r"(?:^|\.)(?:blk|layers|h)\.(\d{1,4})\.")
_OUTPUTS = ("output.weight", "lm_head.weight")
_EMBEDDINGS = ("token_embd.weight", "embed_tokens.weight", "wte.weight")
_SCALES = re.compile(
    r"(scales|qzeros|g_idx|SCB|weight_scale\w*|absmax|nested_absmax|quant_map|nested_quant_map"
    r"|quant_state\.\w+|weight_format)$"
)
_FULL = ("F32", "F16", "BF16", "F64")
_ROLES = re.compile(r"(attn_(?:qkv|q|k|v|output)|ffn_(?:gate|up|down))(?:_exps)?\.weight$")
_MODULES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "qkv_proj": "attn_qkv",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "gate_up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "w1": "ffn_gate",
    "w3": "ffn_up",
    "w2": "ffn_down",
}
"""Role of a matrix, by the name of its module in transformers."""
_OF_MODULE = re.compile(r"\.(\w+)\.(?:weight|qweight)$")


def weights_in(tensors: Iterable[StoredTensor], name: str) -> Weights:
    """Return the weights that consist of a file's tensors.

    name: name of the format.
    """
    return Weights(name, tuple(map(_stored, tensors)))


def _stored(tensor: StoredTensor) -> Stored:
    found = _LAYER.search(tensor.name)
    layer = int(found[1]) if found else None
    shape = Shape(_role(tensor, layer), tensor.dims, layer)
    if _SCALES.search(tensor.name):
        return Stored(shape, 0, tensor.size, is_quantised=True)
    return Stored(shape, tensor.size, 0, is_quantised=tensor.kind not in _FULL)


def _role(tensor: StoredTensor, layer: int | None) -> str:
    if layer is None and tensor.name.endswith(_EMBEDDINGS):
        return "token_embd"
    if layer is None and tensor.name.endswith(_OUTPUTS) and "norm" not in tensor.name:
        return "output"
    role = _ROLES.search(tensor.name)
    if role:
        return role[1]
    module = _OF_MODULE.search(tensor.name)
    if module and module[1] in _MODULES:
        return _MODULES[module[1]]
    if tensor.name.endswith("bias"):
        return "bias"
    return "norm" if len(tensor.dims) < 2 else "weight"


_PATHS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LISTS = ("modules_to_not_convert", "llm_int8_skip_modules", "ignored_layers")


def unconverted_in(config: Mapping[str, Any]) -> Callable[[Shape], bool]:
    """Return a function that is true for tensors that `quantization_config` leaves in 16 bits."""
    found = config.get("quantization_config")
    names = {
        name
        for key in _LISTS
        for name in (found.get(key) if isinstance(found, Mapping) else None) or ()
        if isinstance(name, str)
    }

    def is_unconverted(shape: Shape) -> bool:
        module = _PATHS.get(shape.role)
        if module is None or not names:
            return False
        parts = f"model.layers.{shape.layer}.{module}".split(".")
        within = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
        return bool(names & (within | set(parts) | {module}))

    return is_unconverted
