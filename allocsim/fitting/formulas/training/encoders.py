"""Tensors that layers of T5 and Whisper save for the backward pass in transformers.

T5's self-attention adds a trained bias, for which PyTorch has no fused kernel.  Queries, keys,
values and scores of T5 are therefore saved in 32 bits.
"""

# Found by hooks on saved tensors (torch.autograd.graph.saved_tensors_hooks) in transformers 5.17
# with PyTorch 2.11, for T5 with and without a gate and for Whisper, in 16 and 32 bits.

from __future__ import annotations

from dataclasses import dataclass

from allocsim.fitting.formulas.sizes import Encoder
from allocsim.fitting.formulas.training.layout import ParallelLayout, TransformerShape

_FP32 = 4
_GATED_TERMS, _WIDE_TERMS = 6, 4
"""Number of tensors with the MLP's width that T5's gated MLP saves for GELU and the gate.

The first number counts all of them, and the second those that autocast computes in 32 bits.
"""
_BUCKET = 8
"""Bytes of the index, saved by T5 per pair of tokens, of the bucket with their distance's bias."""
_SCORES = 4 + 1 + 4
"""Bytes that T5 saves per attention score: softmax, mask of dropout, softmax after dropout."""
_SOUND_FRAMES = 2
"""Number of frames of sound for each token of Whisper's encoder."""


