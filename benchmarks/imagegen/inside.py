"""Run one row of the image-generation comparison over the phantom GPU, and report its memory.

Rule: every request for device memory is the comparison's own. Its `run.py` is imported from a
checkout and called. Replacements for downloads (weights, tokenizer, pictures) are in host memory,
and replacements for values read from the device make the same requests as the original.

This runs in an interpreter that has torch, diffusers, transformers and peft, but not necessarily
allocsim. Usage: inside.py FOLDER EXPERIMENT STEPS OUT, where FOLDER holds `run.py` and OUT is the
JSON file to write.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import sys
from pathlib import Path

import diffusers
import peft
import torch
import transformers
from PIL import Image

PIPELINE = {
    "transformer": {
        "patch_size": 1,
        "in_channels": 128,
        "out_channels": None,
        "num_layers": 5,
        "num_single_layers": 20,
        "attention_head_dim": 128,
        "num_attention_heads": 24,
        "joint_attention_dim": 7680,
        "timestep_guidance_channels": 256,
        "mlp_ratio": 3.0,
        "axes_dims_rope": (32, 32, 32, 32),
        "rope_theta": 2000,
        "eps": 1e-6,
        "guidance_embeds": False,
    },
    "text_encoder": {
        "vocab_size": 151936,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
        "max_position_embeddings": 40960,
    },
    "scheduler": {"num_train_timesteps": 1000, "shift": 3.0, "use_dynamic_shifting": True},
}
"""Configurations of FLUX.2-klein-base-4B; the autoencoder has the defaults of its class.

The transformer's configuration gives the comparison's own count of parameters, 3,875,544,576.
"""

ENCODER = {"image_size": 518, "patch_size": 14, "hidden_size": 768, "num_hidden_layers": 12}
"""DINOv2-base, which stays on the device in float32 for the whole run."""

PICTURES = 20
"""Number of pictures in the comparison's data set."""


THE_END = "training is over"
"""Message of the error that replaces the last evaluation; the script records it.

The last evaluation follows the measurement.
"""


def releases():
    packages = (torch, transformers, diffusers, peft)
    return {package.__name__: package.__version__.split("+")[0] for package in packages}


def hollow(model, dtype=None):
    """Return a model with allocated host weights that are never touched."""
    if dtype is not None:
        model = model.to(dtype)
    return model.to_empty(device="cpu").eval()


def stay_hollow(model):
    """Let a model return to the host without copying its contents."""
    real_to = model.to

    def to(*args, **kwargs):
        if goes_to_host(args, kwargs):
            return model.to_empty(device="cpu")
        return real_to(*args, **kwargs)

    model.to = to
    return model


def goes_to_host(args, kwargs):
    where = args[0] if args else kwargs.get("device")
    return where is not None and torch.device(where).type == "cpu"


def stay_hollow_with_adapters():
    """Let the transformer, of 8 GB or more, return to the host without copying its contents."""
    real_to = peft.PeftModel.to

    def to(self, *args, **kwargs):
        if goes_to_host(args, kwargs):
            return self.to_empty(device="cpu")
        return real_to(self, *args, **kwargs)

    peft.PeftModel.to = to


class Tokenizer:
    """Tokenizer whose prompts all have the length to which they are padded anyway."""

    def apply_chat_template(self, messages, **_):
        return messages[0]["content"]

    def __call__(self, _text, max_length, **_):
        ones = torch.ones(1, max_length, dtype=torch.long)
        return {"input_ids": ones, "attention_mask": ones}


def make_pipeline(_model_id, torch_dtype, **_):
    with torch.device("meta"):
        transformer = diffusers.Flux2Transformer2DModel(**PIPELINE["transformer"])
        autoencoder = diffusers.AutoencoderKLFlux2()
        text_encoder = transformers.Qwen3ForCausalLM._from_config(
            transformers.Qwen3Config(**PIPELINE["text_encoder"]), dtype=torch_dtype
        )
    text_encoder = hollow(text_encoder)
    text_encoder.tie_weights()  # the weights were untied when they were allocated
    pipeline = diffusers.Flux2KleinPipeline(
        transformer=hollow(transformer, torch_dtype),
        vae=stay_hollow(hollow(autoencoder, torch_dtype)),
        text_encoder=stay_hollow(text_encoder),
        tokenizer=None,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(**PIPELINE["scheduler"]),
    )
    pipeline.tokenizer = Tokenizer()
    pipeline._unpack_latents_with_ids = unpack_latents
    return pipeline


