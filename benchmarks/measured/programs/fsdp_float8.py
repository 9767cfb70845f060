"""8-bit layers and tensor parallelism of torchao for fsdp_steps.py."""

from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


def convert(model, recipe):
    """Convert all linear layers but the output, by tensorwise, rowwise or mxfp8 scaling."""
    if recipe == "mxfp8":
        _to_mxfp8(model)
        return
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    if recipe == "tensorwise":
        config = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    else:
        config = Float8LinearConfig.from_recipe_name(recipe)
    convert_to_float8_training(model, config=config, module_filter_fn=_is_meant)


def _to_mxfp8(model):
    from torchao.prototype.mx_formats import MXLinearConfig
    from torchao.prototype.mx_formats.config import MXFP8Dim1CastKernelChoice
    from torchao.quantization import quantize_

    config = MXLinearConfig.from_recipe_name("mxfp8_cublas")
    # torchao's own kernel for this cast is only in builds on such a card; Triton's kernel writes
    # the same.
    config.mxfp8_cast_kernel_choice = MXFP8Dim1CastKernelChoice.TRITON
    quantize_(model, config=config, filter_fn=_is_meant)


def _is_meant(module, name):
    return isinstance(module, nn.Linear) and name != "output"


def after_a_step(model, recipe):
    """Compute the scales of all weights at once, if they are gathered in 8 bit."""
    if recipe == "tensorwise":
        from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

        precompute_float8_dynamic_scale_for_fsdp(model)


def share_among(model, mesh):
    """Apply tensor and sequence parallelism over `mesh`, with inputs gathered in 8 bit."""
    from torchao.float8.float8_tensor_parallel import (
        Float8ColwiseParallel,
        Float8RowwiseParallel,
        PrepareFloat8ModuleInput,
    )

    outside = {
        "embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        ),
    }
    parallelize_module(model, mesh, outside)
    columns, rows = Float8ColwiseParallel(), Float8RowwiseParallel(output_layouts=Shard(1))
    inside = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareFloat8ModuleInput(
            input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
        ),
        **dict.fromkeys(["attention.q", "attention.k", "attention.v"], columns),
        "attention.out": rows,
        "feed_forward_norm": SequenceParallel(),
        "feed_forward": PrepareFloat8ModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        ),
        **dict.fromkeys(["feed_forward.gate", "feed_forward.up"], columns),
        "feed_forward.down": rows,
    }
    for layer in model.layers.values():
        parallelize_module(layer, mesh, inside)
