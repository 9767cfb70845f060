"""Training with a second stream, which clones each gradient during the backward pass.

`record_stream` keeps a gradient's memory until the second stream has used it.  The host waits for
the device at every other step.  The last line of output is `torch.cuda.memory_stats()`
as JSON.
"""

import argparse
import json
import random

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--longest", type=int, default=768, help="tokens of a sequence")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    lengths = random.Random(options.seed)
    config = GPT2Config(n_layer=8, use_cache=False)
    with torch.device("cuda"):
        model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    side = torch.cuda.Stream()
    clones: list[torch.Tensor] = []

    def clone(weight: torch.Tensor) -> None:
        """Copy the gradient of `weight`, which is complete, on the second stream."""
        grad = weight.grad
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            clones.append(grad.clone())
        grad.record_stream(side)

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(clone)

    model.train()
    for step in range(options.steps):
        length = lengths.randrange(64, options.longest + 1)
        tokens = torch.randint(config.vocab_size, (options.batch, length), device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.cuda.current_stream().wait_stream(side)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        clones.clear()
        if step % 2:
            torch.cuda.synchronize()
    print(json.dumps(torch.cuda.memory_stats()))


if __name__ == "__main__":
    main()
