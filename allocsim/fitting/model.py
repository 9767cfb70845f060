"""Models that `fit` accepts: a preset, a configuration on disk, or a user's function.

An impossible configuration is refused before a program runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from allocsim.errors import ConfigError
from allocsim.fitting.presets import (
    CONFIGURATIONS,
    GENERATORS,
    TORCHVISION,
    Generator,
    find_preset,
    format_words,
    generator_of,
    near_presets,
)

_HEADS = {
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForPreTraining": "AutoModelForMaskedLM",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForImageClassification": "AutoModelForImageClassification",
}
"""Dictionary from the ending of an architecture's name to the transformers class that builds it."""
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
SOUND = "AutoModelForSpeechSeq2Seq"
_TRANSLATION = "AutoModelForSeq2SeqLM"

_SIZES = {
    "width": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "kv_heads": ("num_key_value_heads",),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "vocabulary": ("vocab_size",),
    "inner": ("intermediate_size", "n_inner", "d_ff"),
    "head": ("head_dim", "d_kv"),
    "positions": ("max_position_embeddings", "n_positions", "max_target_positions"),
    "experts": ("num_local_experts",),
    "chosen": ("num_experts_per_tok",),
}
"""Keys of config.json that may give each dimension of a model, depending on the model family."""
_LEARNED_POSITIONS = frozenset(
    ("gpt2", "bert", "roberta", "distilbert", "electra", "opt", "albert", "whisper")
)
_NEEDED = ("width", "heads", "layers", "vocabulary")
"""Dimensions in `_SIZES` whose keys must not be null in a configuration."""
_MOST_LAYERS = 10_000
_MOST_BYTES = 1 << 20
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True)
class Configured:
    """Model that transformers builds from a configuration.

    config: contents of the configuration file.
    head: name of the transformers class that builds the model.
    path: file of the configuration, or None for a preset.
    said: name of the preset as the user typed it, perhaps the name of a quantized copy; "" if
        there is no preset.
    """

    name: str
    config: Mapping[str, Any]
    head: str
    path: str | None = None
    said: str = ""

    @property
    def sees(self) -> bool:
        """True if the inputs are images."""
        return self.head == IMAGES

    @property
    def hears(self) -> bool:
        """True if the inputs are audio spectrograms."""
        return self.head == SOUND

    @property
    def has_encoder(self) -> bool:
        """True if a decoder attends to the output of an encoder."""
        return self.head in (SOUND, _TRANSLATION)

    @property
    def writes(self) -> bool:
        """True if the model generates text token by token."""
        return self.head == "AutoModelForCausalLM" or self.has_encoder

    def size(self, what: str) -> int | None:
        """Return a dimension of the model, or None if the configuration lacks it.

        what: a key of `_SIZES`, such as "heads".
        """
        for key in _SIZES[what]:
            value = self.config.get(key)
            if value is not None:
                return int(value)
        return None


@dataclass(frozen=True, slots=True)
class Classifier:
    """Image classifier that a function of torchvision.models builds."""

    name: str
    function: str
    sees: bool = True
    hears: bool = False
    has_encoder: bool = False


@dataclass(frozen=True, slots=True)
class UserModel:
    """Model that a user's function returns, alone or together with a batch of inputs.

    module, function: names of the Python module and of the function in it.
    """

    name: str
    module: str
    function: str
    sees: bool = False
    hears: bool = False
    has_encoder: bool = False


Model = Configured | Classifier | UserModel | Generator


def model_of(text: str) -> Model:
    """Return the model that `text` names: a preset, a configuration or a user's function.

    A configuration is given as the path of config.json or of its folder, a function as
    "module:function". Raises ConfigError for any other text, and for impossible values in a
    configuration, such as 0 layers.
    """
    place = Path(text)
    if place.suffix == ".json" or (place / "config.json").is_file():
        return _on_disk(place)
    preset = find_preset(text)
    if preset in TORCHVISION:
        return Classifier(preset, TORCHVISION[preset])
    if preset in GENERATORS:
        found = generator_of(preset)
        return replace(found, said=text) if format_words(text) else found
    if preset is not None:
        config = CONFIGURATIONS[preset]
        return Configured(preset, config, _head_of(config), said=text)
    if _FUNCTION.fullmatch(text):
        module, _, function = text.partition(":")
        return UserModel(text, module, function)
    near = near_presets(text)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    raise ConfigError(
        f"{text[:80]!r} is not a known model: expected a preset (--list-models), a "
        f"config.json or its folder, or module:function{meant}"
    )


def is_decoder(model: Model) -> bool:
    """Return whether transformers builds the model, and it generates text without an encoder."""
    return isinstance(model, Configured) and model.writes and not model.has_encoder


def bytes_of_config(file: Path) -> bytes:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror})") from None
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{file} has {len(data):,} bytes; a configuration has some thousands")
    return data


def _on_disk(place: Path) -> Configured:
    file = place / "config.json" if place.is_dir() else place
    data = bytes_of_config(file)
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
    kind = config["model_type"]
    if kind == "whisper":
        return SOUND
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures:
        for ending, head in _HEADS.items():
            # Vision-language models have this ending as well, but no text encoder.
            is_other = head == _TRANSLATION and not config.get("is_encoder_decoder", False)
            if str(architectures[0]).endswith(ending) and not is_other:
                return head
    if kind in _ENCODER_TYPES:
        return "AutoModelForMaskedLM"
    if kind in _TRANSLATION_TYPES:
        return _TRANSLATION
    return IMAGES if kind in _VISION_TYPES else "AutoModelForCausalLM"


def _refuse_impossible(model: Configured, where: str) -> None:
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
    """Return the number of learned position embeddings; None if the model has none."""
    if isinstance(model, Configured) and model.config["model_type"] in _LEARNED_POSITIONS:
        return model.size("positions")
    return None


def flattened(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a configuration, with nested keys as "section.key".

    before: text in front of every key, such as "section.".
    """
    for key, value in config.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{before}{key}.")
        else:
            yield before + key, value
