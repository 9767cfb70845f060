"""Measure the driver's memory of CUDA graphs, of kernels at first use, and of their stacks.

    graphs.py OUT

The driver's memory is the decrease of free memory that PyTorch's reserved memory does not explain.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

GRAPHS = 16
"""Graphs captured one after another for each kind and number of nodes."""
NODES = (1, 8, 64, 512, 2048)
Row = dict[str, Any]


def outside() -> int:
    """Return the bytes of the card in use that PyTorch has not reserved."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def kinds() -> dict[str, Callable[[], object]]:
    """Return operations by name; one call is one node of a graph, if not said otherwise."""
    x = torch.zeros(1 << 16, device="cuda")
    y = torch.zeros(1 << 16, device="cuda")
    total = torch.zeros((), device="cuda")
    small = torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16)
    large = torch.zeros(2048, 2048, device="cuda", dtype=torch.bfloat16)
    to_small, to_large = torch.empty_like(small), torch.empty_like(large)
    found: dict[str, Callable[[], object]] = {
        "add": lambda: x.add_(1),
        "copy": lambda: x.copy_(y),
        "matmul 64": lambda: torch.mm(small, small, out=to_small),
        "matmul 2048": lambda: torch.mm(large, large, out=to_large),
        "sum": lambda: torch.sum(x, 0, out=total),
    }
    try:
        import triton
        import triton.language as tl
    except ImportError:
        return found

    @triton.jit
    def one(a, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(a + at, tl.load(a + at, mask=at < n) + 1, mask=at < n)

    return {**found, "triton": lambda: one[(64,)](x, 1 << 16, BLOCK=1024)}


def captured(call: Callable[[], object], nodes: int, pool: Any) -> tuple[torch.cuda.CUDAGraph, Row]:
    """Return a graph of `nodes` calls, and the driver's memory for capture and first replay."""
    before = outside()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        for _ in range(nodes):
            call()
    made = outside()
    graph.replay()
    return graph, {"capture": made - before, "replay": outside() - made}


def graph_rows() -> list[Row]:
    rows = []
    for kind, call in kinds().items():
        for _ in range(3):
            call()  # loads the kernel and the library's workspace
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            call()
        torch.cuda.synchronize()
        for nodes in NODES:
            pool, kept, costs = torch.cuda.graph_pool_handle(), [], []
            for _ in range(GRAPHS if nodes < 2048 else 4):
                graph, cost = captured(call, nodes, pool)
                kept.append(graph)
                costs.append(cost)
            used = outside()
            del kept, graph
            rows.append(
                {
                    "kind": kind,
                    "nodes": nodes,
                    "graphs": len(costs),
                    "capture": [cost["capture"] for cost in costs],
                    "replay": [cost["replay"] for cost in costs],
                    "returned_after_release": used - outside(),
                }
            )
    return rows


def layer_rows() -> list[Row]:
    """Return the driver's memory of graphs of a decoder's layers, as a server captures them."""
    rows = []
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)
    model = model.to("cuda", torch.bfloat16).eval()
    pool, kept = torch.cuda.graph_pool_handle(), []
    with torch.no_grad():
        for batch in (256, 128, 64, 32, 16, 8, 4, 2, 1):
            x = torch.zeros(batch, 1, 1024, device="cuda", dtype=torch.bfloat16)
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                model(x)
            before = outside()
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            with torch.cuda.graph(graph, pool=pool):
                model(x)
            recorded = outside()
            graph.instantiate()
            made = outside()
            graph.replay()
            rows.append(
                {
                    "batch": batch,
                    "capture": recorded - before,
                    "instantiate": made - recorded,
                    "replay": outside() - made,
                }
            )
            kept.append(graph)
    return rows


def kernel_rows() -> list[Row]:
    """Return the driver's memory that each operation takes at its first and second use."""
    x = torch.zeros(1 << 20, device="cuda")
    m = torch.zeros(512, 512, device="cuda", dtype=torch.bfloat16)
    f = torch.zeros(512, 512, device="cuda")
    q = torch.zeros(1, 8, 256, 64, device="cuda", dtype=torch.bfloat16)
    image = torch.zeros(4, 64, 56, 56, device="cuda", dtype=torch.bfloat16)
    weight = torch.zeros(64, 64, 3, 3, device="cuda", dtype=torch.bfloat16)
    ids = torch.zeros(1024, device="cuda", dtype=torch.long)
    steps: dict[str, Callable[[], object]] = {
        "add": lambda: x + 1,
        "mul": lambda: x * 2,
        "sum": x.sum,
        "softmax": lambda: m.softmax(-1),
        "layer_norm": lambda: nn.functional.layer_norm(m, (512,)),
        "matmul bf16": lambda: m @ m,
        "matmul fp32": lambda: f @ f,
        "linear": lambda: nn.functional.linear(m, m, m[0]),
        "attention": lambda: nn.functional.scaled_dot_product_attention(q, q, q),
        "conv2d": lambda: nn.functional.conv2d(image, weight),
        "sort": x.sort,
        "topk": lambda: x.topk(10),
        "embedding": lambda: nn.functional.embedding(ids, f),
        "index_put": lambda: f.index_put_((ids[:512],), f[0].clone()),
        "multinomial": lambda: torch.multinomial(f.abs()[0] + 1, 1),
        "cumsum": lambda: x.cumsum(0),
        "svd": lambda: torch.linalg.svd(f[:64, :64]),
        "fft": lambda: torch.fft.fft(x),
    }
    rows = []
    for name, call in steps.items():
        before = outside()
        call()
        first = outside()
        call()
        rows.append({"op": name, "first": first - before, "second": outside() - first})
    return rows


_SPILL = """
extern "C" __global__ void spill%(size)d(float* x, int n) {
    volatile char local[%(size)d];
    for (int i = 0; i < %(size)d; i += 8) local[(i + n) %% %(size)d] = (char)x[0];
    x[0] = local[n %% %(size)d];
}
"""


def stack_rows() -> list[Row]:
    """Return the driver's memory that the first launch of a kernel with a large stack takes."""
    x, rows = torch.zeros(1, device="cuda"), []
    for size in (512, 1024, 1536, 2048, 4216, 8192, 11912):
        try:
            kernel = torch.cuda._compile_kernel(_SPILL % {"size": size}, f"spill{size}")
        except (AttributeError, OSError, RuntimeError) as error:
            return [*rows, {"stack": size, "error": str(error)[:200]}]
        before = outside()
        kernel(grid=(1, 1, 1), block=(32, 1, 1), args=[x, 3])
        first = outside()
        rows.append({"stack": size, "first": first - before})
    return rows


def main() -> None:
    torch.zeros(1, device="cuda")
    found: Row = {"name": torch.cuda.get_device_name(), "context": outside()}
    with torch.no_grad():
        found["kernels"] = kernel_rows()
        found["graphs"] = graph_rows()
        found["layers"] = layer_rows()
        found["stacks"] = stack_rows()
    Path(sys.argv[1]).write_text(json.dumps(found, indent=0))


if __name__ == "__main__":
    main()
