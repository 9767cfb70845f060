"""Generator of the Python program whose run shows whether a task fits a card.

The program uses the interfaces of PyTorch and transformers, and runs unchanged on a real GPU.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from allocsim.errors import ConfigError
from allocsim.fitting.model import IMAGES, Classifier, Configured, UserModel
from allocsim.fitting.pairs_program import has_autocast, loss_of_pairs
from allocsim.fitting.task import ATTENTION, OPTIMIZERS, Task

_INDENT = "    "
_WIDTH = 88


def program_of(task: Task) -> str:
    """Return the text of a Python program that performs `task` on the first GPU."""
    if task.generates:
        raise ConfigError(f"{task.model.name} is answered by formula; `fit` has no program for it")
    lines = [
        *textwrap.wrap(f'"""{task.text}."""', _WIDTH),
        "",
        *_imports(task),
        "",
        *_ranks(task),
        *_model(task),
        *(_training(task) if task.is_training else _serving(task)),
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Missing:
    """Package that the program of a task needs and that is not installed.

    name: "PyTorch", or the names of the missing packages that the program imports.
    why: text for the user that names the Python interpreters that lack the package.
    install: command that installs it.
    """

    name: str
    why: str
    install: str


def libraries_of(task: Task) -> tuple[str, ...]:
    """Return the packages, besides torch, that a task's program imports."""
    found = {
        "transformers": isinstance(task.model, Configured),
        "torchvision": isinstance(task.model, Classifier),
        "peft": bool(task.lora),
        "accelerate": bool(task.quant),
        "bitsandbytes": bool(task.quant) or (task.is_training and task.optimizer.endswith("8bit")),
    }
    return tuple(name for name, is_needed in found.items() if is_needed)


def _imports(task: Task) -> Iterator[str]:
    model = task.model
    if isinstance(model, UserModel):
        yield "import sys"
        yield ""
    if task.quant:
        yield from ("import json", "import tempfile", "")
    if task.optimizer.endswith("8bit") and task.is_training:
        yield "import bitsandbytes"
    yield "import torch"
    if task.parallel:
        yield "import torch.distributed"
    if isinstance(model, Classifier):
        yield "import torchvision"
    if task.lora:
        prepare = ", prepare_model_for_kbit_training" * bool(task.quant)
        yield f"from peft import LoraConfig, get_peft_model{prepare}"
    if isinstance(model, Configured):
        names = ["AutoConfig", model.head] + ["DynamicCache"] * (not task.is_training)
        names += ["EncoderDecoderCache"] * (model.has_encoder and not task.is_training)
        names += ["BitsAndBytesConfig"] * bool(task.quant)
        yield f"from transformers import {', '.join(names)}"
    if task.checkpoint_layers or (task.parallel == "fsdp" and task.model.has_encoder):
        yield "from transformers.modeling_layers import GradientCheckpointingLayer"
    if task.parallel == "fsdp":
        mixed = "MixedPrecisionPolicy, " if task.autocast_dtype is not None else ""
        yield f"from torch.distributed.fsdp import {mixed}fully_shard"
    if task.parallel == "ddp":
        yield "from torch.nn.parallel import DistributedDataParallel"
    if task.parallel:
        yield "from torch.testing._internal.distributed.fake_pg import FakeStore"
    if isinstance(model, UserModel):
        yield ""
        yield 'sys.path.insert(0, "")'
        yield f"from {model.module} import {model.function.partition('.')[0]}"


def _ranks(task: Task) -> Iterator[str]:
    if task.parallel:
        yield "torch.distributed.init_process_group("
        yield f'    "fake", store=FakeStore(), rank={task.rank}, world_size={task.ranks}'
        yield ")"


