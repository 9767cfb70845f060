"""Sizes of a language model, such as the hidden size, from its Hugging Face configuration.

Values that a configuration omits are the defaults of transformers for the model_type.  The module
is long because it has these defaults for all model types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from allocsim.errors import ConfigError

_MOST = 1 << 31
_DEEPEST = 4096

KNOWN_TYPES = (
    *("cohere", "cohere2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "gemma", "gemma2"),
    *("gemma3_text", "gemma3n_text", "gemma4_text", "glm", "glm4", "glm4_moe", "gpt2", "gpt_oss"),
    *("granite", "kimi_k2", "laguna", "llama", "llama4_text", "minimax_m2", "mistral", "mixtral"),
    *("mllama_text_model", "modernbert", "nemotron_h", "olmo2", "olmo3", "phi", "phi3", "qwen2"),
    *("qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "smollm3"),
    *("starcoder2", "t5", "whisper"),
)
"""Values of model_type for which there are formulas."""

_GEMMA = ("gemma", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text")
_ALIKE = {
    **{"gemma4_unified_text": "gemma4_text", "ministral3": "mistral", "qwen2_5_vl_text": "qwen2"},
    **{"qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe"},
}
"""Dictionary from the model_type of a multimodal model's text_config to a model type with the same
formulas."""
_TIED = (
    *(*_GEMMA, "cohere", "cohere2", "gpt2", "modernbert", "smollm3", "starcoder2", "t5"),
    "whisper",
)
"""Model types whose output layer shares the embedding's weights by default."""
_DELTA = ("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")
_LINEAR = (*_DELTA, "nemotron_h")
_WIDE_HEADS = (*_GEMMA, *_DELTA)
"""Model types whose attention heads have 256 elements by default."""
_BIASED = ("glm", "gpt_oss", "qwen2")
"""Model types whose queries, keys and values have biases by default."""
_LATENT = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2")
_ROUTED = (*_LATENT, "glm4_moe")
"""Model types whose configurations use DeepSeek's keys for experts, such as n_routed_experts."""
_WITH_EXPERTS = (*_ROUTED, "laguna", "qwen3_moe", "qwen3_next", "qwen3_5_moe_text")
"""Model types whose experts have the width moe_intermediate_size, and not that of the MLP."""
_WHOLE_EVERY = 4
"""Period of the layers of Qwen3-Next and Qwen3.5: every fourth layer has full attention, and the
others have linear attention."""
_WINDOWED_EVERY = {
    **dict.fromkeys(("gemma2", "gpt_oss"), (1, 2)),
    **dict.fromkeys(("cohere2", "llama4_text", "olmo3"), (3, 4)),
    **dict.fromkeys(("gemma3_text", "gemma4_text"), (5, 6)),
    "gemma3n_text": (4, 5),
}
"""Repeating pattern of layers, keyed by model type: (layers with a sliding window, all layers)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Sizes of multi-head latent attention (MLA), as in DeepSeek and Kimi, in elements.

    query: elements of a token's compressed query; 0 if queries are not compressed.
    key_value: elements of a token's compressed keys and values together.
    turning: elements of a head's query, and of its key, that have rotary position embedding.
    value: elements of a head's value.
    """

    query: int
    key_value: int
    turning: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Sizes of linear attention (Gated DeltaNet, Mamba 2), which keeps one state per sequence.

    key_heads: number of heads of queries and keys; for Mamba, the number of groups.
    value_heads: number of heads of values; for Mamba, the number of heads.
    key, value: number of elements in one head's key, and in its value, for a token.
    kernel: number of tokens in the kernel of the short convolution before the attention.
    layers: indices of the layers with linear attention.
    """

    key_heads: int
    value_heads: int
    key: int
    value: int
    kernel: int
    layers: frozenset[int]

    @property
    def mixed(self) -> int:
        """Number of elements per token of the concatenated queries, keys and values."""
        return 2 * self.key_heads * self.key + self.value_heads * self.value

    @property
    def state_bytes(self) -> int:
        """Bytes of the state that one layer keeps for one sequence."""
        matrices = 4 * self.value_heads * self.key * self.value
        return 2 * (self.kernel - 1) * self.mixed + matrices


@dataclass(frozen=True, slots=True)
class Whole:
    """Sizes of layers with full attention, if layers with a sliding window have other sizes.

    layers: indices of the layers with full attention.
    heads: number of attention heads.
    kv_heads: number of heads of keys and values.
    head: number of elements in a head.
    shares_keys: True if one projection computes both keys and values.
    """

    layers: frozenset[int]
    heads: int
    kv_heads: int
    head: int
    shares_keys: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Encoder of a model whose decoder attends to its output, as in T5 and Whisper.

    layers: number of the encoder's layers; their indices come before those of the decoder.
    tokens: number of tokens in the encoder's output; 0 if it is that of the input.
    channels: number of channels of the sound spectrum that is the input; 0 if the input is text.
    buckets: number of distance buckets with a learned bias (T5); 0 without them.
    """

    layers: int
    tokens: int = 0
    channels: int = 0
    buckets: int = 0