@dataclass(frozen=True, slots=True)
class EncodedLayer:
    """Activations of one micro-batch in a layer of a model with an encoder (T5 or Whisper).

    shape: sizes of the layer.
    layout: division of the training over ranks.
    item: bytes of an element of activations.
    casts: True if the hidden states have 32 bits and each linear layer saves its own 16-bit copy.
    """

    shape: TransformerShape
    layout: ParallelLayout
    item: int
    casts: bool

    @property
    def encoder(self) -> Encoder:
        assert self.shape.encoder is not None
        return self.shape.encoder

    @property
    def source(self) -> int:
        """Number of tokens in the encoder's output for one sequence."""
        return self.encoder.tokens or self.layout.seq

    @property
    def seq(self) -> int:
        """Number of tokens of one sequence in this layer."""
        return self.layout.seq if self.shape.crosses else self.source

    @property
    def rows(self) -> int:
        return self.layout.micro_batch * self.seq

    @property
    def sources(self) -> int:
        return self.layout.micro_batch * self.source

    @property
    def is_t5(self) -> bool:
        return self.encoder.buckets > 0

    @property
    def residual(self) -> int:
        """Bytes of an element of the hidden states between layers."""
        return _FP32 if self.casts else self.item

    @property
    def is_trained(self) -> bool:
        """True if weights are trained, so linear layers save their inputs; False with LoRA."""
        return not self.shape.lora

    @property
    def norm(self) -> int:
        """Bytes that a norm saves for backward per element of its input."""
        if not self.is_t5:
            return self.residual
        copy = _FP32 * (self.residual < _FP32)
        return self.residual + copy + self.residual * self.is_trained

    def kept(self) -> dict[str, float]:
        """Return the bytes saved for backward, keyed by kind of tensor, such as "MLP"."""
        width, crosses = self.shape.width, self.shape.crosses
        parts = 2 + crosses
        found = {
            "norms": float(parts * self.norm * width * self.rows),
            "inputs of linear layers": self._inputs(),
            "attention": self._attention(),
            "MLP": self.mlp(),
        }
        if self.is_t5:
            found["dropout masks"] = float(parts * width * self.rows)
        if crosses:
            found["attention to the encoder"] = self._crossing()
        return found

    def _inputs(self) -> float:
        # The norms' outputs; that of the encoder is saved once, or copied for keys and for values.
        shape = self.shape
        if shape.lora:
            return self._adapter_inputs()
        if not self.casts:
            return float((2 + shape.crosses) * self.item * shape.width * self.rows)
        own = (3 + shape.crosses + 1 + shape.is_gated) * self.rows
        return float(self.item * shape.width * (own + 2 * shape.crosses * self.sources))

    def _adapter_inputs(self) -> float:
        # peft keeps adapters in 32 bits; a module saves its own copy of a 16-bit input.
        shape = self.shape
        wide = [wide for wide, _ in shape.adapted]
        beyond = shape.crossing_adapters
        each = self.item if self.casts else _FP32
        rank = each * shape.lora * ((len(wide) - beyond) * self.rows + beyond * self.sources)
        if self.item == _FP32:  # the modules share their inputs
            own = (2 + shape.crosses) * shape.width + shape.inner
            own += (1 + shape.crosses) * shape.heads * shape.head
            return float(each * own * self.rows + rank)
        own = sum(wide) - beyond * shape.width
        return float(each * (own * self.rows + beyond * shape.width * self.sources) + rank)

    def _attention(self) -> float:
        shape, item, trained = self.shape, self.item, self.is_trained
        queries = shape.heads * shape.head
        if not self.layout.flash:
            wide = (3 + trained) * item * queries
            return float(self.rows * (wide + self._eager_scores(self.seq)))
        if self.is_t5:
            wide = (3 * _FP32 + item * trained) * queries
            return float(self.rows * (wide + _SCORES * shape.heads * self.seq))
        return float(self.rows * ((4 + self._copied) * item * queries + _FP32 * shape.heads))

    @property
    def _copied(self) -> bool:
        # Flash attention, which has 16 bits, saves the output in another order than the next layer.
        return self.is_trained and not self.is_t5 and self.item < _FP32

    def _crossing(self) -> float:
        shape, item, trained = self.shape, self.item, self.is_trained
        queries = shape.heads * shape.head
        sources = 2 * item * queries * self.sources
        if not self.layout.flash:
            wide = (1 + trained) * item * queries + self._eager_scores(self.source)
            return float(self.rows * wide + sources)
        own = (2 + self._copied) * item * queries + _FP32 * shape.heads
        return float(self.rows * own + sources)

    def _eager_scores(self, seen: int) -> int:
        softmax = _FP32 if self.casts else self.item
        if self.is_t5:
            return self.shape.heads * seen * (softmax + 1 + self.item)
        return self.shape.heads * seen * (softmax + self.item * self.casts)

    def mlp(self) -> float:
        """Return the bytes that the MLP saves for backward, without its input."""
        terms = _GATED_TERMS if self.shape.is_gated else 1
        each = self.item * (terms + self.is_trained)
        if self.shape.is_gated and self.casts:
            each += (_FP32 - self.item) * _WIDE_TERMS
        return float(self.rows * self.shape.inner * (each + self.is_t5))

    def gradients(self) -> float:
        """Return the peak bytes of temporary gradients during the layer's backward pass.

        Gradients of attention scores exist only after the saved tensors of the MLP are freed, so
        the bytes of these tensors are subtracted.
        """
        factor = 3 if self.shape.is_gated else 2
        inside = float(factor * self.item * self.rows * self.shape.inner)
        if not self.is_t5:
            return inside
        # Three tensors of gradients of the softmax, less the mask and the softmax after dropout.
        each = _FP32 if self.layout.flash else self.item
        scores = (2 * each - 1) * self.rows * self.shape.heads * self.seq
        # Checkpointed layers also keep the bias, which is their input.
        of_bias = self.item * self.shape.heads * self.seq**2
        of_bias *= 1 + (self.layout.recompute == "full")
        return max(inside, scores + of_bias - self.mlp())

    def beside(self) -> float:
        """Return the bytes saved for backward before the first layer and after the last layer.

        The result is for the encoder if this layer is in the encoder, else for the decoder.
        """
        shape, item = self.shape, self.item
        if not self.is_t5:
            if shape.crosses:
                return 0.0
            found = (self.norm + item * (not self.casts)) * shape.width * self.rows
            frames = _SOUND_FRAMES * self.rows
            found += frames * self.encoder.channels * (self.residual + item * self.casts)
            return found + self.is_trained * item * shape.width * (2 * frames + self.rows)
        found = (self.norm + 2) * shape.width * self.rows
        found += _BUCKET * self.seq**2 * self.is_trained
        if shape.crosses:
            found += item * shape.heads * self.seq * self.source * self.layout.flash
            return found - item * shape.width * self.rows
        return found + item * (not self.casts) * shape.width * self.rows
