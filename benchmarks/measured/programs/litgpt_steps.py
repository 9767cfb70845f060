"""The first steps of finetuning a model of LitGPT: adapters, or all of its parameters.

    python litgpt_steps.py MODEL full|lora|nf4|nf4-dq LONGEST NEXT BATCH [RANK LAYER ...]

bf16 by Lightning Fabric, AdamW, the head and the loss in chunks of 128 tokens.  The first batch has
LONGEST tokens, as LitGPT sees to; the next two, after a step, NEXT.  Adapters of rank 8 on queries
and values, or of RANK on the layers named: query, key, value, projection, mlp, head; over weights
of 4 bit with nf4 and nf4-dq, by a paged AdamW.
"""

import importlib.util
import sys
import types

import bitsandbytes
import lightning
import torch
from lightning.fabric.plugins import BitsandbytesPrecision

if lightning.__version__ < "2.5":  # older than what LitGPT imports, though not for its models
    found = importlib.util.find_spec("litgpt")
    sys.modules["litgpt"] = package = types.ModuleType("litgpt")
    package.__path__ = list(found.submodule_search_locations)

from litgpt.lora import GPT as AdaptedGPT
from litgpt.lora import Config as AdaptedConfig
from litgpt.lora import mark_only_lora_as_trainable
from litgpt.model import GPT, Config
from litgpt.utils import chunked_cross_entropy

name, method, *numbers = sys.argv[1:6]
longest, following, batch = map(int, numbers)
rest = sys.argv[6:]

if method in ("nf4", "nf4-dq"):
    quantized = BitsandbytesPrecision(method, torch.bfloat16)
    fabric = lightning.Fabric(devices=1, plugins=quantized)
else:
    fabric = lightning.Fabric(devices=1, precision="bf16-true")
with fabric.init_module():
    if method != "full":
        rank, *layers = rest or ["8", "query", "value"]
        adapters = {f"lora_{layer}": True for layer in layers}
        config = AdaptedConfig.from_name(
            name, lora_r=int(rank), lora_alpha=16, lora_dropout=0.05, **adapters
        )
        model = AdaptedGPT(config)
        mark_only_lora_as_trainable(model)
    else:
        config = Config.from_name(name)
        model = GPT(config)
model = fabric.setup_module(model)
parameters = [each for each in model.parameters() if each.requires_grad]
if method in ("nf4", "nf4-dq"):
    optimizer = bitsandbytes.optim.PagedAdamW(parameters, lr=3e-4, weight_decay=0.01)
else:
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, weight_decay=0.01)
optimizer = fabric.setup_optimizers(optimizer)
model.max_seq_length = longest
model.train()
for at, length in enumerate((longest, following, following)):
    ids = torch.randint(config.vocab_size, (batch, length)).to("cuda")
    labels = ids.clone()
    if method != "full":
        logits = model(ids, lm_head_chunk_size=128)
        logits[-1] = logits[-1][..., :-1, :]
    else:
        logits = model(ids)[..., :-1, :]
    loss = chunked_cross_entropy(logits, labels[..., 1:])
    fabric.backward(loss)
    if at != 1:  # gradients of two batches are added up
        optimizer.step()
        optimizer.zero_grad()
    print(torch.cuda.max_memory_allocated() / 1e9, torch.cuda.max_memory_reserved() / 1e9)
