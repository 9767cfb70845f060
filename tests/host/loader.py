"""Program whose pinned memory `data/loader.pickle.gz` records: batches outlive their copies.

python loader.py FILE    write the snapshot; needs PyTorch 2.14 or later and a (phantom) GPU
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def load(torch: Any, size: int) -> Any:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def train(torch: Any) -> None:
    """Copy 40 batches to the device, and wait for the copies after every tenth."""
    target = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.Stream()
    for step in range(40):
        batch = load(torch, 1_500_000 + 20_000 * (step % 7))
        with torch.cuda.stream(stream):
            target[: len(batch)].copy_(batch, non_blocking=True)
        del batch
        if step % 10 == 9:
            stream.synchronize()


def main(path: str) -> None:
    torch: Any = import_module("torch")
    torch.cuda.memory._record_memory_history("all", stacks="python", record_pinned_host_memory=True)
    kept = [load(torch, 700_000) for _ in range(3)]
    train(torch)
    del kept[1]
    torch._C._host_emptyCache()
    kept.append(load(torch, 100))
    torch.cuda.memory._dump_snapshot(path)


if __name__ == "__main__":
    main(sys.argv[1])
