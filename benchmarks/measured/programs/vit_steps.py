"""Steps of finetuning timm's ViT-H/14 for 45 classes under autocast to bf16, compiled.

    python vit_steps.py AdamW|AdamW8bitBnb|AdamW8bitAo|AdamWFp8Ao|AdamW4bitAo

A batch has eight images of 224 x 224; the weights are in fp32.
"""

import sys
from functools import partial

import bitsandbytes
import timm
import torch
import torch.nn.functional as F
from torchao.prototype import low_bit_optim as optim

BATCH, CLASSES, STEPS = 8, 45, 3
OPTIMIZERS = {
    "AdamW": partial(torch.optim.AdamW, fused=True),
    "AdamW8bitBnb": bitsandbytes.optim.AdamW8bit,
    "AdamW8bitAo": optim.AdamW8bit,
    "AdamWFp8Ao": optim.AdamWFp8,
    "AdamW4bitAo": optim.AdamW4bit,
}
with torch.device("meta"):
    model = timm.create_model("vit_huge_patch14_224", num_classes=CLASSES)
model.to_empty(device="cuda")
model.compile(fullgraph=True)
optimizer = OPTIMIZERS[sys.argv[1]](model.parameters(), lr=1e-4, weight_decay=0)
scaler = torch.amp.GradScaler("cuda", enabled=False)
model.train()
for _ in range(STEPS):
    images, labels = torch.rand(BATCH, 3, 224, 224), torch.randint(CLASSES, (BATCH,))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(images.cuda()), labels.cuda())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
print(torch.cuda.max_memory_allocated() / 1e9, torch.cuda.max_memory_allocated() / 2**30)
