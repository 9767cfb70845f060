"""Programs that count their own memory: parameters, buffers, gradients, optimizer state, caches.

    allocsim record --device-memory 24GiB -o gpt2.pickle -- python traces/counted/programs.py gpt2

Rule: counts come from PyTorch's own objects, one block per storage, at moments between two entries
of the history.  The last line of output has all counts as JSON.  The code is independent of the
categories of `allocsim top`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn


class Count:
    """Counter of the memory held at moments of a program.

    caches: function that returns the tensors a server keeps.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.model = model
        # FSDP replaces parameters by gathered copies while they are in use.
        self.parameters = list(model.parameters())
        self.optimizer = optimizer
        self.caches: Callable[[], Iterable[torch.Tensor]] = tuple
        self.moments: list[dict[str, Any]] = []

    def note(self, what: str) -> None:
        """Count now; entry: number of entries in the history so far."""
        snapshot = torch.cuda.memory._snapshot()
        sizes = {
            block["address"]: block["size"]
            for segment in snapshot["segments"]
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        }
        counts: dict[str, Any] = {"what": what, "entry": len(snapshot["device_traces"][0])}
        for name, tensors in self._held().items():
            places = {storage_of(tensor) for tensor in tensors if tensor.is_cuda}
            counts[name] = sum(sizes[place] for place in places)
        counts["allocated"] = torch.cuda.memory_stats()["allocated_bytes.all.current"]
        self.moments.append(counts)

    def on_gradients(self, every: int) -> None:
        """Also count during each backward pass, after every n-th gradient."""
        for index, weight in enumerate(self.parameters):
            if index % every == 0 and weight.requires_grad:
                weight.register_post_accumulate_grad_hook(lambda _: self.note("within backward"))

    def _held(self) -> dict[str, list[torch.Tensor]]:
        states = [] if self.optimizer is None else self.optimizer.state.values()
        return {
            "parameters": self.parameters,
            "buffers": list(self.model.buffers()),
            "gradients": [weight.grad for weight in self.parameters if weight.grad is not None],
            "optimizer state": [
                value for state in states for value in state.values() if torch.is_tensor(value)
            ],
            "caches": list(self.caches()),
        }


def storage_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage; for a sharded one, that of this rank's shard."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.untyped_storage().data_ptr()


def train(
    count: Count,
    batches: Iterator[Any],
    loss_of: Callable[[Any], torch.Tensor],
    steps: int = 3,
) -> None:
    """Run a training loop with a count at the end of each of its parts."""
    optimizer = count.optimizer
    assert optimizer is not None
    for _ in range(steps):
        loss = loss_of(next(batches))
        count.note("after forward")
        loss.backward()
        count.note("after backward")
        optimizer.step()
        count.note("after step")
        optimizer.zero_grad(set_to_none=True)
        count.note("after zero_grad")


def tokens_of(vocabulary: int, batch: int, longest: int) -> Iterator[torch.Tensor]:
    """Yield batches of sequences with varying length."""
    lengths = random.Random(0)
    while True:
        yield torch.randint(vocabulary, (batch, lengths.randrange(32, longest)), device="cuda")


def gpt2() -> Count:
    """Train GPT-2, moved to the device, with AdamW."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=3, n_embd=192, n_head=4, vocab_size=5003, use_cache=False)
    model = GPT2LMHeadModel(config).to("cuda")
    count = Count(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    count.note("model")
    count.on_gradients(7)
    train(count, tokens_of(5003, 4, 200), lambda x: model(input_ids=x, labels=x).loss)
    return count


def llama() -> Count:
    """Train a Llama in bfloat16 with activation checkpointing."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=5003,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        use_cache=False,
        dtype=torch.bfloat16,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    count = Count(model, torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False))
    count.note("model")
    count.on_gradients(5)
    train(count, tokens_of(5003, 4, 300), lambda x: model(input_ids=x, labels=x).loss)
    return count


