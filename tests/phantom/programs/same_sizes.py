"""Program that prints the requests of operators whose sizes do not depend on values."""

import json

import torch

x = torch.arange(24, device="cuda").reshape(4, 6)
weights = torch.ones(6, 8, device="cuda", requires_grad=True)
with torch.autocast("cuda", dtype=torch.bfloat16):
    y = x.float() @ weights
loss = torch.where(y > 1, y * 0.5, 0.0).masked_fill(y == 3, 2.0).sum()
loss.backward()
mask = torch.ones(4, 6, dtype=torch.bool, device="cuda").tril()
positions = (mask.long().cumsum(-1) - 1).masked_fill(~mask, 1)
both = torch.cat([x, positions]).sort(-1)
z = 10000.0 ** (torch.arange(0, 8, 2, device="cuda") / 8)
w = torch.where(mask, x, 7) + 2 * x - x // 3 + x % 5
w[0] = 3
w += positions
hot = torch.zeros(4, 32, dtype=torch.long, device="cuda").scatter_(1, x, 1)
total = (mask & (x > 2)).sum().item() * 0 + x.max().cpu().numel()
kept = torch.isin(x, 3), torch.isin(x, x[0]), x.topk(2), x.float().topk(2), hot.sum(0)
entries = torch.cuda.memory._snapshot()["device_traces"][0]
print(json.dumps([[entry["action"], entry["size"], entry["addr"]] for entry in entries]))
