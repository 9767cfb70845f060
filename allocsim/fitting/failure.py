"""Reason why a program ended early, in one sentence.

Rule: an error in the model's description is reported with its file and entry. Any other error is
reported in the last words that Python printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from allocsim.fitting.model import Configured, Model, UserModel

_LONGEST = 300
_ERROR = re.compile(r"^(?:(?:\w+\.)+([A-Z]\w*)|(\w*(?:Error|Exception|Interrupt|Exit))): (.*)")
"""Last line of a traceback: the exception's class, with its module unless it is built in."""
_PLACE = re.compile(r'^\s*File "(.+)", line (\d+)')
_NOT_A_MODEL = re.compile(r"'(\w+)' object has no attribute 'to'$")
_LAST_NAME = re.compile(r"'([^']+)'$")
_UNKNOWN_TYPE = "does not recognize this architecture"
_OWN_CODE = (_UNKNOWN_TYPE, "custom code", "trust_remote_code")
_UNKNOWN_HEAD = "Unrecognized configuration class"


def why_it_failed(log: str, exit_code: int, when: str, model: Model | None = None) -> str:
    """Return a sentence on the reason why a program failed, from the error that it printed last.

    log: output and errors of the program.
    exit_code: exit code of the program.
    when: progress of the program, such as "before its end".
    model: model that the program was to run; None for a user's own program.
    """
    lines = log.splitlines()
    # The last exception ended the program; earlier ones may have been handled.
    for number, line in reversed(list(enumerate(lines))):
        found = _ERROR.match(line.strip())
        if found:
            kind, text = found[1] or found[2], found[3]
            sentence = _model_error(model, kind, text)
            if sentence is not None:
                return sentence
            where = _place(lines[:number]) if kind == "SyntaxError" else ""
            return f"the program ended {when}, with {kind}: {text[:_LONGEST]}{where}"
    last = log.strip().splitlines()[-1:] or ["it printed nothing"]
    return f"the program ended {when}, with exit code {exit_code}: {last[0][:_LONGEST]}"


def _place(lines: list[str]) -> str:
    """Return the last file and line in the traceback that `lines` contain; "" without one."""
    places = [found for found in map(_PLACE.match, lines) if found]
    return f" ({places[-1][1]}, line {places[-1][2]})" if places else ""


def _model_error(model: Model | None, kind: str, text: str) -> str | None:
    """Return a sentence on the wrong part of the model's description, or None if no part is wrong.

    kind, text: class and message of the exception.
    """
    if isinstance(model, UserModel):
        returned = _NOT_A_MODEL.search(text)
        if kind == "AttributeError" and returned:
            what = f"{model.name} returned {returned[1]}"
            return f"{what}; expected a model, or a model and a batch"
    if isinstance(model, Configured) and model.path is not None:
        return _file_error(model, model.path, kind, text)
    return None


def _file_error(model: Configured, path: str, kind: str, text: str) -> str | None:
    model_type = model.config["model_type"]
    if "auto_map" in model.config and any(each in text for each in _OWN_CODE):
        what = f"{path}: {model_type} needs custom code (auto_map), which is not fetched"
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
    """Yield the keys and values of a configuration, with nested keys as "section.key".

    before: prefix of the keys.
    """
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _entries(value, f"{before}{key}.")
        else:
            yield before + key, value
