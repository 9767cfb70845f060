"""Train or serve one model as described by a row of `traces/h200/cases/cases.jsonl`.

    case.py ROW OUT

Writes the row to OUT with the statistics after the model is created, after each step or request,
and at the end.  Weights are created from a configuration; nothing is downloaded.
"""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.on_gpu.inside.packages import installed

STATS = (
    *("allocated_bytes.all.peak", "reserved_bytes.all.peak", "reserved_bytes.all.current"),
    *("allocated_bytes.all.current", "requested_bytes.all.peak", "num_alloc_retries", "num_ooms"),
    *("num_device_alloc", "num_device_free"),
)
TORCHVISION = {"ResNet-50": "resnet50", "ViT-B/16": "vit_b_16"}
STEPS, REQUESTS = 4, 2
Row = dict[str, Any]


def stats() -> dict[str, int]:
    torch.cuda.synchronize()
    found = torch.cuda.memory_stats()
    return {name: found.get(name, 0) for name in STATS}


def about(model: torch.nn.Module) -> Row:
    """Return the keys of a row that describe the model."""
    config = getattr(model, "config", None)
    return {
        "params": sum(each.numel() for each in model.parameters()),
        "buffer_bytes": sum(each.nbytes for each in model.buffers()),
        "attn_used": getattr(config, "_attn_implementation", None),
        "experts_used": getattr(config, "_experts_implementation", None),
    }


def parameters_dtype(row: Row) -> torch.dtype:
    return torch.bfloat16 if row["dtype"] == "bf16" else torch.float32


def build(row: Row) -> torch.nn.Module:
    if row["model"] in TORCHVISION:
        import torchvision

        with torch.device("cuda"):
            model = getattr(torchvision.models, TORCHVISION[row["model"]])(weights=None)
        model = model.to(parameters_dtype(row))
        if row.get("channels_last"):
            model = model.to(memory_format=torch.channels_last)
        return model
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**row["hf_config"])
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(
            config, dtype=parameters_dtype(row), attn_implementation=row["attn"]
        )


def optimizer_of(name: str, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    if name == "adafactor":
        return torch.optim.Adafactor(parameters)
    if name in ("sgd", "momentum"):
        return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9 if name == "momentum" else 0.0)
    more = {"adamw": {}, "adamw_fused": {"fused": True}, "adamw_foreach_false": {"foreach": False}}
    return torch.optim.AdamW(parameters, lr=1e-4, **more[name])


def train(row: Row, model: Any) -> None:
    model.train()
    if row.get("gc"):
        model.config.use_cache = False
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if row.get("lora"):
        from peft import LoraConfig, get_peft_model

        rank, targets = row["lora"], row["lora_targets"]
        model = get_peft_model(
            model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets)
        )
        if row.get("gc"):
            model.enable_input_require_grads()
    optimizer = optimizer_of(
        row["optimizer"], [each for each in model.parameters() if each.requires_grad]
    )
    is_autocast = row["dtype"].startswith("autocast")
    images = labels = None
    for _ in range(STEPS):
        # Binding a name frees the tensor that it held in the previous step.
        if "image" in row:
            images = images_of(row)
            labels = torch.randint(0, 1000, (row["batch"],), device="cuda")
            if row.get("channels_last"):
                images = images.to(memory_format=torch.channels_last)
        else:
            labels = torch.randint(
                0, model.config.vocab_size, (row["batch"], row["seq"]), device="cuda"
            )
        scope = torch.autocast("cuda", torch.bfloat16) if is_autocast else contextlib.nullcontext()
        with scope:
            loss = loss_of(model, images, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        row["steps"].append(stats())


def images_of(row: Row) -> torch.Tensor:
    side, dtype = row["image"], parameters_dtype(row)
    return torch.randn(row["batch"], 3, side, side, device="cuda", dtype=dtype)


def loss_of(model: Any, images: torch.Tensor | None, labels: torch.Tensor) -> torch.Tensor:
    if images is not None:
        return torch.nn.functional.cross_entropy(model(images), labels)
    return model(input_ids=labels, labels=labels).loss


def serve(row: Row, model: Any) -> None:
    from transformers import DynamicCache

    model.eval()
    for _ in range(REQUESTS):
        with torch.no_grad():
            size = (row["batch"], row["prompt"])
            ids = torch.randint(0, model.config.vocab_size, size, device="cuda")
            cache = DynamicCache(config=model.config)
            for _ in range(1 + row["decode"]):
                # No name holds the logits: they are freed before the previous ids.
                ids = (
                    model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                    .logits[:, -1:]
                    .argmax(-1)
                )
        del cache
        row["steps"].append(stats())


def main() -> None:
    row, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    row |= {"steps": [], "oom": False, "error": None}
    try:
        model = build(row)
        row |= about(model)
        row["after_build"] = stats()
        (train if row["kind"] == "train" else serve)(row, model)
    except torch.OutOfMemoryError as error:
        row |= {"oom": True, "error": str(error).splitlines()[0]}
    row["final"] = stats()
    row |= {
        "cudnn_sdp": torch.backends.cuda.cudnn_sdp_enabled(),
        "transformers": installed("transformers"),
        "peft": installed("peft"),
        "peak_allocated": row["final"]["allocated_bytes.all.peak"],
        "peak_reserved": row["final"]["reserved_bytes.all.peak"],
        "gpu": torch.cuda.get_device_name(),
        "device_memory": torch.cuda.mem_get_info()[1],
        "capability": list(torch.cuda.get_device_capability()),
        "cudnn": torch.backends.cudnn.version(),
        "torch": torch.__version__,
    }
    out.write_text(json.dumps(row))


if __name__ == "__main__":
    main()
