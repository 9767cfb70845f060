"""Reader of safetensors headers, and the weights of a model as its files store them.

Every value is checked against the file's length, the type and the shape before use.  Names of
tensors are used only to find their roles; a tensor with an unknown name counts as ordinary weights.
"""

# Sources: README.md of `huggingface/safetensors`; the tensor names of docs/gguf.md and of
# transformers' modules; for scales and zero points, the names that GPTQ, AWQ, bitsandbytes and
# compressed-tensors write; for modules in 16 bits, transformers, quantizers/base.py
# (`modules_to_not_convert`), and the lists of published models, such as every `self_attn` of
# Llama-3.1-405B-Instruct-FP8.

from __future__ import annotations

import fnmatch
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from allocsim.errors import ConfigError, RecordingError
from allocsim.fitting.formulas.shapes import Shape
from allocsim.fitting.formulas.weights import Stored, Weights

MOST_HEADER = 16 << 20
"""Largest header in bytes; published models have at most a few megabytes."""

INDEX = "model.safetensors.index.json"
_MOST_SHARDS = 1024
_MOST_DIMENSIONS = 16
_BITS = {
    **{"F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32},
    **{"F16": 16, "BF16": 16, "I16": 16, "U16": 16, "I8": 8, "U8": 8, "BOOL": 8},
    **{"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8},
    **{"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4},
}
"""Dictionary from the name of a type in a file to the bits of one element."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Type, shape and bytes of a tensor in a file of weights.

    kind: name of the type in the file, such as "BF16".
    dims: dimensions as in PyTorch.
    size: bytes of the tensor.
    """

    name: str
    kind: str
    dims: tuple[int, ...]
    size: int


def read_safetensors(place: Path) -> tuple[StoredTensor, ...]:
    """Return the tensors of a .safetensors file, or of all files in a folder or an index."""
    if not place.is_dir():
        return _in_file(place)
    index = place / INDEX
    if index.is_file():
        return tuple(tensor for file in _shards(index) for tensor in _in_file(file))
    files = sorted(place.glob("*.safetensors"))[: _MOST_SHARDS + 1]
    if not 0 < len(files) <= _MOST_SHARDS:
        raise RecordingError(str(place), "has no safetensors file; expected one, or an index")
    return tuple(tensor for file in files for tensor in _in_file(file))


def _shards(index: Path) -> list[Path]:
    try:
        with index.open("rb") as file:
            data = file.read(MOST_HEADER + 1)
    except OSError as error:
        raise RecordingError(str(index), f"cannot be read ({error.strerror})") from None
    if len(data) > MOST_HEADER:
        raise RecordingError(str(index), f"is larger than {MOST_HEADER:,} bytes")
    names = _json(index, data).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise RecordingError(str(index), "has no weight_map; expected the file of each tensor")
    found = sorted({name for name in names.values() if isinstance(name, str)})
    is_whole = all(isinstance(name, str) for name in names.values())
    if not is_whole or len(found) > _MOST_SHARDS:
        raise RecordingError(
            str(index), "weight_map is not possible; expected 1 to 1,024 file names"
        )
    for name in found:
        if Path(name).name != name or name in (".", "..") or "\0" in name:
            raise RecordingError(str(index), f"{name!r:.80} is not a file beside the index")
    return [index.parent / name for name in found]


def _in_file(path: Path) -> tuple[StoredTensor, ...]:
    try:
        with path.open("rb") as file:
            length = path.stat().st_size
            start = file.read(8)
            size = int.from_bytes(start, "little")
            if len(start) < 8 or not 2 <= size <= min(length - 8, MOST_HEADER):
                most = max(min(length - 8, MOST_HEADER), 0)
                raise RecordingError(
                    str(path), f"byte 0: a header of {size:,} bytes; expected 2 to {most:,}"
                )
            data = file.read(size)
    except OSError as error:
        raise RecordingError(str(path), f"cannot be read ({error.strerror})") from None
    header = _json(path, data)
    header.pop("__metadata__", None)
    return tuple(_tensors(path, header, length - 8 - size))


def _json(path: Path, data: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise RecordingError(str(path), "a name occurs twice in its header")
        return found

    try:
        header = json.loads(data, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise RecordingError(str(path), "byte 8: its header is not JSON in UTF-8") from None
    if not isinstance(header, dict):
        raise RecordingError(str(path), "byte 8: its header is not a JSON object")
    return header


def _tensors(path: Path, header: Mapping[str, Any], room: int) -> list[StoredTensor]:
    found: list[tuple[int, StoredTensor]] = []
    for name, row in header.items():
        tensor, begin = _tensor(path, name, row)
        found.append((begin, tensor))
    # The format has no gaps, so each tensor must begin where the previous tensor ends.
    end = 0
    for begin, tensor in sorted(found, key=lambda each: (each[0], each[1].size)):
        if begin != end:
            raise RecordingError(
                str(path), f"{tensor.name!r:.80} begins at byte {begin:,}; expected {end:,}"
            )
        end += tensor.size
    if end != room:
        raise RecordingError(str(path), f"has {room:,} bytes of data; its header describes {end:,}")
    return [tensor for _, tensor in found]


def _tensor(path: Path, name: str, row: Any) -> tuple[StoredTensor, int]:
    def refused(what: str) -> RecordingError:
        return RecordingError(str(path), f"tensor {name!r:.80}: {what}")

    if not isinstance(row, dict):
        raise refused("is not an object; expected dtype, shape and data_offsets")
    kind, dims, offsets = row.get("dtype"), row.get("shape"), row.get("data_offsets")
    if not isinstance(kind, str) or kind not in _BITS:
        raise refused(f"dtype {kind!r:.40}; expected one of {', '.join(_BITS)}")
    if not _are_counts(dims) or len(dims) > _MOST_DIMENSIONS:
        raise refused(f"shape {dims!r:.80}; expected whole numbers, {_MOST_DIMENSIONS} at most")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise refused(f"data_offsets {offsets!r:.80}; expected two whole numbers")
    bits = math.prod(dims) * _BITS[kind]
    if bits % 8 or offsets[1] - offsets[0] != bits // 8:
        raise refused(
            f"data_offsets {offsets!r:.80}; expected {bits / 8:,.0f} bytes for {kind} {dims!r:.80}"
        )
    return StoredTensor(name, kind, tuple(dims), bits // 8), offsets[0]


def _are_counts(values: object) -> TypeGuard[list[int]]:
    if not isinstance(values, list):
        return False
    return all(type(value) is int and 0 <= value < 1 << 48 for value in values)


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
    **{"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"},
    **{"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"},
    **{"qkv_proj": "attn_qkv", "gate_up_proj": "ffn_up"},
    **{"w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_down"},
}
"""Dictionary from the name of a module in transformers to the role of its matrix (`Shape.role`)."""
_OF_MODULE = re.compile(r"\.(\w+)\.(?:weight|qweight)$")


def weights_in(tensors: Iterable[StoredTensor], name: str) -> Weights:
    """Return the weights that consist of the tensors of a file, with their roles and bytes.

    name: name of the format, such as "bf16".
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
    role: f"{'mlp' if role.startswith('ffn') else 'self_attn'}.{module}"
    for module, role in _MODULES.items()
    if module.endswith("_proj") and module != "gate_up_proj"
}
"""Dictionary from the role of a matrix to the path of its module in a transformers layer, such as
"self_attn.q_proj"."""
_LISTS = (
    *("modules_to_not_convert", "llm_int8_skip_modules", "ignored_layers"),
    *("ignore", "exclude_modules"),
)
_BEFORE_LAYERS = ("model", "model.language_model", "language_model.model")


def unconverted_in(config: Mapping[str, Any]) -> Callable[[Shape], bool]:
    """Return a function that is True for tensors that a quantization_config leaves in 16 bits.

    config: configuration of the model.
    """
    found = config.get("quantization_config")
    lists = [found.get(key) for key in _LISTS] if isinstance(found, Mapping) else []
    names = {
        name
        for each in lists
        for name in (each if isinstance(each, list) else ())
        if isinstance(name, str)
    }
    # compressed-tensors has regular expressions after "re:", ModelOpt has wildcards.
    regular = [name for name in names if name.startswith("re:")]
    try:
        patterns = [re.compile(name[3:]) for name in regular]
    except re.error as error:
        raise ConfigError(f"quantization_config: a pattern of ignore: {error}") from None
    patterns += [
        re.compile(fnmatch.translate(name)) for name in names - set(regular) if "*" in name
    ]

    def is_unconverted(shape: Shape) -> bool:
        module = _PATHS.get(shape.role)
        if module is None or not names:
            return False
        paths = [f"{before}.layers.{shape.layer}.{module}" for before in _BEFORE_LAYERS]
        if any(pattern.match(path) for pattern in patterns for path in paths):
            return True
        parts = paths[0].split(".")
        within = {".".join(path.split(".")[:count]) for path in paths for count in range(1, 9)}
        return bool(names & (within | set(parts) | {module}))

    return is_unconverted