@dataclass(frozen=True, slots=True)
class CachedLayers:
    """Group of layers whose KV caches have the same size.

    count: number of layers in the group.
    window: number of latest tokens to which a layer attends; 0 for all tokens.
    kept: numbers of elements (keys, values) that one layer caches for a token (`ModelSizes.kept`).
    """

    count: int
    window: int
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSizes:
    """Sizes of a decoder's layers; a width is a number of elements.

    layers: number of layers.
    width: hidden size.
    inner: width of the MLP.
    heads: number of attention heads.
    kv_heads: number of heads of keys and values.
    head: width of one attention head; with latent attention, without the elements that have rotary
        position embedding.
    vocabulary: number of tokens in the vocabulary.
    positions: number of learned positions; 0 without them.
    experts: number of experts per layer; 0 for a dense model.
    chosen: number of experts that each token chooses.
    expert_inner: width of one expert.
    shared_inner: total width of the shared experts, which process every token; 0 without them.
    latent: sizes of latent attention; None for usual attention.
    """

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    positions: int = 0
    experts: int = 0
    chosen: int = 0
    expert_inner: int = 0
    shared_inner: int = 0
    latent: Latent | None = None

    @property
    def kv_width(self) -> int:
        """Number of elements of a token's keys in all heads; the values have as many."""
        return self.kv_heads * self.head


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes(DecoderSizes):
    """Sizes of a language model.

    family: model_type of the configuration, or architecture of a GGUF file.
    tied: True if the output layer shares the embedding's weights.
    longest: maximum number of tokens in a sequence; 0 if the configuration has none.
    dense: indices of the layers with an MLP in place of experts.
    window: number of tokens in a sliding window; 0 without windows.
    windowed: number of layers with a sliding window that cache keys and values.
    attention_bias: True if queries, keys and values have biases.
    query_norm: True if the configuration sets use_qk_norm, which normalises queries and keys.
    indexer: (heads, elements of a head) of the indexer that chooses the tokens of sparse attention;
        None without an indexer.
    inner_bias: True if the MLP has biases.
    linear: sizes and layers of linear attention; None without it.
    whole: sizes of layers with full attention; None if all layers have the same sizes.
    reusing: number of layers at the end that reuse the keys and values of earlier layers.
    is_wider: True if the MLPs of the layers that `reusing` counts have twice the width.
    bare: indices of layers that have only an MLP or experts, without attention.
    expert_width: number of elements of a token that are the input of experts, after compression; 0
        if the input is the hidden state.
    per_layer: (rows, elements per row) of the additional embedding that each layer has; None if
        layers have none.
    shares_keys: True if one projection computes both keys and values.
    encoder: encoder whose layers come first in the model; None for a model without an encoder.
    is_gated: False for a T5 model whose MLP has no gate; True for all other model types.
    """

    family: str
    tied: bool
    longest: int = 0
    dense: frozenset[int] = frozenset()
    window: int = 0
    windowed: int = 0
    attention_bias: bool = False
    query_norm: bool = False
    indexer: tuple[int, int] | None = None
    inner_bias: bool = False
    linear: Linear | None = None
    whole: Whole | None = None
    reusing: int = 0
    is_wider: bool = False
    bare: frozenset[int] = frozenset()
    expert_width: int = 0
    per_layer: tuple[int, int] | None = None
    shares_keys: bool = False
    encoder: Encoder | None = None
    is_gated: bool = True

    def of_layer(self, layer: int) -> ModelSizes:
        """Return the sizes of one layer, which may differ from the model's in attention and MLP.

        A layer that reuses the keys and values of another layer gets `kv_heads` 0.
        """
        found: dict[str, Any] = {}
        if (whole := self.whole) is not None and layer in whole.layers:
            found = {"heads": whole.heads, "kv_heads": whole.kv_heads, "head": whole.head}
            found["shares_keys"] = whole.shares_keys
        if layer >= self.layers - self.reusing:
            found |= {"kv_heads": 0, "inner": self.inner * (1 + self.is_wider)}
        return replace(self, **found) if found else self

    def attends_to_encoder(self, layer: int) -> bool:
        return self.encoder is not None and layer >= self.encoder.layers

    @property
    def keeping(self) -> int:
        """Number of layers with a separate KV cache; layers with linear attention have none."""
        linear = self.linear.layers if self.linear else ()
        encoding = self.encoder.layers if self.encoder else 0
        return self.layers - self.reusing - len(linear) - len(self.bare) - encoding

    @property
    def cached(self) -> tuple[CachedLayers, ...]:
        """Groups of layers with a KV cache: first full attention, then sliding windows."""
        first = self if self.whole is None else self.of_layer(min(self.whole.layers))
        found = (
            CachedLayers(self.keeping - self.windowed, 0, first.kept),
            CachedLayers(self.windowed, self.window, self.kept),
        )
        return tuple(each for each in found if each.count)

    @property
    def kept(self) -> tuple[int, ...]:
        """Numbers of elements (keys, values) that a server caches for a token in one layer.

        With latent attention there is one number, for the compressed form of both.
        """
        if self.latent is not None:
            # An indexer's keys have 8 bits per element, and a 32-bit scale.
            indexed = (self.indexer[1] + 4) // 2 if self.indexer else 0
            return (self.latent.key_value + self.latent.turning + indexed,)
        return self.kv_width, self.kv_width

    @property
    def grown(self) -> tuple[int, int]:
        """Numbers of elements (keys, values) that transformers caches for a token in one layer.

        With latent attention, it caches the keys and values of all heads, not the compressed form.
        """
        if self.latent is not None:
            indexed = self.indexer[1] if self.indexer else 0
            keys = self.heads * (self.head + self.latent.turning) + indexed
            return keys, self.heads * self.latent.value
        return self.kv_width, self.kv_width


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `text_config` (the language model) of a multimodal model's configuration.

    Return `config` itself if it has no `text_config`.
    """
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return config
    kind = text.get("model_type")
    whole = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    return {**whole, **text, "model_type": _ALIKE.get(str(kind), kind)}


def sizes_of(config: Mapping[str, Any]) -> ModelSizes:
    """Return the dimensions of a language model, read from its Hugging Face configuration.

    Raises ConfigError for an unsupported configuration.
    """
    config = _text_part(config)
    family = config.get("model_type")
    if family not in KNOWN_TYPES:
        known = ", ".join(KNOWN_TYPES)
        raise ConfigError(f"model_type {family!r:.60} has no formula; expected one of {known}")
    if family == "nemotron_h":
        config = _nemotron(config)
    if family in _WITH_ENCODER:
        config = _WITH_ENCODER[family](config)
    width = _size(config, "hidden_size", "n_embd")
    heads = _size(config, "num_attention_heads", "n_head")
    if isinstance(of_layers := config.get("num_attention_heads_per_layer"), list):
        heads = max((each for each in of_layers if type(each) is int), default=heads)
    kv_heads = _size(config, "num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ConfigError(f"{kv_heads} key and value heads do not divide {heads} heads")
    layers = _size(config, "num_hidden_layers", "n_layer")
    if layers > _DEEPEST:
        raise ConfigError(f"{layers:,} layers; expected {_DEEPEST:,} or fewer")
    window, seen = _window(config, layers)
    reusing = _count(config, "num_kv_shared_layers")
    latent = _latent(config) if family in _LATENT else None
    head = _size(config, "head_dim", default=256 if family in _WIDE_HEADS else width // heads)
    is_tied = config.get("tie_word_embeddings", family in _TIED)
    inner_key = "intermediate_size_mlp" if family == "llama4_text" else "intermediate_size"
    usual = 4 * width if family == "gpt2" else config.get("moe_intermediate_size")
    inner = _size(config, inner_key, "n_inner", default=usual)
    return ModelSizes(
        family=str(family),
        layers=layers,
        width=width,
        inner=inner,
        heads=heads,
        kv_heads=kv_heads,
        head=_size(config, "qk_nope_head_dim") if latent else head,
        vocabulary=_size(config, "vocab_size"),
        tied=bool(is_tied),
        positions=_positions(config),
        longest=_count(config, "max_position_embeddings" if family != "gpt2" else "n_positions"),
        window=window,
        windowed=sum(seen[: layers - reusing]),
        attention_bias=bool(config.get("attention_bias", family in _BIASED)),
        query_norm=bool(config.get("use_qk_norm", False)),
        indexer=_indexer(config) if family == "deepseek_v32" else None,
        inner_bias=bool(config.get("mlp_bias", False)),
        latent=latent,
        linear=_linear(config, layers) if family in _LINEAR else None,
        whole=_whole(config, seen, kv_heads, head),
        reusing=reusing,
        bare=frozenset(
            at for at, kind in enumerate(config.get("layer_types") or ()) if kind in _BARE
        ),
        expert_width=_count(config, "moe_latent_size"),
        is_wider=bool(config.get("use_double_wide_mlp")),
        per_layer=_per_layer(config),
        encoder=config.get("encoder"),
        is_gated=family != "t5" or str(config.get("feed_forward_proj")).startswith("gated"),
        **_experts(config, layers),
    )


def _size(config: Mapping[str, Any], *keys: str, default: int | None = None) -> int:
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if type(value) is not int or not 0 < value < _MOST:
            raise ConfigError(f"{key} is {value!r:.60}; expected a whole number, 1 or more")
        return value
    if default is None or default < 1:
        raise ConfigError(f"the configuration has no {keys[0]}; expected a whole number")
    return default


def _count(config: Mapping[str, Any], key: str) -> int:
    return _size(config, key) if config.get(key) else 0


def _per_layer(config: Mapping[str, Any]) -> tuple[int, int] | None:
    elements = _count(config, "hidden_size_per_layer_input")
    rows = _size(config, "vocab_size_per_layer_input", "vocab_size")
    return (rows, elements) if elements else None


def _latent(config: Mapping[str, Any]) -> Latent:
    return Latent(
        query=_count(config, "q_lora_rank"),
        key_value=_size(config, "kv_lora_rank"),
        turning=_size(config, "qk_rope_head_dim"),
        value=_size(config, "v_head_dim"),
    )


def _indexer(config: Mapping[str, Any]) -> tuple[int, int]:
    heads = _size(config, "index_n_heads", default=64)
    return heads, _size(config, "index_head_dim", default=128)


_LETTERS = {"M": "linear", "*": "full_attention", "-": "mlp", "E": "moe"}
"""Dictionary from a letter in Nemotron-H's hybrid_override_pattern to the kind of the layer."""
_BARE = ("mlp", "moe")
_OF_NEMOTRON = {
    **{"linear_num_key_heads": "n_groups", "linear_key_head_dim": "ssm_state_size"},
    **{"linear_num_value_heads": "mamba_num_heads", "linear_value_head_dim": "mamba_head_dim"},
    **{"linear_conv_kernel_dim": "conv_kernel", "num_experts": "n_routed_experts"},
    "shared_expert_intermediate_size": "moe_shared_expert_intermediate_size",
}
"""Dictionary from a key in configurations of other model types to the key of Nemotron-H."""


