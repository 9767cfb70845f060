"""Matrices that a quantised model stores in 16 bits, as its configuration lists them.

Rule: the lists use transformers' module names; a name covers one module, or all modules within it.
    Source: transformers, quantizers/base.py (`modules_to_not_convert`), and the lists of published
    models, for instance every `self_attn` of Llama-3.1-405B-Instruct-FP8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from allocsim.fitting.formulas.shapes import Shape

__all__ = ["unconverted_in"]

_MODULES = {
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
        module = _MODULES.get(shape.role)
        if module is None or not names:
            return False
        parts = f"model.layers.{shape.layer}.{module}".split(".")
        within = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
        return bool(names & (within | set(parts) | {module}))

    return is_unconverted