def _model(task: Task) -> Iterator[str]:
    model, dtype = task.model, f"torch.{task.parameters_dtype}"
    device = "meta" if task.parallel == "fsdp" or task.quant else "cuda"
    if isinstance(model, Configured):
        yield from _config(model)
        yield f'with torch.device("{device}"):'
        attention = f'attn_implementation="{ATTENTION[task.attention]}"'
        if task.quant:
            yield f"    model = {model.head}.from_config(config, dtype=torch.bfloat16)"
            yield from _quantized(task, model.head, attention).splitlines()
        else:
            yield f"    model = {model.head}.from_config("
            yield f"        config, dtype={dtype}, {attention}"
            yield "    )"
        if model.config["model_type"] == "t5" and not model.config.get("tie_word_embeddings", True):
            yield "# The published files have an output layer; transformers 5 ties a new one."
            yield "model.lm_head = torch.nn.Linear("
            yield "    config.d_model, config.vocab_size, bias=False,"
            yield f'    dtype={dtype}, device="{"meta" if task.parallel == "fsdp" else "cuda"}"'
            yield ")"
    elif isinstance(model, Classifier):
        yield f'with torch.device("{device}"):'
        yield f"    model = torchvision.models.{model.function}(weights=None)"
        yield f"model = model.to({dtype})"
    elif isinstance(model, UserModel):
        yield f"made = {model.function}()"
        yield "model, batch = made if isinstance(made, tuple) else (made, None)"
        yield f'model = model.to("cuda", {dtype})'
        yield ""
        yield ""
        yield "def loss_of(batch):"
        yield "    if isinstance(batch, dict):"
        yield "        out = model(**batch)"
        yield "    else:"
        yield "        out = model(*batch) if isinstance(batch, tuple) else model(batch)"
        yield '    return out.loss if hasattr(out, "loss") else out.mean()'
        yield ""
        yield ""
    if task.channels_last:
        yield "model = model.to(memory_format=torch.channels_last)"
    yield "model.train()" if task.is_training else "model.eval()"
    if task.is_training:
        yield from _adapters(task)
    yield from _sharding(task)
    yield from _reference(task)
    if task.compiles:
        yield "model = torch.compile(model)"
    if task.start == "clean":
        yield "torch.cuda.empty_cache()  # as if the weights had been loaded in place"
        yield "torch.cuda.reset_peak_memory_stats()"
    yield ""


def _quantized(task: Task, head: str, attention: str) -> str:
    compute = task.autocast_dtype or task.parameters_dtype
    return f"""\
places, end = {{"__metadata__": {{"format": "pt"}}}}, 0
for name, each in model.named_parameters():
    start, end = end, end + each.nbytes
    places[name] = {{
        "dtype": "BF16", "shape": list(each.shape), "data_offsets": [start, end]
    }}
header = json.dumps(places).encode()
with tempfile.TemporaryDirectory() as folder:
    config.save_pretrained(folder)
    with open(f"{{folder}}/model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(file.tell() + end)  # weights of zeros, which take no space
    model = {head}.from_pretrained(
        folder,
        dtype=torch.bfloat16,
        {attention},
        device_map={{"": 0}},
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant={task.quant.endswith("double")},
            bnb_4bit_compute_dtype=torch.{compute},
        ),
    )
"""


def _config(model: Configured) -> Iterator[str]:
    if model.path is not None:
        yield f"config = AutoConfig.from_pretrained({model.path!r})"
        return
    yield "config = AutoConfig.for_model("
    for key, value in model.config.items():
        if isinstance(value, dict):
            inner = [f"        {name!r}: {part!r}," for name, part in value.items()]
            yield from (f"    {key}={{", *inner, "    },")
        else:
            yield f"    {key}={value!r},"
    yield ")"


