"""Peak memory of one rank of parallel training, and the rank with the highest peak.

The peak is at one of these moments: the loss; backward of a layer, of an encoder or of a tied
embedding; the end of backward; the optimizer's step.  Only the bytes of tensors are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from allocsim.fitting.formulas.training.encoders import EncodedLayer
from allocsim.fitting.formulas.training.kept import (
    FUSED,
    MIXED,
    Practice,
    Precision,
    Rank,
    RankPart,
    kept_of_layer,
    logits_of_pairs,
    operations_kept,
)
from allocsim.fitting.formulas.training.layout import (
    ParallelLayout,
    TransformerShape,
    refuse_impossible,
)

_BUCKET = 500_000_000
"""Number of elements in DeepSpeed's default buffer for the reduction of gradients."""
_ALL = 3
_COPIES = "16-bit copies of weights"
_ADAPTER = 4
"""Bytes per element of LoRA adapters, of their gradients, and of each tensor of optimizer state."""


@dataclass(frozen=True, slots=True)
class Training:
    """Parallel training run: a model, its division over ranks, precision and software."""

    name: str
    shape: TransformerShape
    layout: ParallelLayout
    precision: Precision = MIXED
    practice: Practice = FUSED

    def rank(self, stage: int) -> Rank:
        """Return the peak memory of a rank in the pipeline stage with index `stage`."""
        return self._account(stage).worst()

    def worst(self) -> Rank:
        """Return the peak memory of the rank with the highest peak, in any pipeline stage."""
        refuse_impossible(self.shape, self.layout)
        # Each stage between the second and the last needs less memory than the second.
        last = self.layout.pipeline - 1
        return max(map(self.rank, sorted({0, min(1, last), last})), key=lambda each: each.allocated)

    def stages(self) -> tuple[Rank, ...]:
        return tuple(map(self.rank, range(self.layout.pipeline)))

    def least(self) -> int:
        """Return the first stage's bytes without temporary tensors, with full checkpointing."""
        account = replace(self, layout=replace(self.layout, recompute="full"))._account(0)
        return sum(part.size for part in (*account.before(), *account.kept()))

    def _account(self, stage: int) -> _Account:
        return _Account(self.shape, self.layout, stage, self.precision, self.practice)


