"""Memory that a linear layer of one weight leaves allocated after it is deleted.

python one_linear.py
"""

import torch


def once():
    layer = torch.nn.Linear(1, 1, device="cuda")
    layer(torch.randn(1, 1, device="cuda"))


once()
torch.cuda.synchronize()
torch.cuda.reset_peak_memory_stats()
print(torch.cuda.memory_allocated())