def _adapters(task: Task) -> Iterator[str]:
    if task.quant:
        yield "model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)"
    if task.checkpointing:
        yield "model.config.use_cache = False"
        yield 'model.gradient_checkpointing_enable({"use_reentrant": False})'
        if task.checkpoint_layers:
            yield "kind = GradientCheckpointingLayer"
            yield "layers = [each for each in model.modules() if isinstance(each, kind)]"
            yield f"for layer in layers[{task.checkpoint_layers}:]:"
            yield "    layer.gradient_checkpointing = False"
    if task.lora:
        targets = list(task.lora_targets) or "all-linear"
        yield f"targets = {targets!r}"
        sizes = f"r={task.lora}, lora_alpha={2 * task.lora}"
        yield f"model = get_peft_model(model, LoraConfig({sizes}, target_modules=targets))"
        if task.reference == "adapter":
            yield "adapted = model"
        if task.checkpointing:
            yield "model.enable_input_require_grads()"


def _reference(task: Task) -> Iterator[str]:
    # DPO trains without dropout.
    if not task.reference:
        return
    yield "for each in model.modules():"
    yield "    if isinstance(each, torch.nn.Dropout):"
    yield "        each.p = 0.0"
    if task.reference_dtype is None:
        return
    assert isinstance(task.model, Configured)
    attention = f'attn_implementation="{ATTENTION[task.attention]}"'
    device = "meta" if task.parallel == "fsdp" else "cuda"
    yield f'with torch.device("{device}"):'
    yield f"    reference = {task.model.head}.from_config("
    yield f"        config, dtype=torch.{task.reference_dtype}, {attention}"
    yield "    )"
    yield "reference.requires_grad_(False).eval()"
    if task.parallel == "fsdp":
        yield from _sharded("reference", task)


def _sharding(task: Task) -> Iterator[str]:
    if task.parallel == "ddp":
        yield "model = DistributedDataParallel(model, device_ids=[0])"
    if task.parallel != "fsdp":
        return
    if task.autocast_dtype is not None:
        yield "policy = MixedPrecisionPolicy("
        yield f"    param_dtype=torch.{task.autocast_dtype}, reduce_dtype=torch.float32"
        yield ")"
    yield from _sharded("model", task)


def _sharded(model: str, task: Task) -> Iterator[str]:
    policy = "" if task.autocast_dtype is None else ", mp_policy=policy"
    if task.model.has_encoder:
        yield "kind = GradientCheckpointingLayer"
        yield f"layers = [each for each in {model}.modules() if isinstance(each, kind)]"
    else:
        yield "lists = (torch.nn.ModuleList, torch.nn.Sequential)"
        found = f"each for each in {model}.modules() if isinstance(each, lists)"
        yield f"layers = max(({found}), key=len)"
    yield f"for part in (*layers, {model}):"
    yield f"    fully_shard(part{policy})"
    yield f'{model}.to_empty(device="cuda")'


def _training(task: Task) -> Iterator[str]:
    yield "parameters = [each for each in model.parameters() if each.requires_grad]"
    yield f"optimizer = {OPTIMIZERS[task.optimizer]}"
    is_scaled = task.autocast_dtype == "float16"
    if is_scaled:
        yield "scaler = torch.amp.GradScaler()"
    if not task.lengths:
        yield from _batch(task, str(task.seq))
    else:
        yield f"lengths = {list(task.lengths)}"
    if task.reference:
        yield from loss_of_pairs(task)
    yield f"for step in range({task.steps}):"
    if task.accumulate > 1:
        yield f"{_INDENT}for _ in range({task.accumulate}):"
    deep = _INDENT * (2 if task.accumulate > 1 else 1)
    if task.lengths:
        yield f"{deep}lengths = lengths[{task.batch}:] + lengths[:{task.batch}]"
        for line in _batch(task, f"max(lengths[:{task.batch}])"):
            yield deep + line
    loss = _loss(task)
    if has_autocast(task) and not task.reference:
        yield f'{deep}with torch.autocast("cuda", dtype=torch.{task.autocast_dtype}):'
        yield f"{deep}{_INDENT}loss = {loss}"
    else:
        yield f"{deep}loss = {loss}"
    if task.accumulate > 1:
        yield f"{deep}loss = loss / {task.accumulate}"
    yield f"{deep}scaler.scale(loss).backward()" if is_scaled else f"{deep}loss.backward()"
    yield f"{_INDENT}scaler.step(optimizer)" if is_scaled else f"{_INDENT}optimizer.step()"
    if is_scaled:
        yield f"{_INDENT}scaler.update()"
    yield f"{_INDENT}optimizer.zero_grad(set_to_none=True)"