def _nemotron(config: Mapping[str, Any]) -> dict[str, Any]:
    pattern = config.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or not set(pattern) <= set(_LETTERS):
        raise ConfigError(
            f"hybrid_override_pattern is {pattern!r:.60}; expected letters M, *, -, E"
        )
    found = {ours: config.get(theirs) for ours, theirs in _OF_NEMOTRON.items()}
    found |= {"layer_types": [_LETTERS[letter] for letter in pattern]}
    found |= {"num_hidden_layers": len(pattern), "enable_moe_block": "E" in pattern}
    return {**config, **found}


def _of_t5(config: Mapping[str, Any]) -> dict[str, Any]:
    encoding = _size(config, "num_layers")
    names = {"hidden_size": "d_model", "intermediate_size": "d_ff", "head_dim": "d_kv"}
    found: dict[str, Any] = {ours: config.get(theirs) for ours, theirs in names.items()}
    found["num_attention_heads"] = config.get("num_heads")
    found["num_hidden_layers"] = encoding + _size(config, "num_decoder_layers", default=encoding)
    buckets = _size(config, "relative_attention_num_buckets", default=32)
    return {**config, **found, "encoder": Encoder(layers=encoding, buckets=buckets)}


def _of_whisper(config: Mapping[str, Any]) -> dict[str, Any]:
    encoding = _size(config, "encoder_layers")
    found: dict[str, Any] = {"hidden_size": config.get("d_model")}
    pairs = {"num_attention_heads": "attention_heads", "intermediate_size": "ffn_dim"}
    for ours, theirs in pairs.items():
        found[ours] = _size(config, f"decoder_{theirs}")
        if (other := _size(config, f"encoder_{theirs}")) != found[ours]:
            raise ConfigError(
                f"encoder_{theirs} is {other:,}; expected that of the decoder, {found[ours]:,}"
            )
    found["num_hidden_layers"] = encoding + _size(config, "decoder_layers")
    found["max_position_embeddings"] = _size(config, "max_target_positions", default=448)
    tokens = _size(config, "max_source_positions", default=1500)
    channels = _size(config, "num_mel_bins", default=80)
    return {
        **config,
        **found,
        "encoder": Encoder(layers=encoding, tokens=tokens, channels=channels),
    }


