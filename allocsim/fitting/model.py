"""Models that `fit` accepts: a preset, a configuration on disk, or a user's function.

Rule: an impossible configuration is refused here, in one sentence, before a program runs. Checks
that need transformers are left to transformers. For the training formulas, a model whose tensors
`formulas/shapes.py` does not list is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from allocsim.errors import ConfigError
from allocsim.fitting.formulas import KNOWN_TYPES, ModelSizes, shapes_of, sizes_of
from allocsim.fitting.formulas.training import TransformerShape
from allocsim.fitting.presets import CONFIGURATIONS, TORCHVISION, find_preset, near_presets

_HEADS = {
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForPreTraining": "AutoModelForMaskedLM",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForImageClassification": "AutoModelForImageClassification",
}
"""Class of transformers that builds a model, by the ending of the architecture's name."""
_ENCODER_TYPES = frozenset(
    (
        *("albert", "bert", "camembert", "deberta-v2", "distilbert", "electra", "modernbert"),
        *("mpnet", "roberta", "xlm-roberta"),
    )
)
_TRANSLATION_TYPES = frozenset(
    ("bart", "led", "m2m_100", "marian", "mbart", "mt5", "pegasus", "t5")
)
_VISION_TYPES = frozenset(("beit", "convnext", "deit", "dinov2", "resnet", "swin", "swinv2", "vit"))
IMAGES = "AutoModelForImageClassification"

_SIZES = {
    "width": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "kv_heads": ("num_key_value_heads",),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "vocabulary": ("vocab_size",),
    "inner": ("intermediate_size", "n_inner", "d_ff"),
    "head": ("head_dim", "d_kv"),
    "positions": ("max_position_embeddings", "n_positions"),
    "experts": ("num_local_experts",),
    "chosen": ("num_experts_per_tok",),
}
"""Keys that model families use for each size."""
_LEARNED_POSITIONS = frozenset(
    ("gpt2", "bert", "roberta", "distilbert", "electra", "opt", "albert")
)
_NEEDED = ("width", "heads", "layers", "vocabulary")
"""Sizes that must not be null in the configuration of any family."""
_MOST_LAYERS = 10_000
_MOST_BYTES = 1 << 20
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True)
class Configured:
    """Model that transformers builds from a configuration.

    config: contents of the configuration file.
    head: class of transformers that builds the model.
    path: file of the configuration, or None for a preset.
    """

    name: str
    config: Mapping[str, Any]
    head: str
    path: str | None = None

    @property
    def sees(self) -> bool:
        """True if the inputs are images."""
        return self.head == IMAGES

    @property
    def writes(self) -> bool:
        """True if the model generates text token by token."""
        return self.head in ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM")

    def size(self, what: str) -> int | None:
        """Return one of the sizes of `_SIZES`, or None if it is not in the configuration.

        what: name of the size, such as "heads".
        """
        for key in _SIZES[what]:
            value = self.config.get(key)
            if value is not None:
                return int(value)
        return None


@dataclass(frozen=True, slots=True)
class Classifier:
    """An image classifier that a function of torchvision.models builds."""

    name: str
    function: str
    sees: bool = True


@dataclass(frozen=True, slots=True)
class UserModel:
    """Model that a user's function returns, alone or together with a batch of inputs."""

    name: str
    module: str
    function: str
    sees: bool = False


Model = Configured | Classifier | UserModel


def model_of(text: str) -> Model:
    """Return the model that `text` names: a preset, a configuration or module:function.

    A configuration is given as its file or its folder. Raises ConfigError for any other text, and
    for a configuration that no model can have.
    """
    place = Path(text)
    if place.suffix == ".json" or (place / "config.json").is_file():
        return _on_disk(place)
    preset = find_preset(text)
    if preset in TORCHVISION:
        return Classifier(preset, TORCHVISION[preset])
    if preset is not None:
        config = CONFIGURATIONS[preset]
        return Configured(preset, config, _head_of(config))
    if _FUNCTION.fullmatch(text):
        module, _, function = text.partition(":")
        return UserModel(text, module, function)
    near = near_presets(text)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    raise ConfigError(
        f"{text[:80]!r} is not a known model: expected a preset (--list-models), a "
        f"config.json or its folder, or module:function{meant}"
    )


def _on_disk(place: Path) -> Configured:
    file = place / "config.json" if place.is_dir() else place
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror})") from None
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{file} has {len(data):,} bytes; a configuration has some thousands")
    try:
        config = json.loads(data)
    except (ValueError, RecursionError):
        raise ConfigError(f"{file} is not JSON; expected a model's config.json") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ConfigError(f"{file} names no model_type; expected a model's config.json")
    name = str(config.get("_name_or_path") or (place if place.is_dir() else place.parent).name)
    model = Configured(name or config["model_type"], config, _head_of(config), str(file))
    _refuse_impossible(model, str(file))
    return model


def _head_of(config: Mapping[str, Any]) -> str:
    """Return the class of transformers for `config`, by its architecture or else its model_type."""
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures:
        for ending, head in _HEADS.items():
            if str(architectures[0]).endswith(ending):
                return head
    kind = config["model_type"]
    if kind in _ENCODER_TYPES:
        return "AutoModelForMaskedLM"
    if kind in _TRANSLATION_TYPES:
        return "AutoModelForSeq2SeqLM"
    return IMAGES if kind in _VISION_TYPES else "AutoModelForCausalLM"


