"""Options of serving engines that change their memory, and vLLM's defaults for a release and GPU.

Options that do not change the GPU's memory are listed in a note to the user.  Any other option that
no formula uses is refused, because the answer could be wrong without it.
"""

# Sources: vLLM, `EngineArgs` and its defaults by usage context and card, and "Conserving Memory";
# SGLang, "Server Arguments"; llama.cpp, tools/server/README.md; TensorRT-LLM, trtllm-serve. vLLM's
# logs show that its fraction includes CUDA graphs from 0.21 on, and that its default is 0.92 in
# 0.22. The default of 0.21 is not known.

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from allocsim.errors import ConfigError
from allocsim.units import GIB

NEWEST = {"vllm": (0, 33)}
"""Release (major, minor) of an engine that is assumed if the user gives none."""
WITH_GRAPHS = (0, 21)
"""First release of vLLM that subtracts the estimated memory of CUDA graphs from the KV cache."""
OLD_MEMORY = (0, 7)
"""First release of vLLM that does not count the CUDA context as memory outside PyTorch."""
_FIRST_V1, _LAST_V0 = (0, 8), (0, 10)
"""First release of vLLM with the V1 engine by default, and first release without the V0 engine."""
_WITH_GRAPH_SIZES = (0, 11)
"""Last release of vLLM with --cuda-graph-sizes in place of --max-cudagraph-capture-size."""

_LARGE_CARD = 70 * GIB
_HUGE_CARD = 160 * GIB
_MOST = 1 << 24
_UNITS = {"": 1, "k": 1000, "K": 1 << 10, "m": 10**6, "M": 1 << 20}
_ARGUMENT = re.compile(r"(?!-)|-\d+(\.\d+)?$")
"""Pattern for the beginning of a word that is the value of an option, such as "-1"."""
_VERSION = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?:\.\S*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of a server that affect its memory; None means the engine's default.

    version: release of the engine as major and minor number.
    fraction: gpu_memory_utilization, mem_fraction_static or free_gpu_memory_fraction.
    longest: maximum number of tokens in a sequence, including its prompt.
    sequences: maximum number of sequences that are served at the same time.
    chunk: maximum number of tokens in one forward pass.
    captured: largest batch for which a CUDA graph is captured.
    is_eager: True if no CUDA graph is captured.
    is_offline: True if the engine is used from Python, as `LLM()`, and not as a server.
    has_text_only: True if the server loads no image encoder.
    has_flash: True with flash attention, False without it.
    kv_type: type of keys and values, one of `KV_TYPES`.
    weights: format to which the engine quantises 16-bit weights when it loads them.
    method: method of quantization that the weights already have, such as "awq_marlin".
    ignored: options that do not change the GPU's memory.
    window_share: SGLang's swa_full_tokens_ratio: number of tokens in the KV cache of layers with a
        sliding window, divided by that in the cache of other layers.
    cards: number of GPUs that share each layer (tensor parallelism).
    gpu_layers: number of layers on the GPU.
    """

    version: tuple[int, int] | None = None
    fraction: float | None = None
    longest: int | None = None
    sequences: int | None = None
    chunk: int | None = None
    captured: int | None = None
    is_eager: bool | None = None
    is_offline: bool | None = None
    has_text_only: bool | None = None
    has_flash: bool | None = None
    kv_type: str | None = None
    weights: str | None = None
    method: str | None = None
    ignored: tuple[str, ...] | None = None
    window_share: float | None = None
    cards: int | None = None
    gpu_layers: int | None = None

    def over(self, other: ServerOptions) -> ServerOptions:
        """Return a copy of these options with each None replaced by the value of `other`."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(other, **{name: value for name, value in given.items() if value is not None})


DEFAULTS = ServerOptions()
"""Options of a server that is started without any option."""


def version_of(text: str) -> tuple[int, int]:
    """Return (major, minor) of a release such as "v0.26.1rc1".

    Raises ConfigError if the text is not a release.
    """
    found = _VERSION.match(text)
    if found is None:
        raise ConfigError(f"release {text[:40]!r} is not known; expected a number such as 0.12")
    return int(found[1]), int(found[2])


def options_in(text: str, server: str) -> ServerOptions:
    """Parse the options of a server's command line.

    text: options, such as "--max-model-len 8192".
    server: name of the engine, such as "vllm".

    Raises ConfigError for a wrong value, and for an option without a formula that may change the
    memory.
    """
    table = _OPTIONS.get(server)
    if table is None:
        raise ConfigError(f"the formula of {server} has no server options; omit them")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"server options {text[:80]!r}: {error}") from None
    given, others = _read(words, table, server)
    _refuse([each for each in others if each not in _IGNORED[server]], server)
    if others:
        given["ignored"] = tuple(dict.fromkeys(others))
    if len(both := [each for each in text.split() if each in _CACHE_TYPES]) == 1:
        raise ConfigError(f"{both[0]} needs the same type for keys and values; give both options")
    return ServerOptions(**given)  # type: ignore[arg-type]