_WITH_ENCODER = {"t5": _of_t5, "whisper": _of_whisper}
"""Dictionary from a model type to a function that converts its configuration to the keys of other
model types, and returns it with an `Encoder`."""


def _positions(config: Mapping[str, Any]) -> int:
    if config["model_type"] == "whisper":
        return _size(config, "max_position_embeddings")
    return _size(config, "n_positions", default=1024) if config["model_type"] == "gpt2" else 0


def _linear(config: Mapping[str, Any], layers: int) -> Linear:
    kinds = config.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != layers:
        whole = range(_WHOLE_EVERY - 1, layers, _WHOLE_EVERY)
        kinds = ["full_attention" if layer in whole else "linear" for layer in range(layers)]
    if "full_attention" not in kinds:
        raise ConfigError("layer_types has no full_attention; expected one layer or more with it")
    return Linear(
        key_heads=_size(config, "linear_num_key_heads", default=16),
        value_heads=_size(config, "linear_num_value_heads", default=32),
        key=_size(config, "linear_key_head_dim", default=128),
        value=_size(config, "linear_value_head_dim", default=128),
        kernel=_size(config, "linear_conv_kernel_dim", default=4),
        layers=frozenset(
            at for at, kind in enumerate(kinds) if kind not in ("full_attention", *_BARE)
        ),
    )


