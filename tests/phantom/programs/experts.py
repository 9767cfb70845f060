"""Program that routes 16 tokens to two of four experts each and prints the tokens per expert."""

import torch

tokens, gate = torch.randn(16, 32, device="cuda"), torch.randn(32, 4, device="cuda")
_, chosen = (tokens @ gate).softmax(-1).topk(2, dim=-1)
hits = [len(tokens[(chosen == expert).any(-1)]) for expert in range(4)]
print([hit for hit in hits if hit])
