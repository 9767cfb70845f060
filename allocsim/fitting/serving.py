"""Verdict by formula, without a run, on whether a model in a serving engine fits a card.

A number of bytes that is not known exactly is a range; "fits" means that its upper end fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from allocsim._repr import Shown
from allocsim.errors import ConfigError
from allocsim.fitting.formulas import (
    AS_LOGGED,
    BASES,
    DEFAULTS,
    LARGE_WORKSPACE,
    WORKSPACE,
    Logged,
    ModelSizes,
    Needs,
    ServerOptions,
    ServingWork,
    Weights,
    bytes_a_token,
    format_in,
    gguf_sizes,
    is_stored_as,
    llama_cpp,
    ollama,
    read_gguf,
    read_safetensors,
    sglang,
    shapes_of,
    sizes_of,
    sizes_of_rank,
    tensorrt_llm,
    transformers,
    unconverted_in,
    vllm,
    weights_in,
    weights_of,
    weights_of_rank,
)
from allocsim.fitting.model import Configured, model_of
from allocsim.fitting.presets import encoder_parameters, format_words, hub_name
from allocsim.fitting.published import UNSLOTH_NOTE, named_format, published_format
from allocsim.fitting.task import DEFAULT_TOKENS, START_TOKENS
from allocsim.phantom import CARDS, Gpu, context_seen
from allocsim.units import GIB, MIB, format_range, format_size

SERVERS: dict[str, Callable[[ServingWork], Needs]] = {
    "transformers": transformers,
    "vllm": vllm,
    "sglang": sglang,
    "tensorrt-llm": tensorrt_llm,
    "llama.cpp": llama_cpp,
    "ollama": ollama,
}
"""Dictionary from the name of each serving engine to the function that estimates its memory."""

_GGML_SERVERS = ("llama.cpp", "ollama")
_PARALLEL_SERVERS = ("vllm", "sglang", "tensorrt-llm")
_IN_16_BITS = {"fp16": "fp16", "f16": "fp16", "bf16": "bf16"}
"""16-bit type indicated by a word of a model's name, such as Ollama's "8b-instruct-fp16"."""
_AS_GGML = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}
_MOST_TOKENS = 1 << 24
_NAMES = frozenset(card.name for card in CARDS.values())
_DRIVERS = (-32 * MIB, 192 * MIB)
"""Range, in bytes, of the capacity that a card's driver reports minus the capacity in `CARDS`.

The range is from posted logs, where drivers report different capacities for the same card."""
_ROUNDED = (-0.005 * GIB, 0.005 * GIB)
"""Rounding error, in bytes, of a number in GiB with two decimals."""


@dataclass(frozen=True, slots=True)
class ServedMemory:
    """Model with its weights in the format that a serving engine loads.

    source: origin of the sizes of the weights, such as "its configuration".
    encoder: number of parameters of an image encoder that is published with the model, or 0.
    address: file or name on the Hugging Face hub, as in the printed server command.
    notes: assumptions about the weights, one sentence each.
    """

    name: str
    sizes: ModelSizes
    weights: Weights
    source: str
    address: str = ""
    encoder: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Served(Shown):
    """Verdict on whether a card has the memory that a serving engine needs for a model.

    held: the model with its weights.
    work: sequences to serve; with several cards, its sizes and weights are one card's share.
    needs: memory that the engine needs on each card and on the host.
    """

    held: ServedMemory
    gpu: Gpu
    work: ServingWork
    needs: Needs

    @property
    def fits(self) -> bool:
        """True if the upper end of the memory fits the card, and the start is not in doubt.

        Reasons for doubt are in `needs.doubt` and in `refusal`.
        """
        return self.needs.high <= self.gpu.memory and not self.needs.doubt and not self.refusal

    @property
    def may_fit(self) -> bool:
        """True if the lower end of the memory fits, and the engine's log shows no failed start."""
        return self.needs.low <= self.gpu.memory and not self.refusal

    @property
    def refusal(self) -> str:
        """Reason, read from the engine's log, why it did not start with these options.

        "" if it started, or if no log was given.
        """
        return self.work.logged.refusal

    def headline(self) -> str:
        name, memory = self.gpu.name, self.gpu.memory
        if self.work.cards > 1:
            name = f"{self.work.cards} of {name}"
        if self.fits:
            spare = format_range(memory - self.needs.high, memory - self.needs.low)
            return f"fits {name} with {spare} to spare{self._each}"
        if self.refusal and self.needs.low <= memory:
            return f"did not start with the options of the log: {self.refusal}"
        if self.needs.doubt and self.needs.high <= memory:
            return f"may not fit {name}: {self.needs.doubt}"
        needed = format_range(self.needs.low, self.needs.high)
        of = f"{needed} of {format_size(memory)}{self._each}"
        return f"may not fit {name}: {of}" if self.may_fit else f"does not fit {name}: {of}"

    @property
    def _each(self) -> str:
        return " on each" if self.work.cards > 1 else ""

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        for part in self.needs.parts:
            yield part.name, format_range(part.low, part.high)


