"""A decoder of Qwen2-7B's size in bfloat16: load it, read a prompt, decode 64 tokens.

Weights are uninitialised but have the layout of a loaded checkpoint.  The number of tokens is
fixed, and no token is read.  The last line of output is `torch.cuda.memory_stats()` as
JSON.
"""

import argparse
import json

import torch
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

CONFIG = Qwen2Config(
    vocab_size=152064,
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    max_position_embeddings=32768,
    tie_word_embeddings=False,
    dtype=torch.bfloat16,
)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", type=int, default=3000, help="tokens")
    parser.add_argument("--tokens", type=int, default=64, help="to decode")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(CONFIG).eval()
    tokens = torch.randint(CONFIG.vocab_size, (1, options.prompt), device="cuda")
    cache = DynamicCache()
    for _ in range(options.tokens):
        # Only the last position's logits: those of a long prompt would fill the card.
        logits = model(
            input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1
        ).logits
        tokens = logits[:, -1:].argmax(dim=-1)
    print(json.dumps(torch.cuda.memory_stats()))


if __name__ == "__main__":
    main()