def _read(
    words: list[str], table: Mapping[str, tuple[str, str]], server: str
) -> tuple[dict[str, object], list[str]]:
    # The second result has the options that are not in `table`, without their values.
    given: dict[str, object] = {}
    others: list[str] = []
    stray: list[str] = []
    while words:
        if _ARGUMENT.match(words[0]):
            stray.append(words.pop(0)[:60])
            continue
        option, is_joined, value = words.pop(0).partition("=")
        plain = option.replace("_", "-") if option.startswith("--") else option
        if plain not in table:
            others.append(plain[:60])
            most = 0 if is_joined else _most_values(plain, server)
            while most and words and _ARGUMENT.match(words[0]):
                words.pop(0)
                most -= 1
            continue
        name, read = table[plain]
        if read == _FLAG:
            if is_joined:
                raise ConfigError(f"{option} has no value; omit {value[:40]!r}")
            found: object = True
        else:
            if not is_joined:
                if not words:
                    raise ConfigError(f"{option} of {server} needs a value")
                value = words.pop(0)
            if read == _FORMAT and value in _METHODS:
                name, read = "method", _METHOD
            found = _value(option, value, read)
        if found is not None and given.setdefault(name, found) != found:
            raise ConfigError(f"{option} {value[:40]} contradicts an earlier option")
    if stray:
        belong, them = ("belongs", "it") if len(stray) == 1 else ("belong", "them")
        named = ", ".join(map(repr, stray))
        raise ConfigError(f"{named} {belong} to no option of {server}; omit {them}")
    return given, others


def _most_values(option: str, server: str) -> int:
    """Return the largest number of words that `option`, which no formula uses, has as values."""
    if option not in _IGNORED[server] or (server, option) in _WITH_VALUES:
        return sys.maxsize
    return 0 if option in _WITHOUT_VALUE else 1


def _refuse(unknown: Iterable[str], server: str) -> None:
    names = ", ".join(map(repr, dict.fromkeys(unknown)))
    if names:
        used = ", ".join(name for name in _OPTIONS[server] if name.startswith("--"))
        them = "them" if ", " in names else "it"
        raise ConfigError(
            f"{names} may change the memory, and the formula of {server} does not use {them}; "
            f"omit {them}, or use one of {used}"
        )


def is_stored_as(method: str, weights: str) -> bool:
    """Return True if a quantization method of an engine can read weights of a format.

    method: value of --quantization, such as "awq_marlin".
    weights: format of the weights, such as "awq-int4".
    """
    return weights.startswith(_METHODS[method])


_FLAG, _COUNT, _FRACTION = "flag", "count", "fraction"
_KIND, _FORMAT, _SWITCH, _METHOD, _DTYPE = "kind", "format", "switch", "method", "dtype"
_KINDS = {
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"), "fp8"),
    **{"auto": None, "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "half": "fp16"},
    **{"f16": "fp16", "f32": "fp32", "float32": "fp32", "fp16": "fp16", "fp32": "fp32"},
    **{name: name for name in ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")},
}
"""Dictionary from the value of an engine's option to the type of the KV cache; None for the model's
own type."""
_FORMATS = {"fp8": "fp8", "bitsandbytes": "nf4", "w8a8_fp8": "fp8"}
"""Dictionary from the value of --quantization to the format to which an engine converts 16-bit
weights when it loads them."""
_METHODS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("awq", "awq_marlin"), ("awq-",)),
    **dict.fromkeys(("gptq", "gptq_marlin", "auto-round", "inc"), ("gptq-",)),
    "moe_wna16": ("awq-", "gptq-"),
    "compressed-tensors": ("gptq-", "int8", "fp8", "nvfp4"),
    "modelopt": ("fp8", "nvfp4", "awq-"),
    **dict.fromkeys(("modelopt_fp4", "nvfp4"), ("nvfp4",)),
    "mxfp4": ("mxfp4",),
}
"""Dictionary from a quantization method to the beginnings of the names of formats that it reads;
these methods convert no other weights."""
_DTYPES = dict.fromkeys(("auto", "half", "float16", "bfloat16"))
"""Values of --dtype with which activations, keys and values have 16 bits, the default."""
_CACHE_TYPES = ("--cache-type-k", "-ctk", "--cache-type-v", "-ctv")
"""Options of llama.cpp for the types of keys and of values; the formula requires equal types."""
_SWITCHES: dict[str, object] = {
    **dict.fromkeys(("on", "1", "true"), True),
    **dict.fromkeys(("off", "0", "false"), False),
}
_NAMES: dict[str, Mapping[str, object]] = {
    **{_KIND: _KINDS, _FORMAT: _FORMATS, _SWITCH: _SWITCHES, _DTYPE: _DTYPES},
    _METHOD: {name: name for name in _METHODS},
}
"""For each kind of option whose values are names: a dictionary from a name, such as "on", to its
meaning."""


