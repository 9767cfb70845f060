"""GPT-2 (124M parameters) trained with AdamW on batches whose length changes at every step.

The last line printed is `torch.cuda.memory_stats()` as JSON.
"""

import argparse
import json
import random

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--longest", type=int, default=1024, help="tokens of a sequence")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    lengths = random.Random(options.seed)
    config = GPT2Config(use_cache=False)
    with torch.device("cuda"):
        model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    model.train()
    for _ in range(options.steps):
        length = lengths.randrange(64, options.longest + 1)
        tokens = torch.randint(config.vocab_size, (options.batch, length), device="cuda")
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    print(json.dumps(torch.cuda.memory_stats()))


if __name__ == "__main__":
    main()
