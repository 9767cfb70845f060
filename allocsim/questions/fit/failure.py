"""Why a program ended, in one sentence.

Rule: what the model's description is to blame for is said in its own terms, with its file and the
entry; anything else in the words that Python printed last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from allocsim.questions.fit.model import Configured, Model, UserModel

__all__ = ["why_it_failed"]

_LONGEST = 300
_ERROR = re.compile(r"^(?:(?:\w+\.)+([A-Z]\w*)|(\w*(?:Error|Exception|Interrupt|Exit))): (.*)")
"""What Python prints last of an exception: its class, with its module where that is no built-in."""
_PLACE = re.compile(r'^\s*File "(.+)", line (\d+)')
_NO_MODEL = re.compile(r"'(\w+)' object has no attribute 'to'$")
_LAST_NAME = re.compile(r"'([^']+)'$")
_UNKNOWN_TYPE = "does not recognize this architecture"
_OWN_CODE = (_UNKNOWN_TYPE, "custom code", "trust_remote_code")
_UNKNOWN_HEAD = "Unrecognized configuration class"


def why_it_failed(log: str, exit_code: int, when: str, model: Model | None = None) -> str:
    """What a program printed last, as a sentence.

    log: its output and errors.  when: how far it came, as "before its end".
    model: what it was to run; None for a program of the user's own.
    """
    lines = log.splitlines()
    for number, line in reversed(list(enumerate(lines))):
        found = _ERROR.match(line.strip())
        if found:
            kind, text = found[1] or found[2], found[3]
            blamed = _blamed(model, kind, text)
            if blamed is not None:
                return blamed
            where = _place(lines[:number]) if kind == "SyntaxError" else ""
            return f"the program ended {when}, with {kind}: {text[:_LONGEST]}{where}"
    last = log.strip().splitlines()[-1:] or ["it printed nothing"]
    return f"the program ended {when}, with exit code {exit_code}: {last[0][:_LONGEST]}"


def _place(lines: list[str]) -> str:
    """The file and line that Python named last."""
    places = [found for found in map(_PLACE.match, lines) if found]
    return f" ({places[-1][1]}, line {places[-1][2]})" if places else ""


def _blamed(model: Model | None, kind: str, text: str) -> str | None:
    """The part of the model's description that made the error, in a sentence; None if none did."""
    if isinstance(model, UserModel):
        returned = _NO_MODEL.search(text)
        if kind == "AttributeError" and returned:
            what = f"{model.name} returned {returned[1]}"
            return f"{what}; expected a model, or a model and a batch"
    if isinstance(model, Configured) and model.path is not None:
        return _blamed_in_file(model, model.path, kind, text)
    return None


def _blamed_in_file(model: Configured, path: str, kind: str, text: str) -> str | None:
    model_type = model.config["model_type"]
    if "auto_map" in model.config and any(each in text for each in _OWN_CODE):
        what = f"{path}: {model_type} names code of its own (auto_map), which is not fetched"
        return f"{what}; expected a model_type that the installed transformers knows"
    if _UNKNOWN_TYPE in text:
        return f"{path}: the installed transformers knows no model_type {model_type!r:.80}"
    if _UNKNOWN_HEAD in text:
        return f"{path}: transformers has no {model.head} of model_type {model_type!r:.80}"
    named = _LAST_NAME.search(text)
    if named and kind in ("KeyError", "AttributeError"):
        for key, value in _entries(model.config):
            if value == named[1]:
                return f"{path}: {key} is {value!r:.80}, which transformers does not know"
    return None


def _entries(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every entry of a configuration, those of its sections as "section.key"."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _entries(value, f"{before}{key}.")
        else:
            yield before + key, value
