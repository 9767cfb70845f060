"""Attention by successive backends, forward and backward, up to a given backend.

    python attention_backends.py mask|causal auto|math|efficient|flash

All backends run in one process, first with a boolean mask, then with causal attention. The loss is
the mean of squares in fp32.
"""

import sys
from contextlib import nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

HEADS, LENGTH, WIDTH = 32, 2048, 128
BACKENDS = {
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
}
RUNS = [("mask", each) for each in ("auto", "math", "efficient")]
RUNS += [("causal", each) for each in ("auto", "math", "efficient", "flash")]
asked = (sys.argv[1], sys.argv[2])
mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device="cuda").tril()[None, None]


def inputs():
    shape = (1, HEADS, LENGTH, WIDTH)
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)


for kind, backend in RUNS[: RUNS.index(asked) + 1]:
    q, k, v = inputs(), inputs(), inputs()
    torch.cuda.reset_peak_memory_stats()
    with nullcontext() if backend == "auto" else sdpa_kernel(BACKENDS[backend]):
        given = {"attn_mask": mask} if kind == "mask" else {"is_causal": True}
        out = scaled_dot_product_attention(q, k, v, **given)
        out.float().pow(2).mean().backward()
    del q, k, v, out
print(torch.cuda.max_memory_allocated() / 2**30)