def held_of(text: str, server: str, weights: str | None = None) -> ServedMemory:
    """Return the model that `text` names, with its weights in the format that `server` loads.

    text: text that `model_of` accepts, a .gguf or .safetensors file, or a folder of .safetensors
        files with their config.json.
    server: one of `SERVERS`.
    weights: a format of `FORMATS`. Default: the format of the file, of the configuration, or of
        the model's name, such as "-AWQ"; else 16 bits. llama.cpp and Ollama have the default
        Q4_K_M for a model without a .gguf file.
    """
    place = Path(text)
    if place.suffix == ".gguf":
        if server not in _GGML_SERVERS or weights is not None:
            raise ConfigError(
                f"{text[:80]}: a GGUF file cannot be converted; expected llama.cpp or ollama"
            )
        file = read_gguf(place)
        sizes = gguf_sizes(place, file)
        return ServedMemory(
            place.stem, sizes, weights_in(file.tensors, "as in the file"), "its header", text
        )
    is_folder = place.is_dir() and any(place.glob("*.safetensors"))
    if place.suffix == ".safetensors" or (is_folder and weights is None):
        return _from_tensors(place, server)
    model = model_of(text)
    if not isinstance(model, Configured):
        raise ConfigError(f"{model.name} is not a language model with a configuration")
    if not model.writes:
        raise ConfigError(f"{model.name} answers no prompts; serving is for language models")
    sizes = sizes_of(model.config)
    if sizes.encoder is not None and server != "transformers":
        raise ConfigError(
            f"the formula of {server} has no encoder, which {model.name} has; "
            "--server transformers computes it"
        )
    kept: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    if weights is None and model.path is None:
        weights, notes = _named_weights(text, server)
    elif weights is None and server not in _GGML_SERVERS:
        weights = format_in(model.config)
        kept = {"is_unconverted": unconverted_in(model.config)}
    found = weights_of(shapes_of(sizes), _format(server, weights), sizes, **kept)
    if found.name == "mxfp4" and not sizes.experts:
        raise ConfigError(f"{text[:80]}: MXFP4 has a formula for experts only; give --weights")
    address = text if model.path or "/" in text else hub_name(model.name)
    encoder = encoder_parameters(model.name) if model.path is None else 0
    source = "its configuration" + ", without its encoder" * ("text_config" in model.config)
    return ServedMemory(model.name, sizes, found, source, address, encoder, notes)


def _named_weights(text: str, server: str) -> tuple[str | None, tuple[str, ...]]:
    named = named_format(text)
    if server not in _GGML_SERVERS:
        found = published_format(text, server)
        if "unsloth-bnb" in text.lower():
            return found, (UNSLOTH_NOTE,)
        guess = f"weights: {named.words!r} in the name is taken as {found}, groups of 128 elements"
        return found, (f"{guess}; --weights gives another format",) * named.is_assumed
    words = format_words(text)
    if named.is_gguf or not named.words:
        plain = next((_IN_16_BITS[word] for word in words if word in _IN_16_BITS), None)
        return named.format or ("Q4_0" if "qat" in words else plain), ()
    return None, (
        f"weights: {named.words!r} in the name is not used, as {server} reads GGUF files; "
        "--weights gives another type than Q4_K_M",
    )


def _from_tensors(place: Path, server: str) -> ServedMemory:
    if server in _GGML_SERVERS:
        raise ConfigError(f"{place}: {server} cannot read safetensors; expected a GGUF file")
    folder = place if place.is_dir() else place.parent
    tensors = read_safetensors(place)
    model = model_of(str(folder / "config.json"))
    assert isinstance(model, Configured)
    weights = weights_in(tensors, "as in the files")
    sizes = sizes_of(model.config)
    return ServedMemory(model.name, sizes, weights, "the files' headers", str(folder))


def _format(server: str, weights: str | None) -> str:
    if server in _GGML_SERVERS:
        name = (weights or "Q4_K_M").upper()
        name = _AS_GGML.get((weights or "").lower(), name)
        if name not in BASES:
            raise ConfigError(f"{server} reads GGUF types; expected one of {', '.join(BASES)}")
        return name
    name = weights or "bf16"
    if server == "transformers" and name.upper() in BASES and name not in _AS_GGML:
        raise ConfigError(f"transformers converts {name} to 16 bits on loading; expected bf16")
    return name