def _value(option: str, text: str, read: str) -> object:
    if read == _COUNT:
        found = re.fullmatch(r"(\d{1,9})([kKmM]?)", text)
        least = 0 if "layers" in option or option == "-ngl" else 1
        if found and least <= (count := int(found[1]) * _UNITS[found[2]]) <= _MOST:
            return count
        raise ConfigError(f"{option} {text[:40]!r}: expected a whole number, {least} to {_MOST:,}")
    if read == _FRACTION:
        try:
            fraction = float(text)
        except ValueError:
            fraction = 0
        if 0 < fraction <= 1:
            return fraction
        raise ConfigError(f"{option} {text[:40]!r}: expected a number above 0, at most 1")
    names = _NAMES[read]
    if text not in names and not (read == _SWITCH and text == "auto"):
        raise ConfigError(f"{option} {text[:40]!r} has no formula; expected {', '.join(names)}")
    return names.get(text)


_OPTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "vllm": {
        "--gpu-memory-utilization": ("fraction", _FRACTION),
        "--max-model-len": ("longest", _COUNT),
        "--max-num-seqs": ("sequences", _COUNT),
        "--max-num-batched-tokens": ("chunk", _COUNT),
        "--max-cudagraph-capture-size": ("captured", _COUNT),
        "--cuda-graph-sizes": ("captured", _COUNT),  # up to 0.11
        "--enforce-eager": ("is_eager", _FLAG),
        "--language-model-only": ("has_text_only", _FLAG),
        "--kv-cache-dtype": ("kv_type", _KIND),
        **dict.fromkeys(("--quantization", "-q"), ("weights", _FORMAT)),
        "--dtype": ("kv_type", _DTYPE),
        **dict.fromkeys(("--tensor-parallel-size", "-tp"), ("cards", _COUNT)),
    },
    "sglang": {
        "--mem-fraction-static": ("fraction", _FRACTION),
        "--context-length": ("longest", _COUNT),
        "--max-running-requests": ("sequences", _COUNT),
        "--chunked-prefill-size": ("chunk", _COUNT),
        "--cuda-graph-max-bs": ("captured", _COUNT),
        "--disable-cuda-graph": ("is_eager", _FLAG),
        "--kv-cache-dtype": ("kv_type", _KIND),
        "--quantization": ("weights", _FORMAT),
        "--dtype": ("kv_type", _DTYPE),
        "--swa-full-tokens-ratio": ("window_share", _FRACTION),
        **dict.fromkeys(("--tp-size", "--tensor-parallel-size", "--tp"), ("cards", _COUNT)),
    },
    "tensorrt-llm": {
        "--kv-cache-free-gpu-memory-fraction": ("fraction", _FRACTION),
        "--max-num-tokens": ("chunk", _COUNT),
        "--tp-size": ("cards", _COUNT),
    },
    "llama.cpp": {
        **dict.fromkeys(("--ctx-size", "-c"), ("longest", _COUNT)),
        **dict.fromkeys(("--parallel", "-np"), ("sequences", _COUNT)),
        **dict.fromkeys(("--ubatch-size", "-ub"), ("chunk", _COUNT)),
        **dict.fromkeys(("--n-gpu-layers", "-ngl"), ("gpu_layers", _COUNT)),
        **dict.fromkeys(("--flash-attn", "-fa"), ("has_flash", _SWITCH)),
        **dict.fromkeys(_CACHE_TYPES, ("kv_type", _KIND)),
    },
}
"""For each engine, a dictionary from an option that the formulas use to a pair (field of
`ServerOptions`, kind of value)."""