def _batch(task: Task, length: str) -> Iterator[str]:
    model, batch, side = task.model, task.sequences, task.image
    if isinstance(model, UserModel):
        yield "if batch is None:"
        yield "    vocabulary = model.config.vocab_size"
        yield f'    ids = torch.randint(0, vocabulary, ({batch}, {length}), device="cuda")'
        yield '    batch = {"input_ids": ids, "labels": ids}'
    elif model.sees:
        dtype = f"torch.{task.parameters_dtype}"
        yield f'images = torch.randn({batch}, 3, {side}, {side}, device="cuda", dtype={dtype})'
        yield f'labels = torch.randint(0, {_classes(task)}, ({batch},), device="cuda")'
        if task.channels_last:
            yield "images = images.to(memory_format=torch.channels_last)"
    else:
        yield from _sound(task)
        yield f'ids = torch.randint(0, config.vocab_size, ({batch}, {length}), device="cuda")'


def _sound(task: Task) -> Iterator[str]:
    if task.model.hears:
        yield f"frames = ({task.batch}, config.num_mel_bins, 2 * config.max_source_positions)"
        dtype = f"torch.{task.parameters_dtype}"
        yield f'features = torch.randn(frames, device="cuda", dtype={dtype})'


def _classes(task: Task) -> str:
    return "1000" if isinstance(task.model, Classifier) else "config.num_labels"


def _loss(task: Task) -> str:
    model = task.model
    if task.reference:
        return "loss_of_pairs()"
    if isinstance(model, UserModel):
        return "loss_of(batch)"
    if isinstance(model, Classifier):
        return "torch.nn.functional.cross_entropy(model(images), labels)"
    if isinstance(model, Configured) and model.head == IMAGES:
        return "model(pixel_values=images, labels=labels).loss"
    if model.hears:
        return "model(input_features=features, labels=ids).loss"
    return "model(input_ids=ids, labels=ids).loss"


def _serving(task: Task) -> Iterator[str]:
    batch, length = task.batch, str(task.prompt)
    if task.lengths:
        yield f"lengths = {list(task.lengths)}"
        length = f"max(lengths[:{batch}])"
    yield f"for request in range({task.requests}):"
    yield "    with torch.no_grad():"
    for line in _sound(task):
        yield f"        {line}"
    yield f'        ids = torch.randint(0, config.vocab_size, ({batch}, {length}), device="cuda")'
    if task.model.has_encoder:
        yield from _encoding(task)
    else:
        yield "        cache = DynamicCache(config=config)"
    yield f"        for token in range(1 + {task.decode}):"
    yield "            logits = model("
    if task.model.has_encoder:
        yield "                encoder_outputs=encoded, decoder_input_ids=ids,"
        yield "                past_key_values=cache, use_cache=True"
    else:
        yield "                ids, past_key_values=cache, use_cache=True, logits_to_keep=1"
    yield "            ).logits"
    yield "            ids = logits[:, -1:].argmax(-1)"
    yield "            del logits"
    yield "    del cache, ids" + ", encoded" * task.model.has_encoder
    if task.lengths:
        yield f"    lengths = lengths[{batch}:] + lengths[:{batch}]"


def _encoding(task: Task) -> Iterator[str]:
    if task.model.hears:
        yield "        encoded = model.get_encoder()(features)"
    else:
        yield "        encoded = model.get_encoder()(ids)"
        yield f'        ids = torch.zeros(({task.batch}, 1), dtype=torch.int64, device="cuda")'
    yield "        caches = [DynamicCache(config=config) for _ in range(2)]"
    yield "        cache = EncoderDecoderCache(*caches)"
