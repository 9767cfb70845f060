"""Training of a Llama of 0.1 billion parameters in bfloat16; all of its sizes are options.

Recordings at a few sizes predict other sizes (docs/commands/scale.md).  The last line of output is
`torch.cuda.memory_stats()` as JSON.
"""

import argparse
import json

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=2048, help="tokens of a sequence")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--checkpointing", action="store_true")
    options = parser.parse_args()

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=options.layers,
        num_attention_heads=12,
        num_key_value_heads=4,
        use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    if options.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    model.train()
    for _ in range(options.steps):
        shape = (options.batch, options.sequence)
        tokens = torch.randint(config.vocab_size, shape, device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    print(json.dumps(torch.cuda.memory_stats()))


if __name__ == "__main__":
    main()