def unpack_latents(x, x_ids, height=None, width=None):
    """Run the pipeline's own function with the height that it would otherwise read from the device.

    Without a height it computes the largest index plus one, which is 1 over a phantom GPU.
    """
    pictures = []
    for data, ids in zip(x, x_ids, strict=True):
        side = math.isqrt(ids.shape[0])
        rows, columns = ids[:, 1].to(torch.int64), ids[:, 2].to(torch.int64)
        h = height if height is not None else torch.max(rows) + 1
        w = width if width is not None else torch.max(columns) + 1
        flat = rows * w + columns
        cells = h * w
        channels = data.shape[1]
        out = torch.zeros((side * side, channels), device=data.device, dtype=data.dtype)
        del cells
        out.scatter_(0, flat.unsqueeze(1).expand(-1, channels), data)
        out = out.view(side, side, channels).permute(2, 0, 1)
        pictures.append(out)
    return torch.stack(pictures, dim=0)


def make_encoder(_model_id, **_):
    with torch.device("meta"):
        model = transformers.Dinov2Model(transformers.Dinov2Config(**ENCODER))
    return hollow(model)


def make_processor(_model_id, **_):
    def processor(images, **_):
        return transformers.BatchFeature({"pixel_values": torch.zeros(len(images), 3, 224, 224)})

    return processor


class Pictures:
    """Black pictures, as many as the data set has."""

    def __init__(self, number):
        self.number = number
        self.column_names = ["image"]

    def __len__(self):
        return self.number

    def select(self, indices):
        return Pictures(len(indices))

    def __getitem__(self, _column):
        return [Image.new("RGB", (512, 512)) for _ in range(self.number)]


def stand_in_for_the_hub():
    import datasets  # noqa: PLC0415

    datasets.load_dataset = lambda *_, **__: Pictures(PICTURES)
    diffusers.Flux2KleinPipeline.from_pretrained = staticmethod(make_pipeline)
    transformers.AutoModel.from_pretrained = staticmethod(make_encoder)
    transformers.AutoImageProcessor.from_pretrained = staticmethod(make_processor)


def leave_out_decompositions():
    """Skip decompositions on the host of weights that are all zeros, which take an hour.

    The factors have the shapes and the column order of LAPACK's and are zeros.
    """
    decompose = torch.linalg.svd

    def svd(matrix, full_matrices=True, **rest):
        if matrix.is_cuda:
            return decompose(matrix, full_matrices, **rest)
        rows, columns = matrix.shape
        rank = min(rows, columns)
        left, right = (rows, columns) if full_matrices else (rank, rank)
        factors = (
            matrix.new_zeros(left, rows).mT,
            torch.zeros(rank),
            matrix.new_zeros(columns, right).mT,
        )
        return torch.return_types.linalg_svd(factors)

    torch.linalg.svd = svd


def get_sigmas(timesteps, noise_scheduler, n_dim, dtype):
    """Return the first sigma for every sample; older scripts read the index from the device."""
    sigmas = noise_scheduler.sigmas.to(dtype=dtype)
    return sigmas[torch.zeros(len(timesteps), dtype=torch.long)].reshape(-1, *[1] * (n_dim - 1))


def change_script(run, steps, out):
    """Remove the code after the measurement, and the code that needs a network."""
    evaluate, get_train_config = run.evaluate, run.get_train_config

    def evaluate_until_the_end(**kwargs):
        if kwargs.get("num_repeats", 1) > 1:
            raise RuntimeError(THE_END)
        return evaluate(**kwargs)

    def config(path):
        config = get_train_config(path)
        config.max_steps = min(config.max_steps, steps or config.max_steps)
        return config

    def log_results(train_result, **_):
        means = [(m["mem allocated avg"], m["mem reserved avg"]) for m in train_result.metrics]
        if train_result.error_msg != THE_END:
            sys.exit(train_result.error_msg)
        said = {
            "releases": releases(),
            "steps": len(train_result.accelerator_memory_reserved_log),
            "peak_reserved": train_result.accelerator_memory_max_train,
            "intervals": means,
        }
        out.write_text(json.dumps(said))
        # Nothing after this is measured, and shutting down the interpreter takes seconds.
        os._exit(0)

    run.evaluate, run.get_train_config, run.log_results = (
        evaluate_until_the_end,
        config,
        log_results,
    )
    run.get_peft_branch = lambda: "main"
    run.get_base_model_info = run.get_dataset_info = lambda _: None
    run.get_file_size = lambda *_, **__: 0
    run.print_verbose = lambda *_, **__: None
    if "step_indices" not in inspect.signature(run.get_sigmas).parameters:
        run.get_sigmas = get_sigmas


def main(folder: str, experiment: str, steps: int, out: Path) -> None:
    stand_in_for_the_hub()
    stay_hollow_with_adapters()
    leave_out_decompositions()
    os.chdir(folder)
    sys.path.insert(0, folder)
    import run  # noqa: PLC0415

    change_script(run, steps, out)
    options = {
        "path_experiment": f"experiments/{experiment}",
        "experiment_name": experiment,
        "clean": True,
        "bucket_name": None,
    }
    known = inspect.signature(run.main).parameters
    run.main(**{name: value for name, value in options.items() if name in known})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]).absolute())
