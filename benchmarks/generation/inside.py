"""Generate an image with a pipeline of diffusers over the phantom GPU, and report its memory.

The pipelines, their components and the allocator are real. Weights are host or device memory that
is never written, and prompts are token ids of full length. Usage: inside.py REQUEST, a JSON object
with `class`, `denoiser`, `autoencoder` and `encoders` (a list) as in allocsim/fitting/images.json,
and `image`, `batch`, `dtype` and `offload`; the answer is a JSON object on standard output.

This runs in an interpreter with torch, transformers, accelerate and diffusers, but not necessarily
allocsim.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import diffusers
import torch
import transformers

PIPELINES = {
    "SD3Transformer2DModel": "StableDiffusion3Pipeline",
    "FluxTransformer2DModel": "FluxPipeline",
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Tokenizer:
    """Tokenizer whose prompts all have the length to which they are padded."""

    def __init__(self, length):
        self.model_max_length = length

    def tokenize(self, _text):
        return []

    def batch_decode(self, ids):
        return len(ids) * [""]

    def __call__(self, text, max_length=None, **_):
        shape = (len(text) if isinstance(text, list) else 1, max_length or self.model_max_length)
        ones = torch.ones(shape, dtype=torch.long)
        return SimpleNamespace(input_ids=ones, attention_mask=ones)


def hollow(make, dtype, device):
    """Return a model with weights in memory that is never written."""
    with torch.device("meta"):
        model = make()
    model = model.to(dtype)
    if dtype == torch.float16:  # as from_pretrained does
        kept = getattr(model, "_keep_in_fp32_modules", None) or ()
        for name, module in model.named_modules():
            if name.rsplit(".", 1)[-1] in kept:
                module.float()
    model = model.to_empty(device=device).eval()
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    real_to = model.to

    def to(*args, **kwargs):
        where = args[0] if args else kwargs.get("device")
        if isinstance(where, str | torch.device) and torch.device(where).type == "cpu":
            return model.to_empty(device="cpu")
        return real_to(*args, **kwargs)

    model.to = to
    return model


def encoder(config, dtype, device):
    if config["model_type"] == "t5":
        made = transformers.T5Config(**config)
        return hollow(lambda: transformers.T5EncoderModel(made), dtype, device)
    made = transformers.CLIPTextConfig(**config)
    cls = getattr(transformers, config["architectures"][0])
    return hollow(lambda: cls(made), dtype, device)


def pipeline(request, dtype, device):
    made, is_unet = {}, request["class"] not in PIPELINES
    for number, config in enumerate(request["encoders"], 1):
        suffix = "" if number == 1 else f"_{number}"
        made[f"text_encoder{suffix}"] = encoder(config, dtype, device)
        made[f"tokenizer{suffix}"] = Tokenizer(512 if config["model_type"] == "t5" else 77)
    cls = getattr(diffusers, request["class"])
    slot = "unet" if is_unet else "transformer"
    made[slot] = hollow(lambda: cls(**request["denoiser"]), dtype, device)
    made["vae"] = hollow(lambda: diffusers.AutoencoderKL(**request["autoencoder"]), dtype, device)
    if not is_unet:
        name = PIPELINES[request["class"]]
        made["scheduler"] = diffusers.FlowMatchEulerDiscreteScheduler(
            shift=3.0, use_dynamic_shifting=name == "FluxPipeline"
        )
        return getattr(diffusers, name)(**made)
    made["scheduler"] = diffusers.EulerDiscreteScheduler(beta_schedule="scaled_linear")
    if "text_encoder_2" in made:
        return diffusers.StableDiffusionXLPipeline(**made, add_watermarker=False)
    rest = {"safety_checker": None, "feature_extractor": None}
    return diffusers.StableDiffusionPipeline(**made, **rest, requires_safety_checker=False)


def watch(pipe, said):
    """Record the peaks of each component's forward passes."""
    for name, module in pipe.components.items():
        if not isinstance(module, torch.nn.Module):
            continue
        target, method = (module, "decode") if name == "vae" else (module, "forward")
        real = getattr(target, method)

        def watched(*args, _real=real, _name=name, **kwargs):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            out = _real(*args, **kwargs)
            peak = torch.cuda.max_memory_allocated()
            said[_name] = [before, peak - before, torch.cuda.max_memory_reserved()]
            return out

        setattr(target, method, watched)


def main(request):
    dtype, offloads = DTYPES[request["dtype"]], request["offload"]
    pipe = pipeline(request, dtype, "cpu" if offloads else "cuda")
    counts = {
        name: sum(each.numel() for each in module.parameters())
        for name, module in pipe.components.items()
        if isinstance(module, torch.nn.Module)
    }
    loaded = torch.cuda.memory_reserved()
    pipe.set_progress_bar_config(disable=True)
    pipe.scheduler.index_for_timestep = lambda *_: 0  # not a search for a value
    stages = {}
    watch(pipe, stages)
    if offloads:
        pipe.enable_model_cpu_offload()
    size = request["image"]
    options = {"height": size, "width": size, "num_inference_steps": 2, "output_type": "pt"}
    pipe(prompt="a", num_images_per_prompt=request["batch"], **options)
    said = {
        "parameters": counts,
        "loaded": loaded,
        "stages": stages,
        "allocated": max(before + more for before, more, _ in stages.values()),
        "reserved": max(reserved for _, _, reserved in stages.values()),
        "releases": {each.__name__: each.__version__ for each in (torch, diffusers, transformers)},
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
