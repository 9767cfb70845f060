"""Program that prints sizes under compilers, transforms, inference, threads and checkpoints."""

import threading

import torch
from torch.utils.checkpoint import checkpoint


def block(x, mask):
    return torch.where(mask, x * 2, x + 1).cumsum(-1)


x = torch.randn(4, 6, device="cuda", requires_grad=True)
mask = torch.ones(4, 6, dtype=torch.bool, device="cuda").tril()
if hasattr(torch, "compile"):
    print(torch.compile(block, backend="aot_eager")(x, mask).shape)
print(
    torch.func.vmap(block)(x, mask).shape, torch.func.grad(lambda y: block(y, mask).sum())(x).shape
)
out = checkpoint(block, x, mask, use_reentrant=False)
out.sum().backward()
print(x.grad.shape)
with torch.inference_mode():
    y = torch.arange(6, device="cuda")
    y += 1
    print(block(x, mask).shape, y.shape)
with torch.device("cuda"):
    print(torch.where(torch.arange(3) > 1, torch.tensor(2), 0).device)
found = []
thread = threading.Thread(target=lambda: found.append(torch.arange(4, device="cuda").sum().shape))
thread.start()
thread.join()
print(found)
graph, static = torch.cuda.CUDAGraph(), torch.zeros(4, dtype=torch.long, device="cuda")
with torch.cuda.graph(graph):
    result = static + 1
graph.replay()
print(result.shape)
