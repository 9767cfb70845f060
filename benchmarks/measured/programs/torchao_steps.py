"""Steps of training a Llama of 1B parameters in bf16, or with 8-bit weights by torchao.

    python torchao_steps.py [int8] [compile]

A step has four sequences of 2,048 tokens, each block is checkpointed, the optimizer is torchao's
AdamW, and segments are expandable. The whole data set is on the card: 586 million tokens of
TinyStories, two bytes each. This number brings the first row of the comparison to the 11.06847 GB
of an earlier version of it.
"""

import os
import sys
from functools import partial

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torchao._models.llama.model import ModelArgs, Transformer
from torchao.prototype.low_bit_optim import _AdamW
from torchao.prototype.quantized_training import int8_weight_only_quantized_training
from torchao.quantization import quantize_

BATCH, LENGTH, DATA_BYTES = 4, 2048, 1_171_946_000


def loss_of(model, batch):
    logits = model(batch)[:, :-1].float().flatten(0, 1)
    return F.cross_entropy(logits, batch[:, 1:].flatten())


shape = ModelArgs(block_size=LENGTH, n_layer=24, n_head=24, dim=1536, intermediate_size=6144)
model = Transformer(shape).bfloat16().cuda()
with torch.device("cuda"):
    model.setup_caches(BATCH, LENGTH, training=True)
for layer in model.layers:
    layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
if "int8" in sys.argv:
    quantize_(model, int8_weight_only_quantized_training(), set_inductor_config=False)
if "compile" in sys.argv:
    loss_of = torch.compile(loss_of)
optimizer = _AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
data = torch.zeros(DATA_BYTES, dtype=torch.uint8).view(torch.uint16).cuda()
model.train()
for _ in range(3):
    batch = data[: BATCH * LENGTH].view(BATCH, LENGTH).long()
    loss_of(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()
    print(torch.cuda.max_memory_allocated() / 1e9, torch.cuda.max_memory_reserved() / 1e9)