def serve(
    held: ServedMemory,
    server: str,
    gpu: Gpu,
    *,
    batch: int = 1,
    prompt: int | None = None,
    decode: int = 64,
    requests: int = 2,
    kv_type: str = "",
    gpu_layers: int | None = None,
    logged: Logged | None = None,
    cards: int | None = None,
    options: ServerOptions = DEFAULTS,
) -> Served:
    """Return the memory that a serving engine needs to serve a model on `gpu`.

    held: the model with its weights.
    server: one of `SERVERS`.
    batch: sequences at a time, each with `prompt` and `decode` tokens.
    prompt: tokens of a prompt; default: 1,024, or the 4 with which Whisper's decoder starts.
    requests: number of rounds of `batch` sequences, served one after another.
    kv_type: type of keys and values, one of `KV_TYPES`; default: the engine's.
    gpu_layers: number of layers on the GPU for llama.cpp and Ollama; default: all.
    logged: sizes from a start-up log of the engine with this model.
    cards: number of cards that share each layer (tensor parallelism); the answer is for each card.
        Default: that of the options or the log, else 1.
    options: further options of the server, which replace those of the log.

    Raises ConfigError for options that the engine does not have.
    """
    given = ServerOptions(cards=cards, kv_type=kv_type or None, gpu_layers=gpu_layers).over(options)
    if logged is not None:
        logged, given = logged.applied(given)
    cards = given.cards or 1
    hears = held.sizes.encoder is not None and held.sizes.encoder.tokens > 0
    if prompt is None:
        prompt = START_TOKENS if hears else DEFAULT_TOKENS
    counts = {"batch": batch, "prompt": prompt, "decode": decode, "requests": requests}
    _refuse(held, server, given, counts | {"tensor-parallel": cards})
    is_named = gpu.name in _NAMES
    work = ServingWork(
        sizes=held.sizes if cards == 1 else sizes_of_rank(held.sizes, cards),
        weights=held.weights if cards == 1 else weights_of_rank(held.weights, held.sizes, cards),
        cards=cards,
        memory=gpu.memory,
        context=context_seen(gpu),
        batch=batch,
        prompt=prompt,
        decode=decode,
        requests=requests,
        kv_type=given.kv_type or "",
        gpu_layers=given.gpu_layers,
        workspace=WORKSPACE if gpu.capability < (9, 0) else LARGE_WORKSPACE,
        options=given,
        card=gpu.name,
        capability=gpu.capability,
        threads=gpu.threads,
        encoder=(2 * held.encoder // cards, 2 * held.encoder),
        drivers=_DRIVERS if is_named else (0, 0),
    )
    notes = (*gpu.notes, *held.notes, *_ignored(given))
    if logged is None:
        needs = SERVERS[server](work)
        return Served(held, gpu, work, replace(needs, notes=(*notes, *needs.notes)))
    if not work.sizes.windowed and work.sizes.linear is None:
        kind = work.kv_type or ("fp16" if server in _GGML_SERVERS else work.computed_in)
        logged.refuse_other(bytes_a_token(work.sizes, kind), held.name)
    drivers = work.drivers
    if logged.total is not None:
        low, high = (round(logged.total - gpu.memory + each) for each in _ROUNDED)
        drivers = low, high
    work = replace(work, logged=logged, drivers=drivers)
    needs = SERVERS[server](work)
    needs = replace(needs, notes=(*notes, *needs.notes, _from_log(needs, logged)))
    return Served(held, gpu, work, needs)


def _refuse(
    held: ServedMemory, server: str, given: ServerOptions, counts: Mapping[str, int]
) -> None:
    for name, value in counts.items():
        if not 0 < value <= _MOST_TOKENS:
            raise ConfigError(f"{name} {value} is not possible; expected 1 to {_MOST_TOKENS:,}")
    if given.gpu_layers is not None and server not in _GGML_SERVERS:
        raise ConfigError(f"--gpu-layers is for llama.cpp and ollama, not {server}")
    if given.kv_type and server == "transformers":
        raise ConfigError("transformers keeps its cache in the model's type; omit the type")
    if counts["tensor-parallel"] > 1 and server not in _PARALLEL_SERVERS:
        known = ", ".join(_PARALLEL_SERVERS)
        raise ConfigError(f"tensor parallelism is for {known}, not {server}")
    if given.method and not is_stored_as(given.method, held.weights.name):
        raise ConfigError(
            f"--quantization {given.method} reads only weights in that format, and the weights of "
            f"{held.name} are in {held.weights.name}; give the name or config.json of a model in "
            "that format, or --weights"
        )
    tokens, longest = counts["prompt"] + counts["decode"], given.longest
    if held.sizes.encoder is not None and 0 < held.sizes.longest < tokens:
        raise ConfigError(
            f"{held.name} has {held.sizes.longest:,} positions; {tokens:,} tokens are too many"
        )
    if longest and tokens > longest and server not in _GGML_SERVERS:
        raise ConfigError(f"a request of {tokens:,} tokens exceeds the server's {longest:,}")
    if held.sizes.linear is not None and server not in ("vllm", *_GGML_SERVERS):
        raise ConfigError(f"the formula of {server} has no linear attention, which {held.name} has")


def _ignored(given: ServerOptions) -> Iterator[str]:
    if given.ignored:
        yield f"{', '.join(given.ignored)}: ignored, without effect on the memory of the card"


def _from_log(needs: Needs, logged: Logged) -> str:
    names = [part.name for part in needs.parts if part.why == AS_LOGGED]
    if logged.room or logged.pool:
        names.append("room of the cache")
    if logged.options.fraction:
        names.append(f"the fraction of {logged.options.fraction:g}")
    if not names:
        return "the log has no figure for this work"
    return f"from the log: {', '.join(names)}"
