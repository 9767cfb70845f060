"""A Llama of 0.2 billion parameters in bfloat16, trained with activation checkpointing.

Activations of each layer are dropped and recomputed in the backward pass.  The last line of output
is `torch.cuda.memory_stats()` as JSON.
"""

import argparse
import json
import random

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--longest", type=int, default=2048, help="tokens of a sequence")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    lengths = random.Random(options.seed)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=10,
        num_attention_heads=16,
        num_key_value_heads=4,
        use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    model.train()
    for _ in range(options.steps):
        length = lengths.randrange(256, options.longest + 1)
        tokens = torch.randint(config.vocab_size, (options.batch, length), device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    print(json.dumps(torch.cuda.memory_stats()))


if __name__ == "__main__":
    main()
