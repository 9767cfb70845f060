"""Fine-tuning with LoRA: the base model is frozen in bfloat16, small adapters are trained.

The last line printed is `torch.cuda.memory_stats()` as JSON.
"""

import argparse
import json
import random

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--longest", type=int, default=2048, help="tokens of a sequence")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    lengths = random.Random(options.seed)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=8,
        num_attention_heads=32,
        num_key_value_heads=4,
        use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        base = LlamaForCausalLM(config)
        lora = LoraConfig(
            r=options.rank,
            lora_alpha=2 * options.rank,
            lora_dropout=0.05,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        )
        model = get_peft_model(base, lora)
    adapters = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=2e-4)

    model.train()
    for _ in range(options.steps):
        length = lengths.randrange(128, options.longest + 1)
        tokens = torch.randint(config.vocab_size, (options.batch, length), device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    print(json.dumps(torch.cuda.memory_stats()))


if __name__ == "__main__":
    main()
