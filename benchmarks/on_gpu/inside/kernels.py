"""Write the requests of attention and convolutions, for each shape of a JSON file.

    kernels.py SHAPES OUT

SHAPES has the rows of `traces/h200/kernels.json`, whose requests are not read.  A request is
positive, in bytes; a release is negative.  Results are kept alive until they have been counted.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ATTENTION = ("dtype", "b", "h", "s", "t", "d", "causal", "mask", "train")
CONV = ("n", "ci", "hw", "co", "k", "stride", "groups", "dtype", "channels_last")
Shape = dict[str, Any]


def requests(run: Callable[[], object]) -> tuple[object, list[int]]:
    """Return the result of `run`, and the bytes of its requests and releases in order."""
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    before = len(history())
    kept = run()
    torch.cuda.synchronize()
    entries = history()[before:]
    signs = {"alloc": 1, "free_completed": -1}
    found = [signs[each["action"]] * each["size"] for each in entries if each["action"] in signs]
    return kept, found


def history() -> list[dict[str, Any]]:
    """Return the entries of the first device."""
    found: list[dict[str, Any]] = torch.cuda.memory._snapshot()["device_traces"][0]
    return found


def both(row: Shape, forward: Callable[[], torch.Tensor], *, train: bool) -> Shape:
    """Return `row` with the requests of a forward pass and, if `train`, of a backward pass."""
    row |= {"forward": None, "backward": None, "error": None}
    try:
        with torch.set_grad_enabled(train):
            out, row["forward"] = requests(forward)
        if train:
            grad = torch.ones_like(out)
            _, row["backward"] = requests(lambda: out.backward(grad))
    except (RuntimeError, torch.OutOfMemoryError) as error:
        row["error"] = str(error).splitlines()[0][:200]
    return row


def attention(shape: Shape) -> Shape:
    dtype, train = getattr(torch, shape["dtype"]), shape["train"]
    b, h, d = shape["b"], shape["h"], shape["d"]

    def made(length: int) -> torch.Tensor:
        return torch.zeros(b, h, length, d, device="cuda", dtype=dtype, requires_grad=train)

    q, k, v = made(shape["s"]), made(shape["t"]), made(shape["t"])
    mask = None
    if shape["mask"]:
        # A float mask, because PyTorch converts a boolean one with additional requests.
        mask = torch.zeros(b, 1, shape["s"], shape["t"], device="cuda", dtype=dtype)
    node: list[str | None] = [None]

    def forward() -> torch.Tensor:
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=shape["causal"]
        )
        node[0] = type(out.grad_fn).__name__ if out.grad_fn is not None else None
        return out

    row = both({key: shape[key] for key in ATTENTION}, forward, train=train)
    return row | {"node": node[0]}


def convolution(shape: Shape) -> Shape:
    dtype, k = getattr(torch, shape["dtype"]), shape["k"]
    layout = torch.channels_last if shape["channels_last"] else torch.contiguous_format
    sizes = (shape["n"], shape["ci"], shape["hw"], shape["hw"])
    weights = (shape["co"], shape["ci"] // shape["groups"], k, k)

    def made(size: tuple[int, ...]) -> torch.Tensor:
        tensor = torch.zeros(size, device="cuda", dtype=dtype).to(memory_format=layout)
        return tensor.requires_grad_()

    x, w = made(sizes), made(weights)
    padding = 0 if k == shape["stride"] else k // 2

    def forward() -> torch.Tensor:
        return torch.nn.functional.conv2d(
            x, w, stride=shape["stride"], padding=padding, groups=shape["groups"]
        )

    return both({key: shape[key] for key in CONV}, forward, train=True)


def main() -> None:
    shapes = json.loads(Path(sys.argv[1]).read_text())
    for dtype in (torch.float32, torch.bfloat16):  # cuBLAS's workspace is no request of a kernel
        square = torch.zeros(64, 64, device="cuda", dtype=dtype)
        square @ square
    found = {
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "gpu": torch.cuda.get_device_name(),
        "attention": [attention(shape) for shape in shapes["attention"]],
        "conv": [convolution(shape) for shape in shapes["conv"]],
    }
    Path(sys.argv[2]).write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
