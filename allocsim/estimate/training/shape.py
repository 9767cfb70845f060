"""The sizes of a transformer that formulas ask for, and its parameters counted from them.

Rule: a shape describes one decoder of equal layers, the first `dense_layers` of them without
experts; what is counted is what the weights' files of such models hold, to the parameter, which
tests compare with real ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from allocsim.errors import ConfigError

__all__ = ["Latent", "Shape", "shape_for"]

_HEAD = 128
_KV_HEADS = 8
_VOCABULARY = 128256
_LEAST, _MOST = 10**9, 10**13
_TIED_BELOW = 5 * 10**9
_INNER = 3.25
"""Width of the MLP over the model's: Llama-3's are 3.25 (405 B) and 3.5."""
_ASPECT = 112
"""Width over layers: between Llama-3's 102 (70 B) and 130 (405 B)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention (DeepSeek): ranks of queries, keys and values; the part of a head
    that turns with the position; a value's size."""

    query: int
    key_value: int
    turning: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """head: size of one.  inner: width of the MLP.  is_tied: the output layer is the embedding.
    is_gated: the MLP has a gate (SwiGLU).  positions: learned ones, 0 without.
    norms: of a layer.  has_biases: linear layers and norms have them.  query_bias: of queries, keys
    and values alone.
    experts, chosen: of a layer, and of a token; expert_inner: each one's; shared_inner: of those
    that see every token.  latent: None for usual attention.
    dropout: masks of it are kept, after attention and after the MLP.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocabulary: int
    is_tied: bool = False
    is_gated: bool = True
    positions: int = 0
    norms: int = 2
    has_biases: bool = False
    query_bias: bool = False
    dropout: bool = False
    experts: int = 0
    chosen: int = 0
    expert_inner: int = 0
    shared_inner: int = 0
    dense_layers: int = 0
    latent: Latent | None = None

    @property
    def key_value(self) -> int:
        """Width of all keys, and of all values."""
        return self.kv_heads * self.head

    def has_experts(self, layer: int) -> bool:
        """Whether that layer, of 0 and up, has experts."""
        return bool(self.experts) and layer >= self.dense_layers

    @property
    def attention(self) -> int:
        """Parameters of a layer's attention that tensor parallelism splits."""
        queries = self.heads * self.head
        if (latent := self.latent) is not None:
            up = latent.query * self.heads * (self.head + latent.turning)
            up += latent.key_value * self.heads * (self.head + latent.value)
            return up + self.heads * latent.value * self.width
        biases = (queries + 2 * self.key_value) * (self.has_biases or self.query_bias)
        return 2 * queries * self.width + 2 * self.key_value * self.width + biases

    @property
    def mlp(self) -> int:
        """Parameters of a layer's MLP without experts; all split."""
        return (2 + self.is_gated) * self.width * self.inner + self.inner * self.has_biases

    @property
    def expert(self) -> int:
        """Parameters of one expert."""
        return (2 + self.is_gated) * self.width * self.expert_inner

    @property
    def shared(self) -> int:
        """Parameters of what every token passes beside the experts; split."""
        return (2 + self.is_gated) * self.width * self.shared_inner

    def whole(self, layer: int) -> int:
        """Parameters of a layer that every rank of a tensor parallel group has: norms, router,
        biases of row-parallel layers, projections down to a latent."""
        count = self.norms * self.width * (1 + self.has_biases)
        count += 2 * self.width * self.has_biases
        if (latent := self.latent) is not None:
            count += self.width * (latent.query + latent.key_value + latent.turning)
            count += latent.query + latent.key_value
        return count + self.width * self.experts * self.has_experts(layer)

    def layer(self, layer: int) -> int:
        """Parameters of that layer, all its experts among them."""
        inside = self.mlp
        if self.has_experts(layer):
            inside = self.experts * self.expert + self.shared
        return self.attention + inside + self.whole(layer)

    @property
    def embedding(self) -> int:
        """Parameters of the embedding of tokens; the output layer has as many."""
        return self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        """Parameters in all."""
        count = sum(map(self.layer, range(self.layers)))
        count += self.embedding * (1 if self.is_tied else 2) + self.positions * self.width
        return count + self.width * (1 + self.has_biases)


def shape_for(parameters: int) -> Shape:
    """A usual shape of about that many parameters, as the Llamas from 3 on have it.

    Heads of 128, 8 key and value heads, a gated MLP some 3.25 times as wide as the model, a
    vocabulary of 128,256, tied below 5 billion parameters; the width is near 112 times the layers,
    and the MLP takes what is left.
    Raises ConfigError for numbers that no such shape has: below 1 or above 10,000 billion.
    """
    if not _LEAST <= parameters <= _MOST:
        raise ConfigError(
            f"{parameters:,} parameters have no usual shape; expected 1 B to 10,000 B, or a model"
        )
    deep = (parameters / (12 * _ASPECT**2)) ** (1 / 3)
    step = 16 if deep >= 40 else 4
    layers = max(round(deep / step), 1) * step
    shapes = (_shape(parameters, layers, width) for width in range(1024, 1 << 16, 1024))
    return min(shapes, key=lambda shape: abs(shape.inner / shape.width - _INNER))


def _shape(parameters: int, layers: int, width: int) -> Shape:
    """The usual shape of that width, whose MLP makes up the parameters."""
    empty = Shape(
        layers=layers,
        width=width,
        heads=width // _HEAD,
        kv_heads=_KV_HEADS,
        head=_HEAD,
        inner=0,
        vocabulary=_VOCABULARY,
        is_tied=parameters < _TIED_BELOW,
    )
    inner = (parameters - empty.parameters) / (3 * width * layers)
    return replace(empty, inner=max(round(inner / 64), 1) * 64)
