"""Program that runs random integer operators on device and host: random_integers.py SEED COUNT."""

import json
import random
import sys

import torch

seed, count = map(int, sys.argv[1:])
chance = random.Random(seed)


def pick(pairs):
    return chance.choice(pairs)


def fresh():
    rows, columns = chance.randint(1, 6), chance.randint(1, 6)
    values = [[chance.randint(-4, 4) for _ in range(columns)] for _ in range(rows)]
    return torch.tensor(values, device="cuda"), torch.tensor(values)


STEPS = {
    "fresh": lambda x: x,
    "plus": lambda x: x + 1,
    "twice": lambda x: x + x,
    "compare": lambda x: (x > 0).long(),
    "select": lambda x: x[x != 0],
    "rows": lambda x: x[(x > 0).any(-1)] if x.dim() == 2 else x,
    "indices": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "sums": lambda x: x.cumsum(-1) if x.dim() else x,
    "sorted": lambda x: x.sort(-1).values if x.dim() else x,
    "flat": lambda x: x.flatten(),
    "view": lambda x: x.t() if x.dim() == 2 else x,
    "slice": lambda x: x[1:] if x.dim() and len(x) > 1 else x,
    "counts": lambda x: (x.flatten() % 7).bincount(),
    "repeat": lambda x: torch.repeat_interleave(x.flatten()[:4] % 3),
    "range": lambda x: torch.arange(x.abs().sum().item() % 9, device=x.device),
    "pair": lambda x: torch.stack([x, x.flip(0) if x.dim() else x]).flatten(0, 1),
    "clone": lambda x: x.clone(),
    "add in place": lambda x: x.add_(1),
    "zero some": lambda x: x.masked_fill_(x > 2, 0),
    "fill slice": lambda x: x if not x.dim() else (x[:1].fill_(3), x)[1],
    "limit": lambda x: (x % 9).reshape(-1)[:24].reshape(-1, 1),
}

pairs = [fresh()]
different = []
for _ in range(count):
    name = chance.choice(list(STEPS))
    step = STEPS[name]
    if name == "fresh":
        pairs.append(fresh())
    else:
        pairs.append(tuple(map(step, pick(pairs))))
    device, host = pairs[-1]
    if device.shape != host.shape or (chance.random() < 0.5 and device.tolist() != host.tolist()):
        different.append([name, device.tolist(), host.tolist()])
    if device.numel() > 200:
        pairs.pop()
    if len(pairs) > 6:  # so that freed memory is reused for other values
        pairs.pop(chance.randrange(len(pairs)))
for device, host in pairs:
    if device.tolist() != host.tolist():
        different.append(["at the end", device.tolist(), host.tolist()])
print(json.dumps({"operations": count, "different": different}))
