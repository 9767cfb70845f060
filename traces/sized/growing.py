"""Programs that grow by repeated parts: layers, steps or decoded tokens, each an option.

    python traces/sized/growing.py llama --layers 3

They run unchanged on a GPU, and without one under `allocsim record`.  `benchmarks/layers.py`
compares predictions of `allocsim scale` with them.  The last line of output is
`torch.cuda.memory_stats()` as JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers as hf
from torch import nn

WIDTH, HEADS, VOCABULARY = 512, 8, 8192
BATCH, LENGTH = 2, 384


@dataclass(frozen=True)
class Options:
    """Numbers of the repeated parts, and sizes."""

    layers: int
    steps: int
    decode: int
    batch: int
    length: int


def decoder(options: Options, name: str = "Llama", **more: object) -> nn.Module:
    """Return a causal language model of the Llama family."""
    config = getattr(hf, f"{name}Config")(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=1408,
        num_hidden_layers=options.layers,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        **more,
    )
    with torch.device("cuda"):
        return getattr(hf, f"{name}ForCausalLM")(config)


def gpt2(options: Options) -> nn.Module:
    """Return a GPT-2 with dropout."""
    config = hf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=options.layers, n_head=HEADS
    )
    return hf.GPT2LMHeadModel(config).to("cuda")


def tokens(options: Options) -> torch.Tensor:
    return torch.randint(VOCABULARY, (options.batch, options.length), device="cuda")


def language_loss(model: nn.Module, options: Options) -> torch.Tensor:
    ids = tokens(options)
    return model(input_ids=ids, labels=ids).loss


def square_loss(model: nn.Module, options: Options) -> torch.Tensor:
    """Return a loss for models that take vectors."""
    return model(torch.randn(options.batch, options.length, WIDTH, device="cuda")).square().mean()


def train(
    model: nn.Module,
    options: Options,
    loss_of: Callable[[nn.Module, Options], torch.Tensor] = language_loss,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    *,
    autocast: bool = False,
    clips: bool = False,
    zeroes: bool = False,
    **more: object,
) -> None:
    """Train for some steps."""
    model.train()
    trained = [each for each in model.parameters() if each.requires_grad]
    updates = optimizer(trained, lr=1e-3, **more)
    for _ in range(options.steps):
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = loss_of(model, options)
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(trained, 1.0)
        updates.step()
        updates.zero_grad(set_to_none=not zeroes)


def llama(options: Options) -> None:
    train(decoder(options, use_cache=False), options)


def qwen2_fused(options: Options) -> None:
    train(decoder(options, "Qwen2", use_cache=False), options, fused=True)


def llama_checkpointing(options: Options) -> None:
    model = decoder(options, use_cache=False)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    train(model, options)


def llama_lora(options: Options) -> None:
    import peft  # noqa: PLC0415

    config = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    train(peft.get_peft_model(decoder(options, use_cache=False), config), options)


def llama_clipped(options: Options) -> None:
    train(decoder(options, use_cache=False), options, clips=True, zeroes=True)


def llama_autocast(options: Options) -> None:
    torch.set_default_dtype(torch.float32)
    train(decoder(options, use_cache=False), options, autocast=True)


def gpt2_adamw(options: Options) -> None:
    train(gpt2(options), options)


def gpt2_unfused(options: Options) -> None:
    train(gpt2(options), options, foreach=False)


def mixtral(options: Options) -> None:
    model = decoder(options, "Mixtral", use_cache=False, num_local_experts=4)
    train(model, options)


def bert_sgd(options: Options) -> None:
    config = hf.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=options.layers,
        num_attention_heads=HEADS,
        intermediate_size=2048,
    )
    model = hf.BertForMaskedLM(config).to("cuda")
    train(model, options, optimizer=torch.optim.SGD, momentum=0.9)


def vit(options: Options) -> None:
    config = hf.ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=options.layers,
        num_attention_heads=HEADS,
        intermediate_size=2048,
    )
    model = hf.ViTForImageClassification(config).to("cuda")

    def loss_of(model: nn.Module, options: Options) -> torch.Tensor:
        pixels = torch.randn(options.batch, 3, 224, 224, device="cuda")
        labels = torch.randint(2, (options.batch,), device="cuda")
        return model(pixel_values=pixels, labels=labels).loss

    train(model, options, loss_of)


def sequential_sgd(options: Options) -> None:
    """Train identical layers with SGD."""
    parts = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(options.layers)]
    model = nn.Sequential(*parts).to("cuda")
    train(model, options, square_loss, torch.optim.SGD)


def sequential_adamw(options: Options) -> None:
    """Train identical layers with AdamW, which keeps its tensors in lists."""
    parts = [nn.Linear(WIDTH, WIDTH, device="cuda") for _ in range(options.layers)]
    train(nn.Sequential(*parts), options, square_loss)


def encoder(options: Options) -> None:
    """Train PyTorch's own transformer encoder."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2048, batch_first=True, device="cuda")
    train(nn.TransformerEncoder(layer, options.layers), options, square_loss)


def decode(options: Options, *, is_static: bool = False) -> None:
    """Decode token by token, with a growing cache or one of full size."""
    model = decoder(options, "Qwen2").eval()
    longest = options.length + options.decode
    cache = hf.StaticCache(model.config, longest) if is_static else hf.DynamicCache()
    with torch.inference_mode():
        done = model(tokens(options), past_key_values=cache, use_cache=True)
        for _ in range(options.decode):
            new = done.logits[:, -1:].argmax(-1)
            done = model(new, past_key_values=cache, use_cache=True)


def decode_static(options: Options) -> None:
    decode(options, is_static=True)


def generate(options: Options) -> None:
    """Decode with transformers' `generate`."""
    model = decoder(options, "Qwen2").eval()
    model.generate(tokens(options), max_new_tokens=options.decode, do_sample=False, pad_token_id=0)


def t5(options: Options) -> None:
    """Train an encoder and a decoder that grow together."""
    config = hf.T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=2048,
        num_layers=options.layers,
        num_heads=HEADS,
        use_cache=False,
        decoder_start_token_id=0,
    )
    train(hf.T5ForConditionalGeneration(config).to("cuda"), options)


def gpt2_serving(options: Options) -> None:
    """Serve many prompts one after the other, without a cache."""
    model = gpt2(options).eval()
    with torch.no_grad():
        for _ in range(options.steps):
            model(tokens(options), use_cache=False)


PROGRAMS: dict[str, Callable[[Options], None]] = {
    each.__name__: each
    for each in (
        *(llama, qwen2_fused, llama_checkpointing, llama_lora, llama_clipped, llama_autocast),
        *(gpt2_adamw, gpt2_unfused, mixtral, bert_sgd, vit, sequential_sgd, sequential_adamw),
        *(encoder, t5, decode, decode_static, generate, gpt2_serving),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--decode", type=int, default=4, help="tokens that are decoded")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens of a sequence")
    given = vars(parser.parse_args())
    torch.set_default_dtype(torch.bfloat16)
    PROGRAMS[given.pop("program")](Options(**given))
    print(json.dumps(torch.cuda.memory_stats()))


if __name__ == "__main__":
    main()