_OF_WEB = (
    *("--host", "--port", "--api-key", "--served-model-name", "--trust-remote-code", "--tokenizer"),
    *("--chat-template", "--tool-call-parser", "--reasoning-parser", "--log-level"),
)
_OF_FILES = ("--revision", "--tokenizer-mode", "--tokenizer-revision", "--download-dir")
_IGNORED: dict[str, frozenset[str]] = {
    "vllm": frozenset((
        *(*_OF_WEB, *_OF_FILES, "--code-revision", "--enable-auto-tool-choice", "--seed"),
        *("--enable-reasoning", "--disable-log-requests", "--enable-log-requests", "--root-path"),
        *("--disable-log-stats", "--swap-space", "--chat-template-content-format"),
        *("--uvicorn-log-level", "--disable-uvicorn-access-log", "--allowed-origins"),
        *("--ssl-keyfile", "--ssl-certfile", "--generation-config", "--response-role"),
    )),
    "sglang": frozenset((
        *(*_OF_WEB, *_OF_FILES, "--tokenizer-path", "--random-seed", "--log-requests"),
        *("--enable-metrics", "--show-time-cost", "--skip-server-warmup", "--watchdog-timeout"),
    )),
    "tensorrt-llm": frozenset((*_OF_WEB, "--tool-parser")),
    "llama.cpp": frozenset((
        *("--host", "--port", "--alias", "-a", "--api-key", "--threads", "-t", "--threads-batch"),
        *("-tb", "--jinja", "--chat-template", "--chat-template-file", "--metrics", "--slots"),
        *("--timeout", "-to", "--temp", "--top-k", "--top-p", "--min-p", "--seed", "-s"),
        *("--no-webui", "--repeat-penalty", "--log-file", "--log-disable", "--verbose", "-v"),
        *("--predict", "-n", "--reasoning-format", "--numa", "--prio"),
    )),
}  # fmt: skip
"""For each engine, the options that do not change the GPU's memory."""

_WITHOUT_VALUE = frozenset((
    *("--trust-remote-code", "--enable-auto-tool-choice", "--enable-reasoning", "--log-requests"),
    *("--disable-log-requests", "--enable-log-requests", "--disable-log-stats", "--jinja", "-v"),
    *("--disable-uvicorn-access-log", "--enable-metrics", "--show-time-cost", "--metrics"),
    *("--skip-server-warmup", "--slots", "--no-webui", "--log-disable", "--verbose"),
))  # fmt: skip
_WITH_VALUES = frozenset((("vllm", "--served-model-name"), ("vllm", "--api-key")))
"""Ignored options that have no value, and pairs (engine, ignored option) that may have several."""


def of_vllm(
    options: ServerOptions, memory: int, card: str = "", capability: tuple[int, int] = (8, 0)
) -> ServerOptions:
    """Replace each None in `options` by vLLM's default on a GPU of `memory` bytes.

    card: name of the GPU; an A100 has the defaults of smaller GPUs.
    capability: compute capability of the GPU; below 8.0, releases up to 0.9 run the V0 engine.
    """
    version = options.version or NEWEST["vllm"]
    is_large = memory >= _LARGE_CARD and "A100" not in card.upper()
    is_huge = memory >= _HUGE_CARD and version >= (0, 28)
    if version < _FIRST_V1 or (version < _LAST_V0 and capability < (8, 0)):
        sequences, chunk = 256, 2048
        if options.longest is not None and options.longest <= 1 << 15:  # prompts are not divided
            chunk = max(options.longest, chunk)
    elif is_large or is_huge:
        sequences, chunk = 1024, 16384 if options.is_offline or is_huge else 8192
    else:
        sequences, chunk = 256, 8192 if options.is_offline else 2048
    sequences = options.sequences or sequences
    if options.longest is not None and options.chunk is None:
        chunk = min(chunk, sequences * options.longest)
    chunk = options.chunk or chunk
    return options.over(
        ServerOptions(
            version=version,
            fraction=0.92 if version >= WITH_GRAPHS else 0.9,
            sequences=min(sequences, chunk),
            chunk=chunk,
            captured=min(2 * sequences, 512),
            is_eager=False,
        )
    )


def options_again(options: ServerOptions, server: str) -> str:
    """Return the options as command-line text for `server`, such as " --enforce-eager".

    Options for the memory fraction, lengths, number of sequences and number of GPUs are left out.
    """
    own = ("fraction", "longest", "sequences", "cards", "gpu_layers")
    names: dict[str, tuple[str, str]] = {}
    for option, (name, read) in _OPTIONS[server].items():
        names.setdefault(name, (option, read))
    if server == "vllm" and (options.version or NEWEST[server]) <= _WITH_GRAPH_SIZES:
        names["captured"] = "--cuda-graph-sizes", _COUNT
    words = []
    for name, (option, read) in names.items():
        value = getattr(options, name)
        if name in own or value is None:
            continue
        texts = (text for text, meant in _NAMES.get(read, {}).items() if meant == value)
        text = str(next(texts, value))
        words += [option] if read == _FLAG else [option, text]
        words += ["--cache-type-v", text] if option == "--cache-type-k" else []
    return "".join(f" {word}" for word in words)