def _refuse_impossible(model: Configured, where: str) -> None:
    """Raise ConfigError for a configuration that no model can have.

    where: file of the configuration, for the error message.
    """
    _refuse_entries(model.config, where)
    layers, words = model.size("layers"), model.size("vocabulary")
    if layers and layers > _MOST_LAYERS:
        raise ConfigError(
            f"{where}: {layers:,} layers are too many; expected 1 to {_MOST_LAYERS:,}"
        )
    padding = model.config.get("pad_token_id")
    if words and type(padding) is int and padding >= words:
        raise ConfigError(
            f"{where}: pad_token_id is {padding}; expected less than vocab_size, {words:,}"
        )
    width, heads, kv_heads = map(model.size, ("width", "heads", "kv_heads"))
    if width and heads and model.size("head") is None and width % heads:
        raise ConfigError(f"{where}: {heads} heads do not divide the width {width}")
    if heads and kv_heads and heads % kv_heads:
        raise ConfigError(f"{where}: {kv_heads} key and value heads do not divide {heads} heads")
    experts, chosen = model.size("experts"), model.size("chosen")
    if experts and chosen and chosen > experts:
        raise ConfigError(f"{where}: a token cannot choose {chosen} of {experts} experts")


def _refuse_entries(config: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError for invalid sizes and for misspelled keys."""
    keys = {key for family in _SIZES.values() for key in family}
    needed = {key for family in _NEEDED for key in _SIZES[family]}
    for key in sorted(keys & set(config)):
        value = config[key]
        if value is None and key not in needed:
            continue
        if type(value) is not int or not 0 < value < 1 << 31:
            said = "null" if value is None else repr(value)[:80]
            raise ConfigError(f"{where}: {key} is {said}; expected a whole number, 1 or more")
    for key in sorted(set(config) - keys):
        near = get_close_matches(key, sorted(keys - set(config)), n=1, cutoff=0.9)
        if near:
            raise ConfigError(f"{where}: there is no {key}; did you mean {near[0]}?")


def most_positions(model: Model) -> int | None:
    """Return the number of learned positions, or None if the model has no learned positions."""
    if isinstance(model, Configured) and model.config["model_type"] in _LEARNED_POSITIONS:
        return model.size("positions")
    return None


_WITH_BIASES = ("gpt2", "phi", "starcoder2")
"""Types without a gate, where every matrix and norm has a bias."""
_NORMS = {"gemma2": 4, "gemma3_text": 4, "glm4": 4, "phi": 1}
"""Norms of a layer's width, by type; 2 in other types."""


def shape_of(model: Model) -> TransformerShape:
    """Return the sizes of `model` for the training formulas.

    Raises ConfigError for a model that the formulas do not describe.
    """
    kind = model.config["model_type"] if isinstance(model, Configured) else "function"
    if not isinstance(model, Configured) or kind not in KNOWN_TYPES:
        raise ConfigError(
            f"{model.name} ({kind}) is not described by the formulas of parallel training; "
            f"expected one of {', '.join(KNOWN_TYPES)}, or --parameters 7B"
        )
    try:
        sizes = sizes_of(model.config)
    except ConfigError as error:
        raise ConfigError(f"{model.name}: {error}") from None
    if sizes.linear is not None:
        raise ConfigError(
            f"{model.name} has layers with linear attention, which the formulas of parallel "
            "training do not describe; use --parameters"
        )
    shape = _shape(sizes, model.config)
    last = sizes.layers - 1
    whole = sum(each.elements for each in shapes_of(sizes) if each.layer == last)
    return replace(shape, others=whole - shape.layer(last))


def _shape(sizes: ModelSizes, config: Mapping[str, Any]) -> TransformerShape:
    """Return the sizes for the training formulas, without tensors that only some types have."""
    return TransformerShape(
        layers=sizes.layers,
        width=sizes.width,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head=sizes.head,
        inner=sizes.inner,
        vocabulary=sizes.vocabulary,
        is_tied=sizes.tied,
        is_gated=sizes.family not in _WITH_BIASES,
        positions=sizes.positions,
        norms=_NORMS.get(sizes.family, 2),
        has_biases=sizes.family in _WITH_BIASES,
        query_bias=sizes.attention_bias,
        dropout=sizes.family == "gpt2" and bool(config.get("resid_pdrop", 0.1)),
        experts=sizes.experts,
        chosen=sizes.chosen,
        expert_inner=sizes.expert_inner,
        shared_inner=sizes.shared_inner,
        dense_layers=len(sizes.dense),
        latent=sizes.latent,
    )


_ADAPTED = {
    **{"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"},
    **{"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"},
    **{"qkv_proj": "attn_qkv", "gate_up_proj": "ffn_up", "c_attn": "attn_qkv", "c_fc": "ffn_up"},
    **{"fc1": "ffn_up", "fc2": "ffn_down", "dense": "attn_output"},
}
"""Role of the tensor of each linear module of a layer, by the name that transformers uses."""


def with_adapters(
    shape: TransformerShape, model: Model, rank: int, targets: Sequence[str] = ()
) -> TransformerShape:
    """Return `shape`, the sizes for the training formulas, with LoRA adapters added.

    rank: rank of the adapters.
    targets: names of the modules with adapters; empty for all linear modules of a layer.

    Raises ConfigError for an unknown name.
    """
    unknown = sorted(set(targets) - set(_ADAPTED))
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is no linear module that the formulas know")
    assert isinstance(model, Configured)
    roles = {_ADAPTED[name] for name in targets or _ADAPTED}
    sizes = sizes_of(model.config)
    # Experts have three dimensions; peft adapts modules with matrices.
    matrices = [
        (each.dims[1], each.dims[0])
        for each in shapes_of(sizes)
        if each.layer == sizes.layers - 1 and each.role in roles and len(each.dims) == 2
    ]
    return replace(shape, lora=rank, adapted=tuple(matrices))
