"""Steps of one rank of a sharded Llama 3.1 8B: FSDP2, over a process group that only pretends.

    python fsdp_steps.py RANKS BATCH [compile] [fused] [expandable]
                         [loss] [wide] [apart] [recomputed]

Parameters, gradients and AdamW's states in fp32 and sharded, the work in bf16, gradients reduced in
fp32; 8,192 tokens; each block checkpointed by operation (every other matrix product, attention and
the reductions are kept).  compile: each block.  fused: AdamW in one kernel.  expandable: the
allocator's segments, as torchtitan's own launcher sets them.

What was otherwise at times.  loss: compiled too (pull request 1033, April 2025).  wide: logits in
fp32 are what the model returns (until autumn 2024).  apart: the embeddings and the output are
sharded by themselves (1094, after July 2025).  recomputed: attention is not among what is kept, as
cuDNN's was not on a B200 (1196, May 2025, until 2095 of December).
"""

import gc
import os
import sys
from collections import defaultdict

if "expandable" in sys.argv:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import init_process_group
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

n_ranks, batch = int(sys.argv[1]), int(sys.argv[2])
is_compiled = "compile" in sys.argv
STEPS, TOKENS, VOCABULARY = 3, 8192, 128256
WIDTH, INNER, LAYERS, HEADS, KV_HEADS = 4096, 14336, 32, 32, 8
HEAD = WIDTH // HEADS
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


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return scaled.type_as(x) * self.weight


def linear(into, out):
    return nn.Linear(into, out, bias=False)


def rotated(x, angles):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles).flatten(3)


def repeated(x):
    n = HEADS // KV_HEADS
    shape = (*x.shape[:3], n, HEAD)
    return x.unsqueeze(3).expand(shape).reshape(*x.shape[:2], HEADS, HEAD)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = linear(WIDTH, WIDTH), linear(WIDTH, KV_HEADS * HEAD)
        self.v, self.out = linear(WIDTH, KV_HEADS * HEAD), linear(WIDTH, WIDTH)

    def forward(self, x, angles):
        q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = (each.view(*x.shape[:2], -1, HEAD) for each in (q, k, v))
        angles = angles[: x.shape[1]].view(1, x.shape[1], 1, -1)
        rotated_q, rotated_k = rotated(q, angles), rotated(k, angles)
        q, k = rotated_q.type_as(q), rotated_k.type_as(k)
        del rotated_q, rotated_k
        k, v = repeated(k), repeated(v)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).contiguous().view(*x.shape[:2], -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.down, self.up = (
            linear(WIDTH, INNER),
            linear(INNER, WIDTH),
            linear(WIDTH, INNER),
        )

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm, self.feed_forward_norm = Norm(), Norm()

    def forward(self, x, angles):
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.register_buffer("angles", torch.empty(TOKENS, HEAD // 2, dtype=torch.complex64))
        self.layers = nn.ModuleDict({str(at): Block() for at in range(LAYERS)})
        self.norm, self.output = Norm(), linear(WIDTH, VOCABULARY)

    def forward(self, ids):
        x = self.embeddings(ids)
        for layer in self.layers.values():
            x = layer(x, self.angles)
        logits = self.output(self.norm(x))
        return logits.float() if "wide" in sys.argv else logits


def kept_by_operation():
    """What a block keeps of its forward for its backward."""
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


gc.disable()
init_process_group("fake", rank=0, world_size=n_ranks, store=FakeStore())
mesh = init_device_mesh("cuda", (n_ranks,))
with torch.device("meta"):
    model = Llama()
for name, layer in model.layers.named_children():
    block = checkpoint_wrapper(layer, context_fn=kept_by_operation, preserve_rng_state=False)
    model.layers.register_module(
        name, torch.compile(block, fullgraph=True) if is_compiled else block
    )
if "loss" in sys.argv:
    loss_of = torch.compile(loss_of)
if is_compiled and torch.__version__ < "2.7":
    # A phantom's kernels take no time, by which Triton divides.
    from torch._inductor.runtime.benchmarking import TritonBenchmarker

    TritonBenchmarker.benchmark_gpu = lambda *_, **__: 1.0
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
is_apart = "apart" in sys.argv
if is_apart:
    fully_shard(model.embeddings, mesh=mesh, mp_policy=policy)
for name, layer in model.layers.items():
    is_kept = int(name) == LAYERS - 1 and not is_apart
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
    ids, labels = (torch.randint(VOCABULARY, (batch, TOKENS)).cuda() for _ in range(2))
    optimizer.zero_grad()
    logits = model(ids)
    loss = loss_of(logits, labels)
    del logits
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    print(torch.cuda.max_memory_allocated() / 2**30, torch.cuda.max_memory_reserved() / 2**30)