def lora() -> Count:
    """Train adapters on a frozen Llama."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=5003,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        use_cache=False,
    )
    base = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    model = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    count = Count(model, torch.optim.AdamW(weights, lr=1e-4))
    count.note("model")
    train(count, tokens_of(5003, 4, 300), lambda x: model(input_ids=x, labels=x).loss)
    return count


def resnet() -> Count:
    """Train ResNet-18 with SGD and momentum."""
    import torchvision

    with torch.device("cuda"):
        model = torchvision.models.resnet18(weights=None, num_classes=100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    count = Count(model, optimizer)
    count.note("model")
    count.on_gradients(9)
    batches = ((torch.randn(4, 3, side, side).cuda(), side) for side in (96, 128, 64))

    def loss_of(batch: Any) -> torch.Tensor:
        images, side = batch
        labels = torch.arange(4).add(side).cuda() % 100
        return nn.functional.cross_entropy(model(images), labels)

    train(count, batches, loss_of)
    return count


def unet() -> Count:
    """Train a conditional diffusion U-Net under autocast, with an average of the weights."""
    from diffusers import UNet2DConditionModel

    with torch.device("cuda"):
        model = UNet2DConditionModel(
            sample_size=32,
            layers_per_block=1,
            block_out_channels=(32, 64),
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            cross_attention_dim=64,
            attention_head_dim=4,
            norm_num_groups=8,
        )
    count = Count(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    count.note("model")
    count.on_gradients(31)
    batches = (torch.randn(2, 4, side, 32, device="cuda") for side in (32, 24, 40))

    def loss_of(latents: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(latents)
        text = torch.randn(2, 77, 64, device="cuda")
        times = torch.randint(1000, (2,), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            predicted = model(latents + noise, times, encoder_hidden_states=text).sample
        return nn.functional.mse_loss(predicted.float(), noise)

    train(count, batches, loss_of)
    return count


def bert() -> Count:
    """Train BERT under autocast: gradient scaler, clipped gradients, two batches per step."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=5003,
        hidden_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=768,
    )
    model = BertForSequenceClassification(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    count = Count(model, optimizer)
    count.note("model")
    batches = tokens_of(5003, 8, 120)
    for _ in range(3):
        for _ in range(2):
            tokens = next(batches)
            labels = torch.zeros(8, dtype=torch.long, device="cuda")
            with torch.autocast("cuda", torch.float16):
                loss = model(input_ids=tokens, labels=labels).loss
            count.note("after forward")
            scaler.scale(loss / 2).backward()
            count.note("after backward")
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        count.note("after step")
        optimizer.zero_grad(set_to_none=True)
        count.note("after zero_grad")
    return count


class Layer(nn.Module):
    """Residual feed-forward layer with a buffer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inside = nn.Linear(width, 4 * width)
        self.outside = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outside(nn.functional.gelu(self.inside(self.norm(x))))


def fsdp2() -> Count:
    """Train layers sharded over eight ranks; only this rank exists."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    with torch.device("cuda"):
        model = nn.Sequential(*(Layer(256) for _ in range(4)), nn.Linear(256, 64))
    for layer in model[:-1]:
        fully_shard(layer)
    fully_shard(model)
    count = Count(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    count.note("model")
    batches = (torch.randn(n, 256, device="cuda") for n in (512, 900, 300))
    train(count, batches, lambda x: model(x).square().mean())
    dist.destroy_process_group()
    return count


@torch.inference_mode()
def server() -> Count:
    """Decode several prompts greedily with a cache of keys and values."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=5003,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).eval()
    count = Count(model)
    count.note("model")
    for prompt in (400, 150):
        cache = DynamicCache()
        fresh = torch.randint(5003, (4, prompt), device="cuda")
        count.caches = lambda kept=cache: [
            tensor for layer in kept.layers for tensor in (layer.keys, layer.values)
        ]
        for _ in range(6):
            logits = model(input_ids=fresh, past_key_values=cache, use_cache=True).logits
            fresh = logits[:, -1:].argmax(dim=-1)
            count.note("after a token")
    return count


def accumulation() -> Count:
    """Train with two batches per step, SGD without state, and gradients dropped at the start."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(512))
            self.register_buffer("mask", torch.ones(384, 384).tril())
            self.layers = nn.Sequential(*(Layer(384) for _ in range(3)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x @ self.mask) * self.scale[:384]

    with torch.device("cuda"):
        model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count = Count(model, optimizer)
    count.note("model")
    for rows in (300, 200, 400):
        optimizer.zero_grad(set_to_none=True)
        count.note("after zero_grad")
        for _ in range(2):
            loss = model(torch.randn(rows, 384, device="cuda")).square().mean()
            count.note("after forward")
            loss.backward()
            count.note("after backward")
        optimizer.step()
        count.note("after step")
    return count


def compiled() -> Count:
    """Train layers with torch.compile, whose gradients come from generated Python."""
    with torch.device("cuda"):
        model = nn.Sequential(*(Layer(256) for _ in range(3)), nn.Linear(256, 64))
    run = torch.compile(model)
    count = Count(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    count.note("model")
    batches = (torch.randn(n, 256, device="cuda") for n in (512, 900, 300))
    train(count, batches, lambda x: run(x).square().mean())
    return count


class Product(torch.autograd.Function):
    """Matrix product with a custom backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return grad @ weight.T, x.T @ grad


class Multiplied(nn.Module):
    """Layer with the custom product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, 256) / 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Product.apply(x, self.weight)


def function() -> Count:
    """Train with gradients from an autograd function in Python, and an average of the weights."""
    import copy

    with torch.device("cuda"):
        model = nn.Sequential(Multiplied(), nn.ReLU(), Multiplied(), nn.Linear(256, 64))
    average = copy.deepcopy(model)
    count = Count(model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True))
    count.parameters += average.parameters()
    count.note("model")
    batches = (torch.randn(n, 256, device="cuda") for n in (512, 900, 300))
    train(count, batches, lambda x: model(x).square().mean())
    return count


def warm_start() -> Count:
    """Start the history after the first step, so earlier blocks have no stack."""
    with torch.device("cuda"):
        model = nn.Sequential(*(Layer(256) for _ in range(3)), nn.Linear(256, 64))
    count = Count(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    batches = (torch.randn(n, 256, device="cuda") for n in (512, 900, 300, 640))
    train(count, batches, lambda x: model(x).square().mean(), steps=1)
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.memory._record_memory_history(
        "all", context="alloc", stacks="python", max_entries=1 << 40
    )
    count.moments.clear()
    train(count, batches, lambda x: model(x).square().mean())
    return count


PROGRAMS: dict[str, Callable[[], Count]] = {
    program.__name__: program
    for program in (
        *(gpt2, llama, lora, resnet, unet, bert, fsdp2, server, accumulation),
        *(compiled, function, warm_start),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=PROGRAMS)
    options = parser.parse_args()
    os.environ.setdefault("MASTER_ADDR", "localhost")
    torch.manual_seed(0)
    print(json.dumps(PROGRAMS[options.program]().moments))


if __name__ == "__main__":
    main()