def _whole(config: Mapping[str, Any], seen: list[bool], kv_heads: int, head: int) -> Whole | None:
    heads = config.get("num_attention_heads", 0)
    layers = frozenset(at for at, is_windowed in enumerate(seen) if not is_windowed)
    if not 0 < len(layers) < len(seen):
        return None
    if config["model_type"] == "gemma4_text":
        head = _size(config, "global_head_dim", default=512)
        shares_keys = bool(config.get("attention_k_eq_v"))
        if shares_keys:
            kv_heads = _size(config, "num_global_key_value_heads", default=kv_heads)
        return Whole(layers, heads, kv_heads, head, shares_keys)
    if config["model_type"] == "laguna":
        return Whole(layers, heads, kv_heads, head)
    return None


def _experts(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    family = config["model_type"]
    if family in ("gpt_oss", "llama4_text", "minimax_m2", "mixtral"):
        count = _size(config, "num_local_experts", default=8 if family == "mixtral" else None)
        inner = _size(config, "intermediate_size")
    elif family in _WITH_EXPERTS or config.get("enable_moe_block"):
        count = _size(config, "n_routed_experts" if family in _ROUTED else "num_experts")
        inner = _size(config, "moe_intermediate_size")
    else:
        return {}
    found = {
        "experts": count,
        "expert_inner": inner,
        "chosen": _size(config, "num_experts_per_tok", "top_k_experts", default=2),
    }
    if family in _ROUTED:
        found["shared_inner"] = inner * _count(config, "n_shared_experts")
        dense = set(range(_count(config, "first_k_dense_replace")))
    elif family in ("laguna", "nemotron_h", "qwen3_5_moe_text", "qwen3_next"):
        found["shared_inner"] = _size(config, "shared_expert_intermediate_size")
        dense = {0} if family == "laguna" else set()
    elif family == "gemma4_text":
        found["shared_inner"] = _size(config, "intermediate_size")
        dense = set()
    elif family == "llama4_text":
        found["shared_inner"] = inner
        step = _size(config, "interleave_moe_layer_step", default=1)
        dense = {layer for layer in range(layers) if (layer + 1) % step}
    else:
        step = _size(config, "decoder_sparse_step", default=1) if family == "qwen3_moe" else 1
        dense = {layer for layer in range(layers) if (layer + 1) % step}
        dense |= set(config.get("mlp_only_layers") or ())
    return {**found, "dense": frozenset(dense)}


def _window(config: Mapping[str, Any], layers: int) -> tuple[int, list[bool]]:
    family = config["model_type"]
    key = "attention_chunk_size" if family == "llama4_text" else "sliding_window"
    if config.get(key) is None or config.get("use_sliding_window") is False:
        return 0, [False] * layers
    tokens = _size(config, key)
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        return tokens, [kind in ("sliding_attention", "chunked_attention") for kind in kinds]
    if family in ("qwen2", "qwen3", "qwen3_moe"):  # off unless the configuration turns it on
        is_on = bool(config.get("use_sliding_window"))
        return tokens * is_on, [is_on] * layers
    with_window, of = _WINDOWED_EVERY.get(family, (1, 1))
    return tokens, [layer % of < with_window for layer in range(layers)]
