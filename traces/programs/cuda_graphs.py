"""CUDA graphs: inference captured for several batch sizes in one pool, training in another.

The graphs for inference are kept, or with --drop deleted before the training.  The last line of
output is `torch.cuda.memory_stats()` as JSON.
"""

import argparse
import json

import torch
from torch import nn


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 8, batch_first=True)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.feed_forward(x)


Captured = tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]
"""Graph, input and output."""


@torch.no_grad()
def serve(
    model: nn.Module, batches: list[int], length: int, width: int, rounds: int
) -> list[Captured]:
    """Capture one graph for each batch size, largest first, and replay them all."""
    pool = torch.cuda.graph_pool_handle()
    graphs: list[Captured] = []
    for batch in sorted(batches, reverse=True):
        x = torch.randn(batch, length, width, device="cuda")
        model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            y = model(x)
        graphs.append((graph, x, y))
    for _ in range(rounds):
        for graph, x, _ in graphs:
            x.copy_(torch.randn_like(x))
            graph.replay()
    return graphs


def train(model: nn.Sequential, batch: int, length: int, width: int, rounds: int) -> None:
    """Train with graphs for forward and backward of each block; the optimizer is not captured."""
    sample = torch.randn(batch, length, width, device="cuda", requires_grad=True)
    samples = tuple((sample.detach().clone().requires_grad_(),) for _ in model)
    blocks = torch.cuda.make_graphed_callables(tuple(model), samples)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(rounds):
        x = torch.randn(batch, length, width, device="cuda", requires_grad=True)
        for block in blocks:
            x = block(x)
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--drop", action="store_true", help="drop the graphs for inference")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    # Autograd's own thread would free tensors of one pass while the next one allocates.
    torch.autograd.set_multithreading_enabled(False)
    with torch.device("cuda"):
        model = nn.Sequential(*(Block(768) for _ in range(options.layers)))
    graphs = serve(model.eval(), [1, 2, 4, 8, 16], 512, 768, options.rounds)
    if options.drop:
        graphs.clear()
    train(model.train(), 8, 384, 768, options.rounds)
    print(json.dumps(torch.cuda.memory_stats()))


if __name__ == "__main__":
    main()
