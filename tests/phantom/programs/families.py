"""Program that prints the results of each operator on device and host as a line of JSON."""

import json

import torch

FAMILIES = {
    "arange": lambda x, m: torch.arange(2, 20, 3, device=x.device),
    "add": lambda x, m: x + 3,
    "add mask": lambda x, m: x + m,
    "sub": lambda x, m: 3 - x,
    "mul": lambda x, m: x * x,
    "floor divide": lambda x, m: x // 3,
    "number over": lambda x, m: 9 // (x.abs() + 1),
    "remainder": lambda x, m: x % 3,
    "pow": lambda x, m: x**2,
    "number to the": lambda x, m: 2 ** (x % 5),
    "neg": lambda x, m: -x,
    "clamp": lambda x, m: x.clamp(2, 5),
    "clamp min": lambda x, m: x.clamp(min=4),
    "minimum": lambda x, m: torch.minimum(x, x.flip(0)),
    "eq": lambda x, m: x == 4,
    "ge": lambda x, m: x >= x.flip(0),
    "isin": lambda x, m: torch.isin(x, torch.tensor([1, 4], device=x.device)),
    "and": lambda x, m: m & (x > 1),
    "or": lambda x, m: m | (x > 1),
    "xor": lambda x, m: x ^ 5,
    "not": lambda x, m: ~m,
    "shift": lambda x, m: x << 2,
    "logical": lambda x, m: torch.logical_and(m, x),
    "where": lambda x, m: torch.where(m, x, 0),
    "where numbers": lambda x, m: torch.where(m, 1, 0),
    "masked fill": lambda x, m: x.masked_fill(m, -1),
    "int": lambda x, m: m.int(),
    "bool": lambda x, m: x.bool(),
    "long of int": lambda x, m: x.int().long(),
    "sum": lambda x, m: x.sum(),
    "sum of mask": lambda x, m: m.sum(-1),
    "prod": lambda x, m: (x % 3 + 1).prod(1),
    "any": lambda x, m: m.any(),
    "all dim": lambda x, m: m.all(-1),
    "max": lambda x, m: x.max(),
    "max dim": lambda x, m: x.max(1).values,
    "min dim": lambda x, m: x.min(0)[0],
    "amax": lambda x, m: x.amax(-1),
    "aminmax": lambda x, m: torch.stack(torch.aminmax(x)),
    "argmax": lambda x, m: x.argmax(),
    "cumsum": lambda x, m: x.cumsum(-1),
    "cumprod": lambda x, m: (x % 3).cumprod(-1),
    "cummax": lambda x, m: x.cummax(-1).values,
    "count": lambda x, m: torch.count_nonzero(x),
    "sort": lambda x, m: x.sort(descending=True).values,
    "argsort": lambda x, m: torch.argsort(x, dim=-1, stable=True),
    "topk": lambda x, m: x.topk(2).values,
    "bincount": lambda x, m: x.flatten().abs().bincount(),
    "histc": lambda x, m: torch.histc(x.flatten().int(), 4, 0, 8) if x.is_cuda else histogram(x),
    "one hot": lambda x, m: torch.nn.functional.one_hot(x.abs()),
    "cat": lambda x, m: torch.cat([x, x[:1]]),
    "stack": lambda x, m: torch.stack([x, x]),
    "flip": lambda x, m: x.flip(0),
    "roll": lambda x, m: x.roll(1, 0),
    "repeat": lambda x, m: x.repeat(2, 1),
    "expand": lambda x, m: x[:1].expand(5, -1).contiguous(),
    "transpose": lambda x, m: x.t().contiguous(),
    "tril": lambda x, m: x.tril(),
    "triu of ones": lambda x, m: torch.ones(3, 3, dtype=torch.bool, device=x.device).triu(1),
    "eye": lambda x, m: torch.eye(3, dtype=torch.long, device=x.device),
    "index": lambda x, m: x[x[:, 0].abs() % 3],
    "index mask": lambda x, m: x[m],
    "index row mask": lambda x, m: x[m.any(-1)],
    "nonzero": lambda x, m: m.nonzero(),
    "where alone": lambda x, m: torch.where(m)[1],
    "masked select": lambda x, m: x.masked_select(m),
    "index select": lambda x, m: x.index_select(1, torch.tensor([2, 0], device=x.device)),
    "gather": lambda x, m: x.gather(1, x.abs() % 4),
    "scatter": lambda x, m: torch.zeros_like(x).scatter(1, x.abs() % 4, 7),
    "scatter add": lambda x, m: torch.zeros_like(x).scatter_add(1, x.abs() % 4, x),
    "take": lambda x, m: x.take(torch.tensor([3, 1], device=x.device)),
    "unique": lambda x, m: x.unique(),
    "unique counts": lambda x, m: x.unique(return_counts=True)[1],
    "unique rows": lambda x, m: torch.unique((x % 2), dim=0),
    "consecutive": lambda x, m: torch.unique_consecutive(x.flatten() // 2),
    "repeat interleave": lambda x, m: torch.repeat_interleave(x[0], x[0].abs()),
    "searchsorted": lambda x, m: torch.searchsorted(x[0].sort().values, x),
    "pad": lambda x, m: torch.nn.functional.pad(x, (1, 2), value=9),
    "diff": lambda x, m: x.diff(dim=-1),
    "unfold": lambda x, m: x.unfold(1, 2, 1).sum(-1),
    "set slice": lambda x, m: written(x, lambda y: y[:, 1:3].fill_(8)),
    "set item": lambda x, m: written(x, lambda y: y.__setitem__((slice(None), 0), 5)),
    "set mask": lambda x, m: written(x, lambda y: y.__setitem__(m, 6)),
    "set index": lambda x, m: written(x, lambda y: y.index_put_((y[:, 0].abs() % 3,), x[0])),
    "add in place": lambda x, m: written(x, lambda y: y.add_(2)),
    "add to view": lambda x, m: written(x, lambda y: y[1].add_(2)),
    "through a view": lambda x, m: written(x, lambda y: y.view(-1)[3:].zero_()),
    "or in place": lambda x, m: written(m, lambda y: y.logical_or_(m.flip(0))),
    "copy": lambda x, m: written(x, lambda y: y.copy_(x.flip(0))),
    "copy row": lambda x, m: written(x, lambda y: y[0].copy_(x[1])),
    "fill from": lambda x, m: written(x, lambda y: y[0].fill_(x[1, 2])),
    "zero": lambda x, m: written(x, lambda y: y.zero_()),
    "fill, then a slice": lambda x, m: written(x, lambda y: y.fill_(-3)[1:].add_(2)),
    "fill, then other bytes": lambda x, m: written(x, lambda y: y.fill_(-3)).view(torch.int32),
    "fill with less": lambda x, m: x.new_empty(3).fill_(2.9),
    "fill, then copy": lambda x, m: written(x, lambda y: y.fill_(4)[:2].copy_(x[:2])),
    "fill twice": lambda x, m: written(x, lambda y: y.fill_(4).zero_()[0, 0].fill_(1)),
    "fill a mask": lambda x, m: written(m, lambda y: y.fill_(2)),
    "new zeros": lambda x, m: x.new_zeros(3),
    "full": lambda x, m: torch.full((2, 2), 7, device=x.device),
    "full like": lambda x, m: torch.full_like(x, 4),
    "item": lambda x, m: x[1, 2].item(),
    "len": lambda x, m: len(x[m]),
    "is true": lambda x, m: bool((x > -100).all()),
    "equal": lambda x, m: torch.equal(x, x.clone()),
    "numpy": lambda x, m: int(x.cpu().numpy().sum()),
    "to float on host": lambda x, m: x.cpu().float().mean(),
    "positions": lambda x, m: (m.long().cumsum(-1) - 1).masked_fill(m == 0, 1),
    "packed": lambda x, m: (torch.diff(x, dim=-1) != 1).cumsum(-1)[:, -1],
}


def written(x, write):
    y = x.clone()
    write(y)
    return y


def histogram(x):
    return torch.histc(x.flatten().double(), 4, 0, 8).int()


def plain(value):
    return [list(value.shape), value.tolist()] if isinstance(value, torch.Tensor) else value


def inputs(device):
    values = [[3, -1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8]]
    mask = [[True, False, True, True], [False] * 4, [True, True, False, False]]
    return torch.tensor(values, device=device), torch.tensor(mask, device=device)


for name, compute in FAMILIES.items():
    device, host = (plain(compute(*inputs(where))) for where in ("cuda", "cpu"))
    print(json.dumps({"name": name, "device": device, "host": host}))