@dataclass(frozen=True, eq=False)
class _Account:
    shape: TransformerShape
    layout: ParallelLayout
    stage: int
    precision: Precision
    practice: Practice

    @property
    def layers(self) -> range:
        return self.layout.layers_of(self.stage, self.shape.layers)

    @cached_property
    def kinds(self) -> dict[int, int]:
        kinds: dict[tuple[TransformerShape, bool], list[int]] = {}
        for layer in self.layers:
            kind = self.shape.of_layer(layer), self.shape.has_experts(layer)
            kinds.setdefault(kind, []).append(layer)
        return {layers[0]: len(layers) for layers in kinds.values()}

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.layout.pipeline - 1

    def worst(self) -> Rank:
        states, before = tuple(self.states()), self.before()
        # Backward frees the 16-bit copies.
        after = tuple(part for part in states if part.name != _COPIES)
        kept = tuple(self.kept())
        moments = {
            "backward of a layer": (*before, *kept, *self.in_layer()),
            "backward's end": (*after, *self.in_layer()),
            "optimizer's step": (*after, *self.in_step()),
        }
        if (encoder := self.shape.encoder) is not None:
            moments["backward's end"] = (*after, *self.in_layer(0))
            inside = (*self.kept(encoder.layers), *self.in_layer(0))
            moments["backward of the encoder"] = (*before, *inside, *self.decoder_gradients())
            inside = (*kept, *self.in_layer(encoder.layers))
            moments["backward of a layer"] = (*before, *inside)
        if self.is_last:
            moments["loss"] = (*before, *kept, *self.at_loss())
        moments["backward of the embedding"] = (*after, *self.at_embedding())
        name = max(moments, key=lambda name: sum(part.size for part in moments[name]))
        return Rank(self.stage, name, self.dense + self.experts, moments[name])

    def before(self) -> tuple[RankPart, ...]:
        return tuple(
            part for part in self.states() if part.name != "gradients" or self._accumulates
        )

    @property
    def _accumulates(self) -> bool:
        layout = self.layout
        return self.practice.keeps_gradients or layout.pipeline * layout.micro_batches > 1

    # Parameters on the rank

    @property
    def dense(self) -> int:
        own = sum(n * self._dense_of(layer) for layer, n in self.kinds.items())
        return own + self.edges

    @property
    def edges(self) -> int:
        shape, t = self.shape, self.layout.tensor
        count = 0
        if self.is_first:
            count += (shape.embedding + shape.further) // t + shape.positions * shape.width
        if self.is_last:
            count += shape.width * (1 + shape.has_biases)
            if not (shape.is_tied and self.is_first):
                count += shape.embedding // t
        return count

    @property
    def experts(self) -> int:
        return sum(n * self._experts_of(layer) for layer, n in self.kinds.items())

    def _dense_of(self, layer: int) -> int:
        shape, t = self.shape.of_layer(layer), self.layout.tensor
        inside = shape.shared if shape.has_experts(layer) else shape.mlp
        return (shape.attention + inside) // t + shape.whole(layer)

    def _experts_of(self, layer: int) -> int:
        if not self.shape.has_experts(layer):
            return 0
        each = self.shape.expert // self.layout.tensor
        return self.shape.experts // self.layout.expert * each

    @property
    def largest_layer(self) -> int:
        return max(self._dense_of(layer) + self._experts_of(layer) for layer in self.kinds)

    # States

    def states(self) -> Iterator[RankPart]:
        zero, precision = self.layout.zero, self.precision
        if precision.quantised is not None:
            stored, largest = precision.quantised
            yield RankPart("weights", stored, "quantised, and the others in 32 bits")
            yield RankPart("a dequantised weight", largest, "16 bits per element of the largest")
        else:
            yield self._state("weights", precision.weights, zero >= _ALL)
        if precision.reference:
            yield self._state("reference model", precision.reference, zero >= _ALL)
            if zero == _ALL and self.layout.shards > 1:  # no backward pass frees them
                yield self._gathered(self.edges, "reference's embeddings, gathered")
        if self.shape.lora:
            yield from self._adapter_states()
        else:
            yield self._state("gradients", precision.gradients, zero >= 2)
            yield self._state("optimizer", precision.optimizer, zero >= 1)
        if precision.compute < precision.weights and zero < _ALL:
            count = self.dense + self.experts
            is_split = self.shape.lora or self.shape.encoder is not None or self.practice.pairs
            if is_split and self.layout.recompute == "full":
                # Autocast keeps no copies of weights whose operations save nothing; backward does,
                # of what it computes.
                count = self.shape.embedding + self.largest_layer
            yield self._gathered(count, _COPIES)
        is_whole = zero < 2 and not self.shape.lora and not self.practice.keeps_gradients
        if is_whole and self.layout.shards > 1:
            count, each = self.dense + self.experts, precision.gradients
            how = f"{count:,} x {each} bytes: DistributedDataParallel's, beside the gradients"
            yield RankPart("buckets of gradients", count * each, how)

    @property
    def trained(self) -> int:
        if self.shape.lora:
            adapters = sum(self.shape.of_layer(layer).adapters for layer in self.layers)
            return adapters // self.layout.tensor
        return self.dense + self.experts

    def _adapter_states(self) -> Iterator[RankPart]:
        layout, count = self.layout, self.trained
        optimizer = self.precision.optimizer * _ADAPTER / self.precision.weights
        for name, each, stage in (
            ("adapters", _ADAPTER, _ALL),
            ("gradients", _ADAPTER, 2),
            ("optimizer", optimizer, 1),
        ):
            among = layout.shards if layout.zero >= stage else 1
            how = f"{count:,} x {each:g} bytes" + f" / {among}" * (among > 1)
            yield RankPart(name, round(count * each / among), how)

    def _state(self, name: str, each: float, is_shared: bool) -> RankPart:
        layout = self.layout
        terms, size = [], 0.0
        for count, shards in ((self.dense, layout.shards), (self.experts, layout.expert_shards)):
            if not count:
                continue
            among = shards if is_shared else 1
            size += count * each / among
            terms.append(f"{count:,} x {each:g} bytes" + f" / {among}" * (among > 1))
        return RankPart(name, round(size), " + ".join(terms))

    # Activations

    def kept(self, end: int | None = None) -> Iterator[RankPart]:
        # Activations of the layers before `end`, or of all layers.
        depth = self.layout.in_flight(self.stage)
        tokens, layout = self.layout.tokens, self.layout
        kinds = {layer: n for layer, n in self.kinds.items() if end is None or layer < end}
        each = {layer: self._kept_of(layer) for layer in kinds}
        size = depth * sum(n * each[layer] for layer, n in kinds.items())
        how = f"{tokens:,} tokens x ("
        how += " + ".join(
            f"{n} layers x {each[layer] / tokens:,.0f} bytes" for layer, n in kinds.items()
        )
        how += ")" + f" x {depth:g} in flight" * (layout.pipeline > 1)
        yield RankPart("activations", round(size), how)
        if self.shape.encoder is not None:
            beside = sum(self._encoded(layer).beside() for layer in kinds)
            yield RankPart("inputs and outputs of the stacks", round(beside), "saved once a stack")
        if self.shape.dropout and self.is_first:
            mask = tokens * self.shape.width / layout.split * depth
            yield RankPart("embedding's dropout", round(mask), "a byte an element")

    def _encoded(self, layer: int) -> EncodedLayer:
        shape, item = self.shape.of_layer(layer), self.precision.compute
        return EncodedLayer(shape, self.layout, item, self.practice.casts)

    def _kept_of(self, layer: int) -> float:
        item, layout = self.precision.compute, self.layout
        if self.shape.encoder is not None and layout.recompute == "full":
            encoded = self._encoded(layer)
            return float(encoded.rows * self.shape.width * encoded.residual)
        if layout.recompute == "full":
            return layout.tokens * self.shape.width * item / layout.split
        if layout.recompute == "ops":
            return operations_kept(self.shape, layout, item)
        return self._whole(layer)

    def _whole(self, layer: int) -> float:
        shape = self.shape.of_layer(layer)
        kept = kept_of_layer(shape, self.layout, layer, self.practice, self.precision.compute)
        return sum(kept.values())

    # The three moments

    def at_loss(self) -> Iterator[RankPart]:
        shape, layout, item = self.shape, self.layout, self.precision.compute
        ends = round(2 * layout.tokens * shape.width * item / layout.split)
        yield RankPart("last norm and output layer's input", ends, "2 x tokens x width")
        if (practice := self.practice).pairs is not None:
            yield logits_of_pairs(shape, layout.tokens, practice.pairs, self.precision)
        else:
            each = (practice.logits if layout.tensor == 1 else practice.split_logits) or item
            logits = layout.tokens * shape.vocabulary * each / layout.tensor
            how = f"{layout.tokens:,} tokens x {shape.vocabulary:,} x {each} bytes"
            how += f" / {layout.tensor}" * (layout.tensor > 1)
            yield RankPart("logits and loss", round(logits), how)
        yield self._gathered_input("output layer's input, and its gradient", 2)
        yield from self._weight_gradient_placeholders()
        head = shape.embedding // layout.tensor
        if practice.weight_gradients:
            yield RankPart("output layer's gradient", head * item, f"{head:,} x {item} bytes")
        if layout.zero == _ALL and layout.shards > 1:
            yield from self._gathered_at_ends()

    def in_layer(self, layer: int | None = None) -> Iterator[RankPart]:
        # Temporary memory in backward of `layer`; by default, of the layer that saves most.
        shape, layout, item = self.shape, self.layout, self.precision.compute
        layer = max(self.kinds, key=self._whole) if layer is None else layer
        shape = shape.of_layer(layer)
        if layout.recompute in ("full", "ops"):
            recomputed = self._whole(layer)
            how = f"{recomputed / layout.tokens:,.0f} bytes a token"
            yield RankPart("one layer, computed again", round(recomputed), how)
        if shape.encoder is not None:
            least = round(self._encoded(layer).gradients())
            yield RankPart("gradients in the layer", least, "of the MLP or of the scores")
            yield from self._in_flight()
            return
        wide = shape.inner
        if shape.has_experts(layer):
            wide = max(shape.expert_inner * shape.chosen, shape.shared_inner)
        factor = 3 if shape.is_gated else 2
        size = layout.tokens * wide * item * factor / layout.tensor
        yield RankPart("gradients in the MLP", round(size), f"{factor} x tokens x {wide:,}")
        if shape.adapts_experts and shape.has_experts(layer):
            copied = shape.experts * shape.width * shape.expert_inner // layout.tensor
            how = f"{copied:,} x {item} bytes, of the down projections"
            yield RankPart("gradient of copied experts", copied * item, how)
        if layout.split > 1:
            yield self._gathered_input("a linear layer's input, gathered", 1)
        yield from self._weight_gradient_placeholders()
        yield from self._in_flight()

    def decoder_gradients(self) -> Iterator[RankPart]:
        assert self.shape.encoder is not None
        if self._accumulates or self.shape.lora:
            return
        kinds = self.kinds.items()
        count = sum(n * self._dense_of(layer) for layer, n in kinds if layer) + self.shape.embedding
        each = self.precision.gradients
        among = self.layout.shards if self.layout.zero >= 2 else 1
        how = f"{count:,} x {each} bytes" + f" / {among}" * (among > 1)
        yield RankPart("gradients of the decoder", count * each // among, how)

    def at_embedding(self) -> Iterator[RankPart]:
        # The output layer computes the first gradient of a tied embedding.
        shape = self.shape
        is_tied = shape.is_tied and self.is_first and self.is_last
        if is_tied and not shape.lora and not self.practice.keeps_gradients:
            count, each = shape.embedding // self.layout.tensor, self.precision.gradients
            # Under autocast the first gradient has another type, and is converted anyway.
            n = 1 if self.precision.compute < each else 2
            how = f"{n} x {count:,} x {each} bytes"
            yield RankPart("embedding's second gradient, and the sum", n * count * each, how)

    def _gathered_input(self, name: str, count: int) -> RankPart:
        size = count * self.layout.tokens * self.shape.width * self.precision.compute
        return RankPart(name, size, f"{count} x tokens x width" if count > 1 else "tokens x width")

    def _weight_gradient_placeholders(self) -> Iterator[RankPart]:
        if not self.practice.weight_gradients:
            return
        shape, t, item = self.shape, self.layout.tensor, self.precision.compute
        # Transformer Engine keeps one placeholder per shape, which all layers share.
        count = shape.of_layer(self.layers[0]).attention // t + max(map(shape.whole, self.kinds))
        for layer in self.kinds:
            inside = shape.shared + shape.expert if shape.has_experts(layer) else shape.mlp
            count += inside // t
        how = f"{count:,} x {item} bytes: placeholders, one for each shape of a weight"
        yield RankPart("weight gradients' places", count * item, how)

    def _in_flight(self) -> Iterator[RankPart]:
        layout = self.layout
        if layout.shards == 1:
            return
        each = self.precision.gradients
        if layout.zero == 2:
            count = min(_BUCKET, self.dense + self.experts)
            yield RankPart("bucket of gradients", count * each, f"{count:,} x {each} bytes")
        if layout.zero == _ALL:
            layer, item = self.largest_layer, self.precision.compute
            if layout.pipeline == 1:
                yield self._gathered(2 * layer, "this layer and the next, gathered")
            how = f"{layer:,} x ({item} + {each}) bytes"
            yield RankPart("its gradients, whole and being sent", layer * (item + each), how)
            yield from self._gathered_at_ends()

    def _gathered_at_ends(self) -> Iterator[RankPart]:
        # In a pipeline, all weights stay gathered, because the next micro-batch follows at once.
        if self.layout.pipeline == 1:
            yield self._gathered(self.edges, "embeddings and output layer, gathered")
            return
        count, each = self.dense + self.experts, self.precision.gradients
        yield self._gathered(count, "the stage, gathered")
        yield RankPart("the stage's gradients, whole", count * each, f"{count:,} x {each} bytes")

    def _gathered(self, count: int, name: str) -> RankPart:
        item = self.precision.compute
        return RankPart(name, count * item, f"{count:,} x {item} bytes")

    def in_step(self) -> Iterator[RankPart]:
        if not self.practice.foreach:
            return
        layout = self.layout
        each = _ADAPTER if self.shape.lora else self.precision.weights
        count = self.trained // (layout.shards if layout.zero == _ALL else 1)
        how = f"{count:,} x {each} bytes: every operation on all parameters at once"
        yield RankPart("a copy for the step", count * each, how)
