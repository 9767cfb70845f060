"""Conversion of a training tool's configuration, such as one of axolotl, to options of `fit`.

The same keys are read whichever tool the file is for, because the tools share most names.  The tool
decides the defaults of absent keys and what `bf16: true` means.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allocsim.errors import ConfigError
from allocsim.fitting.config_file import (
    ALONE,
    ATTENTION,
    AUTO,
    DEFAULTS,
    DISABLED,
    DOUBLE,
    FACTORY,
    FILES,
    IN_WORDS,
    KEYS,
    METHODS,
    OFFLOADS,
    OPTIMIZERS,
    RANKS,
    REFERRING,
    TOOLS,
    TRAINER,
    TYPES,
    UNCOUNTED,
    WHOLE,
    pairs_of_trl,
    parsed_file,
)
from allocsim.fitting.model import flattened, is_decoder, model_of

WARNING = "warning: "
"""Prefix of a sentence that warns of a wrong answer; it is shown before the answer."""


@dataclass(frozen=True, slots=True)
class ReadConfig:
    """Options of `fit`, read from the configuration of a training tool.

    path: file of the configuration.
    values: dictionary from options, such as "batch", to their values.
    used, ignored: keys of the configuration that became options, and all other keys.
    notes: differences between the configuration and what `fit` computes, one sentence each.
    tool: name of the tool that the configuration is for, or "" if it is not known.
    assumed: dictionary from options to the tool's defaults that affect memory, in words; a suffix
        of the option after a dot distinguishes several assumptions on it.
    warnings: reasons why the answer is too low, one sentence each.
    per_example: number of sequences in each training example; 2 for training on pairs.
    files: further files that the configuration names and that were read.
    """

    path: str
    values: Mapping[str, Any]
    used: tuple[str, ...]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]
    tool: str = ""
    assumed: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    per_example: int = 1
    files: tuple[str, ...] = ()

    def sentences(self, overridden: Collection[str] = ()) -> tuple[str, ...]:
        """Return all sentences about the configuration; warnings come first.

        overridden: options that the user also gives directly, so that nothing is assumed for them.
        """
        rest = ", ".join(self.ignored) or "nothing"
        assumed = [
            text for name, text in self.assumed.items() if name.partition(".")[0] not in overridden
        ]
        said = f"; assumed{self.tool and ' of '}{self.tool}: {', '.join(assumed)}"
        read = f"{' and '.join((self.path, *self.files))}: read {', '.join(self.used)}"
        read += f"{said * bool(assumed)}; ignored {rest}"
        return (*(f"{WARNING}{each}" for each in self.warnings), read, *self.notes)


def read_config(path: str | Path, model: str = "", *, has_adapters: bool = False) -> ReadConfig:
    """Read the options of `fit` from a JSON or YAML configuration of a training tool.

    model: model that is trained, whatever the configuration names.
    has_adapters: True if LoRA adapters are trained, even if the configuration has none.
    Raises ConfigError if the configuration has no key that becomes an option.
    """
    file = Path(path)
    flat = dict(flattened(parsed_file(file)))
    reader = _Reader(flat, model, has_adapters=has_adapters)
    for key, before in FILES.items():
        reader.read_further(file, key, before)
    values = dict(reader.values())
    if not values:
        why = "; ".join(reader.notes) or "no key of a training's configuration that decides memory"
        raise ConfigError(f"{file}: {why}")
    ignored = tuple(key for key in flat if key not in reader.used)
    return ReadConfig(
        *(str(path), values, tuple(dict.fromkeys(reader.used)), ignored, tuple(reader.notes)),
        tool=reader.tool,
        assumed=reader.assumed,
        warnings=tuple(reader.warnings),
        per_example=reader.per_example,
        files=tuple(reader.files),
    )


class _Reader:
    """Converter of a configuration's keys to options of `fit`.

    flat: dictionary from keys of the configuration to values; a dot separates nested keys.
    model, has_adapters: as in `read_config`.
    used, notes, tool, assumed, warnings, per_example, files: as in `ReadConfig`.
    reference: "copy" or "adapter" for a training on pairs with a reference, such as DPO, else "".
    """

    def __init__(self, flat: dict[str, Any], model: str, *, has_adapters: bool) -> None:
        self.flat, self.model, self.has_adapters = flat, model, has_adapters
        self.used: list[str] = []
        self.notes: list[str] = []
        self.assumed: dict[str, str] = {}
        self.warnings: list[str] = []
        self.per_example = 1
        self.reference = ""
        self.files: list[str] = []
        self.tool = next((name for name, keys in TOOLS.items() if flat.keys() & set(keys)), "")

    def read_further(self, file: Path, key: str, before: str) -> None:
        """Add the keys of the file named by the value of `key`, each with the prefix `before`.

        The name is relative to the folder of `file`, to one of the three folders above it, or to
        the current folder.
        """
        name = self.flat.get(key)
        if not isinstance(name, str) or name in AUTO:
            return
        places = [folder / name for folder in file.absolute().parents[:4]]
        try:
            found = next((each for each in places if each.is_file()), Path(name))
            self.flat |= flattened(parsed_file(found), before)
        except ConfigError as error:
            self.warnings.append(f"{key}: {error}, so what it decides is not counted")
        else:
            self.used.append(key)
            self.files.append(str(found))

    def take(self, *keys: str) -> Any:
        for name in (name for key in keys for name in (key, f"deepspeed.{key}")):
            if self.flat.get(name) not in AUTO:
                self.used.append(name)
                return self.flat[name]
        return None

    def values(self) -> Iterator[tuple[str, Any]]:
        converted: dict[str, Callable[[Any], Any]] = {
            "optimizer": self.optimizer,
            "attention": self.attention,
            "lora_targets": self.targets,
            "checkpointing": bool,
            "compiles": bool,
            "model": str,
        }
        has_lora = self.has_lora()
        self.per_example = self.sequences(has_lora or self.has_adapters)
        self.take("lora_target_linear")
        for name, keys in KEYS.items():
            if name.startswith("lora") and not has_lora:
                continue
            value = self.take(*keys)
            if value is None:
                made = self.default(name, keys)
            else:
                made = converted[name](value) if name in converted else self.count(name, value)
            if made is not None:
                yield name, made
        stage = self.take("zero_optimization.stage", "deepspeed_config.zero_stage")
        if (dtype := self.dtype(stage, has_lora=has_lora)) is not None:
            yield "dtype", dtype
        if self.reference:
            is_half = stage is not None or self.tool == FACTORY
            yield "reference", "half-" * (is_half and self.reference == "copy") + self.reference
            if self.tool in (FACTORY, "torchtune"):
                yield "whole_softmax", True
        if (parallel := self.parallel(stage)) is not None:
            yield "parallel", parallel
            ranks = self.take(*RANKS)
            if ranks is None:
                self.assumed["ranks"] = "1 GPU, as the file names no number (--ranks N)"
            yield "ranks", self.count("ranks", ranks or 1)
        if (quant := self.quant()) is not None:
            yield "quant", quant

    def has_lora(self) -> bool:
        kind = self.take("finetuning_type", "adapter")
        named = {key: self.flat[key] for key in KEYS["lora"] if self.flat.get(key) is not None}
        is_named = bool(named)
        if 0 in named.values():
            self.used += [key for key, rank in named.items() if rank == 0]
            self.notes.append("LoRA of rank 0 is computed as training of all weights")
            return False
        if self.tool == "TRL":
            self.used += ["use_peft"] * ("use_peft" in self.flat)
            if is_named and self.flat.get("use_peft") is not True:
                self.notes.append("TRL trains all weights, not LoRA, without use_peft: true")
            return self.flat.get("use_peft") is True
        if kind not in (None, "lora", "qlora", "full"):
            self.notes.append(f"{kind} is computed as training of all weights, which needs more")
        is_usual = self.tool == FACTORY or (is_named and self.tool != "axolotl")
        return kind in ("lora", "qlora") or (kind is None and is_usual)

    def default(self, name: str, keys: Iterable[str]) -> Any:
        value = DEFAULTS.get(self.tool, {}).get(name)
        if name == "checkpointing" and self.tool == FACTORY:
            refused = [key for key in DISABLED if self.flat.get(key) is True]
        else:
            refused = [key for key in keys if self.flat.get(key) is False]
        if value is not None and refused:
            self.used += refused
            return False
        if value is not None:
            self.assumed[name] = IN_WORDS[name](value)
        return value

    def count(self, name: str, value: Any) -> int | None:
        if isinstance(value, int) and value > 0:
            return value
        self.notes.append(
            f"{name} is {str(value)[:40]!r}; expected a whole number, so it is ignored"
        )
        return None

    def optimizer(self, value: Any) -> str | None:
        name = OPTIMIZERS.get(str(value).lower())
        if name == "adamw" and self.take("optimizer.fused") is True:
            name = "adamw-fused"
        if name is None:
            self.notes.append(f"optimizer {str(value)[:40]!r} is not known; adamw is assumed")
        return name

    def attention(self, value: Any) -> str | None:
        name = ATTENTION.get(str(value).lower())
        if name != "flash":
            return name
        self.notes.append("flash attention is computed by PyTorch's own, which saves the same")
        return "sdpa"

    def targets(self, value: Any) -> str | None:
        names = ",".join(value) if isinstance(value, list) else str(value)
        return None if names in ("all", "all-linear") else names

    def dtype(self, stage: Any, *, has_lora: bool) -> str | None:
        whole = WHOLE.get(str(self.take(*TYPES)).removeprefix("torch."))
        is_pure = self.take("pure_bf16") is not None
        half = "bf16" if is_pure else self.half()
        if whole in ("bf16", "fp16"):
            half = whole
        is_factory, is_trl = self.tool == FACTORY, self.tool == "TRL"
        if half is None:
            usual = ("bf16" if has_lora else "fp32") if is_factory else None
            whole = whole or usual
        elif stage is not None and not has_lora:
            # DeepSpeed keeps 32-bit weights and states, whatever the type of the model.
            self.assumed["dtype"] = "fp32 master weights of DeepSpeed"
            if stage == 3:
                counted = "; --zero 3 --data-parallel N without --config counts them"
                self.warnings.append(
                    "the answer is too low by the 16-bit weights and gradients of ZeRO 3, 4 "
                    f"bytes a parameter over all GPUs{counted * (not self.reference)}"
                )
            return f"autocast-{half}"
        elif self.tool in ("axolotl", "torchtune") or is_pure or (is_factory and has_lora):
            whole = whole or half
        elif whole is None and (is_factory or is_trl):
            self.assumed["dtype"] = "weights in fp32"
        if whole is not None and self.tool and not self.flat.keys() & set(TYPES):
            self.assumed["dtype"] = f"{'frozen ' * has_lora}weights in {whole}"
        if half is not None and whole in (None, "fp32"):
            return f"autocast-{half}"
        return whole

    def half(self) -> str | None:
        # The type of --bf16, --fp16 and autocast.
        mixed = str(self.take("mixed_precision"))
        for name in ("bf16", "fp16"):
            if self.take(name, f"{name}.enabled") is not None or mixed == name:
                filled = f"deepspeed.{name}.enabled"
                self.used += [filled] * (self.flat.get(filled) in ("auto", True))
                return name
        for name in ("bf16", "fp16"):
            # A file of DeepSpeed alone lacks the trainer's options, which decide this.
            if self.flat.get(f"{name}.enabled") == "auto":
                self.used.append(f"{name}.enabled")
                self.assumed["dtype.half"] = (
                    f'{name} for "auto", as the trainer passes with --{name}'
                )
                return name
        if self.tool in ("axolotl", "TRL") and self.flat.get("bf16") is not False:
            self.used += ["bf16"] * ("bf16" in self.flat)
            self.assumed["dtype.half"] = "bf16: true"
            return "bf16"
        return None

    def quant(self) -> str | None:
        is_torchtune = "qlora" in str(self.flat.get("model._component_"))
        if self.take("load_in_4bit") or self.take("quantization_bit") == 4 or is_torchtune:
            if self.tool in ("axolotl", FACTORY):
                self.assumed.pop("dtype", None)
                self.notes.append(
                    "embeddings, norms and logits are counted in 32 bits, as peft prepares "
                    f"weights in 4 bits; {self.tool} keeps 16 bits, which need less"
                )
            named = self.take(*DOUBLE)
            is_refused = any(self.flat.get(key) is False for key in DOUBLE)
            if named is None and self.tool in ("axolotl", FACTORY, "torchtune") and not is_refused:
                self.assumed["quant"] = "4-bit scales quantized"
                return "nf4-double"
            return "nf4-double" if named else "nf4"
        if self.take("load_in_8bit", "quantization_bit") not in (None, 4):
            self.notes.append("weights in 8 bits are not computed; 16 bits are counted")
        return None

    def parallel(self, stage: Any) -> str | None:
        kind = str(self.take("distributed_type")).lower()
        if self.take(*OFFLOADS) is not None:
            self.notes.append("offloading to host memory is not computed, which needs less")
        if stage in (1, 2):
            self.notes.append(
                f"ZeRO {stage} is computed as DistributedDataParallel, which needs more"
            )
        if self.take("fsdp", "fsdp_config.fsdp_version") or kind == "fsdp" or stage == 3:
            return "fsdp"
        return "ddp" if kind == "multi_gpu" or stage in (1, 2) else None

    def method(self) -> str:
        """Return the kind of training in lower case, such as "dpo"; "" for supervised training."""
        named = str(self.take("stage", "rl") or "").lower()
        if named == "dpo" and self.flat.get("pref_loss") in ALONE:
            named = str(self.take("pref_loss"))
        if named not in ("", "sft", "pt"):
            return named
        if self.take("reward_model") is True:
            return "reward"
        if "DPOLoss" in str(self.flat.get("loss._component_")):
            self.take("loss._component_")
            return "dpo"
        pairs, named_by = pairs_of_trl(self.flat) if self.tool == "TRL" else ("", ())
        for name, keys in METHODS:
            if name == "dpo" and pairs:
                self.used += named_by
                return pairs
            if self.tool in ("TRL", "torchtune", TRAINER, "") and self.take(*keys) is not None:
                return name
        return ""

    def sequences(self, has_lora: bool) -> int:
        """Return the number of sequences in each example, and note how the training is computed.

        The result is 2 for pairs of sequences, but 1 if the task has a reference model: then its
        batch counts pairs.
        """
        method = self.method()
        if not method:
            return 1
        name, is_before = method.upper(), self.take("precompute_ref_log_probs") is not None
        if method not in (*REFERRING, *ALONE):
            self.warnings.append(
                f"{name} is answered as supervised training, which is too low: "
                f"{UNCOUNTED.get(method, 'generation, and reference and reward models are')} "
                "not counted"
            )
            return 1
        pairs = "supervised training on pairs (--batch counts pairs, --find batch sequences)"
        if method in ALONE or is_before:
            before = "; the reference is computed before" * is_before
            self.notes.append(f"{name} is answered as {pairs}{before}")
            return 2
        if not self.trains_decoder():
            self.warnings.append(
                f"{name} is answered as {pairs}, which is too low: the reference model is counted "
                "only for a decoder of text"
            )
            return 2
        is_copy = self.take("ref_model", "rl_adapter_ref_model") is not None or not has_lora
        self.reference = "copy" if is_copy else "adapter"
        what = "a frozen copy of the model" if is_copy else "the model without its adapters"
        self.notes.append(f"{name} is computed with {what} as reference; a batch counts pairs")
        return 1

    def trains_decoder(self) -> bool:
        name = self.model or self.take(*KEYS["model"])
        try:
            return name is None or is_decoder(model_of(str(name)))
        except ConfigError:
            return True  # an unknown model is refused later
