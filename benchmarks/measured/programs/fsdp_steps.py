"""Steps of one rank of a sharded Llama 3.1: FSDP2 over a fake process group.

    python fsdp_steps.py RANKS BATCH [model=70B] [tokens=N] [tensor=N] [context=N]
                         [compile] [full] [fused] [expandable] [float8=RECIPE]
                         [loss] [wide] [apart] [recomputed]

Parameters, gradients and AdamW's states are sharded in fp32; computation is in bf16, and gradients
are reduced in fp32. The defaults are 8B parameters and 8,192 tokens. Each block is checkpointed by
operation (every other matrix product, attention and the reductions are kept).

compile: compile each block.
full: checkpoint whole blocks; nothing is kept.
fused: AdamW in one kernel.
expandable: expandable segments, as torchtitan's own launcher sets them.
float8: torchao's tensorwise (gathered in 8 bit), rowwise or mxfp8.
tensor: number of ranks that share each matrix, in float8.
context: number of ranks that share each sequence.

Some options restore older behaviour of torchtitan.

loss: the loss is compiled too (pull request 1033, April 2025).
wide: the model returns logits in fp32 (until autumn 2024).
apart: embeddings and output are sharded separately (1094, after July 2025).
recomputed: attention is not kept, as cuDNN's was not on a B200 (1196, May 2025, until 2095 of
    December).
"""

import gc
import os
import sys
from collections import defaultdict
from contextlib import nullcontext

if "expandable" in sys.argv:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import torch
import torch.nn.functional as F
from fsdp_llama import SHAPES, VOCABULARY, Llama
from torch.distributed import init_process_group
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

n_ranks, batch = int(sys.argv[1]), int(sys.argv[2])
named = dict(each.split("=") for each in sys.argv[3:] if "=" in each)
model, recipe = named.get("model", "8B"), named.get("float8")
if model not in SHAPES:
    sys.exit(f"model={model} is unknown; expected one of {', '.join(SHAPES)}")
shape = SHAPES[model]
n_tokens, n_tensor, n_context = (
    int(named.get(name, usual)) for name, usual in [("tokens", 8192), ("tensor", 1), ("context", 1)]
)
is_compiled = "compile" in sys.argv
STEPS = 3
aten = torch.ops.aten
KEPT = {
    aten.mm.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
    aten.max.default,
}
if "recomputed" in sys.argv:
    KEPT = {operation for operation in KEPT if "attention" not in str(operation)}


def kept_by_operation():
    """Return the checkpointing policy: the operations whose results a block keeps for backward."""
    products = defaultdict(int)

    def policy(context, operation, *_, **__):
        if operation == aten.mm.default:
            products[context.is_recompute] += 1
            if products[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        keeps = operation in KEPT
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def loss_of(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def sharing(ids, labels):
    """Return the context of a step: a sequence or a loss that several ranks share."""
    if n_tensor > 1:
        from torch.distributed.tensor.parallel import loss_parallel

        return loss_parallel()
    if n_context == 1:
        return nullcontext()
    from torch.distributed.tensor.experimental import context_parallel

    buffers = [ids, labels, model.angles]
    return context_parallel(
        meshes["by"], buffers=buffers, buffer_seq_dims=[1, 1, 0], no_restore_buffers={ids, labels}
    )


gc.disable()
init_process_group("fake", rank=0, world_size=n_ranks, store=FakeStore())
by = max(n_tensor, n_context)
meshes = init_device_mesh("cuda", (n_ranks // by, by), mesh_dim_names=("data", "by"))
# Ranks that share a sequence shard the same parameters; ranks that share matrices do not.
mesh = meshes["data"] if n_tensor > 1 else meshes["data", "by"]._flatten("all")
with torch.device("meta"):
    model = Llama(shape, n_tokens, "wide" in sys.argv)
if recipe:
    import fsdp_float8

    fsdp_float8.convert(model, recipe)
if n_tensor > 1:
    fsdp_float8.share_among(model, meshes["by"])
for name, layer in model.layers.named_children():
    how = {} if "full" in sys.argv else {"context_fn": kept_by_operation}
    block = checkpoint_wrapper(layer, preserve_rng_state=False, **how)
    model.layers.register_module(
        name, torch.compile(block, fullgraph=True) if is_compiled else block
    )
if "loss" in sys.argv:
    loss_of = torch.compile(loss_of)
if is_compiled and torch.__version__ < "2.7":
    # A phantom's kernels take no time, and Triton divides by their time.
    from torch._inductor.runtime.benchmarking import TritonBenchmarker

    TritonBenchmarker.benchmark_gpu = lambda *_, **__: 1.0
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
is_apart = "apart" in sys.argv
if is_apart:
    fully_shard(model.embeddings, mesh=mesh, mp_policy=policy)
for name, layer in model.layers.items():
    is_kept = int(name) == shape.layers - 1 and not is_apart
    fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=not is_kept)
if is_apart:
    head = [model.norm, model.output]
    fully_shard(head, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
model.to_empty(device="cuda")
model.train()
is_fused = "fused" in sys.argv
settings = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
optimizer = torch.optim.AdamW(model.parameters(), fused=is_fused, foreach=not is_fused, **settings)
torch.cuda.reset_peak_memory_stats()
for _ in range(STEPS):
    ids, labels = (torch.randint(VOCABULARY, (batch, n_tokens)).cuda() for _ in range(2))
    optimizer.zero_grad()
    with sharing(ids, labels):
        logits = model(ids)
        loss = loss_of(logits, labels)
        del logits
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    if recipe:
        fsdp_float8.after_a_step(model, recipe)
    print(torch.cuda.max_memory_allocated() / 2**30, torch.cuda.max_memory_reserved() / 2**30)
