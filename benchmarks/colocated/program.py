"""Programs that run one part at a time, when standard input says so.

    python program.py KIND [KIND ...] [--record FILE]

Each line of input is the number of a program, which then runs its next part, or "c" for
empty_cache.  Each line of output is the state of the process as JSON.  Several kinds are programs
of one process, which share its allocator.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def train() -> Iterator[None]:
    """Train GPT-2 on sequences of changing length; one part is a step."""
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415

    lengths = random.Random(1)
    config = GPT2Config(n_layer=6, use_cache=False)
    with torch.device("cuda"):
        model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    while True:
        tokens = torch.randint(config.vocab_size, (4, lengths.randrange(64, 1025)), device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


@torch.inference_mode()
def serve() -> Iterator[None]:
    """Answer a batch of prompts with a Llama model; one part is a batch."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    lengths = random.Random(2)
    config = LlamaConfig(
        vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8,
        num_attention_heads=16, num_key_value_heads=8,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    while True:
        cache = DynamicCache()
        fresh = torch.randint(config.vocab_size, (8, lengths.randrange(64, 1500)), device="cuda")
        for _ in range(8):
            logits = model(input_ids=fresh, past_key_values=cache, use_cache=True).logits
            fresh = logits[:, -1:].argmax(dim=-1)
        del cache, logits, fresh
        yield


def convolve() -> Iterator[None]:
    """Train a small image model on images of changing size; one part is a step."""
    sizes = random.Random(3)
    layers: list[nn.Module] = []
    for n_in, n_out in ((3, 64), (64, 128), (128, 256), (256, 256)):
        layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out), nn.ReLU()]
    model = nn.Sequential(*layers).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    while True:
        side = 8 * sizes.randrange(8, 29)
        images = torch.randn(16, 3, side, side, device="cuda")
        functional.mse_loss(model(images), torch.zeros((), device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


PROGRAMS = {"train": train, "serve": serve, "convolve": convolve}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="+", choices=PROGRAMS)
    parser.add_argument("--record", metavar="FILE")
    options = parser.parse_args()
    if options.record:
        torch.cuda.memory._record_memory_history(stacks="python", context=None)
    programs = [PROGRAMS[kind]() for kind in options.kinds]
    for line in sys.stdin:
        state: dict[str, Any] = {"is_oom": False}
        try:
            if line.strip() == "c":
                torch.cuda.empty_cache()
            else:
                next(programs[int(line)])
        except torch.OutOfMemoryError as error:
            state = {"is_oom": True, "text": str(error)}
        state["reserved"] = torch.cuda.memory_reserved()
        state["peak"] = torch.cuda.max_memory_reserved()
        if options.record:
            state["entries"] = len(torch.cuda.memory._snapshot()["device_traces"][0])
        print(json.dumps(state), flush=True)
    if options.record:
        torch.cuda.memory._dump_snapshot(options.record)


if __name__ == "__main__":
    main()
