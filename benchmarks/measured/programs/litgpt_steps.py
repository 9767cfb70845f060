"""First steps of finetuning a LitGPT model: adapters, or all of its parameters.

    python litgpt_steps.py MODEL METHOD LONGEST NEXT BATCH [RANK LAYER ...] [ranks=N]

METHOD is full, lora, adapter or adapter_v2; the latter three use weights of 4 bit and a paged
AdamW, as lora-nf4 and lora-nf4-dq do. Low-rank adapters have rank 8 on queries and values, or RANK
on the named layers: query, key, value, projection, mlp, head.

Weights are in bf16 by Lightning Fabric, with AdamW, and the head and the loss run in chunks of 128
tokens. The first batch has LONGEST tokens, as LitGPT arranges it; later batches have NEXT.
Gradients are accumulated over two batches, or over four with ranks, which runs one of N ranks over
a fake process group. That is FSDP with each block checkpointed, whose gradients are whole until the
batch after which it steps.
"""

import importlib.util
import os
import sys
import types

import bitsandbytes
import lightning
import torch
from lightning.fabric.plugins import BitsandbytesPrecision
from lightning.fabric.strategies import FSDPStrategy

if lightning.__version__ < "2.5":  # older than LitGPT requires, but not for these models
    found = importlib.util.find_spec("litgpt")
    sys.modules["litgpt"] = package = types.ModuleType("litgpt")
    package.__path__ = list(found.submodule_search_locations)

from litgpt.utils import chunked_cross_entropy

name, method, *numbers = sys.argv[1:6]
longest, following, batch = map(int, numbers)
rest = sys.argv[6:]
n_ranks = next((int(each.split("=")[1]) for each in rest if "=" in each), 1)
rest = [each for each in rest if "=" not in each]
kind, _, bits = method.partition("-")
their = importlib.import_module("litgpt.model" if kind == "full" else f"litgpt.{kind}")


def shared_among(n_ranks):
    """Return Fabric on the first rank."""
    from torch.distributed import init_process_group
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ |= {"LOCAL_RANK": "0", "NODE_RANK": "0"}  # otherwise it starts the other ranks
    init_process_group("fake", rank=0, world_size=n_ranks, store=FakeStore())
    block = {their.Block}
    sharded = FSDPStrategy(
        auto_wrap_policy=block,
        activation_checkpointing_policy=block,
        state_dict_type="full",
        limit_all_gathers=True,
    )
    fabric = lightning.Fabric(devices=1, num_nodes=n_ranks, strategy=sharded, precision="bf16-true")
    fabric.launch()
    return fabric


def configured():
    """Return the model's shape, with that of its adapters."""
    if kind != "lora":
        return their.Config.from_name(name)
    rank, *layers = rest or ["8", "query", "value"]
    adapters = {f"lora_{layer}": True for layer in layers}
    return their.Config.from_name(
        name, lora_r=int(rank), lora_alpha=16, lora_dropout=0.05, **adapters
    )


if bits:
    fabric = lightning.Fabric(devices=1, plugins=BitsandbytesPrecision(bits, torch.bfloat16))
elif n_ranks > 1:
    fabric = shared_among(n_ranks)
else:
    fabric = lightning.Fabric(devices=1, precision="bf16-true")
config = configured()
with fabric.init_module(empty_init=n_ranks > 1):
    model = their.GPT(config)
if kind != "full":
    getattr(their, f"mark_only_{kind}_as_trainable")(model)
model = fabric.setup_module(model)
parameters = [each for each in model.parameters() if each.requires_grad]
settings = {"lr": 3e-4, "weight_decay": 0.01}
if bits:
    optimizer = bitsandbytes.optim.PagedAdamW(parameters, **settings)
else:
    optimizer = torch.optim.AdamW(parameters, **settings)
optimizer = fabric.setup_optimizers(optimizer)
model.max_seq_length = longest
model.train()
lengths, steps_after = [longest, following, following], {0, 2}
if n_ranks > 1:
    lengths, steps_after = [longest] + 7 * [following], {3, 7}
for at, length in enumerate(lengths):
    ids = torch.randint(config.vocab_size, (batch, length)).to("cuda")
    labels = ids.clone()
    with fabric.no_backward_sync(model, enabled=at not in steps_after):
        if kind != "full":
            logits = model(ids, lm_head_chunk_size=128)
            logits[-1] = logits[-1][..., :-1, :]
        else:
            logits = model(ids)[..., :-1, :]
        loss = chunked_cross_entropy(logits, labels[..., 1:])
        fabric.backward(loss)
    if at in steps_after:
        optimizer.step()
        optimizer.zero_grad()
    for block in model.transformer.h if kind.startswith("adapter") else []:
        block.attn.adapter_kv_cache = None  # it belongs to a graph that was freed
    print(torch.cuda.max_memory_allocated() / 1e9, torch.cuda.max_memory_reserved() / 1e9)
