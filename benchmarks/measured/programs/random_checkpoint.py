"""Checkpoint of an untrained model, as a folder like those that the hub provides.

Rule: the file has the layout that `from_pretrained` reads, and takes no disk space: its tensors are
a hole in the file, which reads as zeros.
"""

import json
import struct
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


@contextmanager
def checkpoint(architecture, config, dtype):
    """Yield a folder with the configuration and the weights of `architecture`, in `dtype`."""
    with torch.device("meta"):
        model = architecture(config)
    model.to(dtype)
    shapes = {}
    seen = set()
    for name, each in model.named_parameters(remove_duplicate=False):
        if id(each) not in seen:  # tied weights are stored once
            seen.add(id(each))
            shapes[name] = tuple(each.shape)
    config.architectures = [architecture.__name__]
    setattr(
        config, "dtype" if hasattr(config, "dtype") else "torch_dtype", dtype
    )  # the name depends on the release
    with TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        _write(Path(folder) / "model.safetensors", shapes, dtype)
        yield folder


def _write(file, shapes, dtype):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        start = end
        end += torch.Size(shape).numel() * dtype.itemsize
        header[name] = {
            "dtype": _NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + end)
