"""Greedy decoding with a key-value cache that grows by one token at each step.

The number of tokens is fixed; the loop never reads a token to decide when to stop.  The last line
of output is `torch.cuda.memory_stats()` as JSON.
"""

import argparse
import json
import random

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM


@torch.inference_mode()
def decode(model: LlamaForCausalLM, prompt: torch.Tensor, n_tokens: int) -> torch.Tensor:
    """Return the prompt with `n_tokens` more tokens."""
    cache = DynamicCache()
    text = fresh = prompt
    for _ in range(n_tokens):
        logits = model(input_ids=fresh, past_key_values=cache, use_cache=True).logits
        fresh = logits[:, -1:].argmax(dim=-1)
        text = torch.cat((text, fresh), dim=1)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=8, help="to decode after each prompt")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    lengths = random.Random(options.seed)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=8,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).eval()

    for _ in range(options.prompts):
        length = lengths.randrange(64, 1500)
        prompt = torch.randint(config.vocab_size, (options.batch, length), device="cuda")
        decode(model, prompt, options.tokens)
    print(json.dumps(torch.cuda.memory_stats()))


if __name__ == "__main__":
    main()
