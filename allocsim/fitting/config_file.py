"""Reader of configuration files in JSON or YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allocsim.errors import ConfigError
from allocsim.fitting.model import bytes_of_config


def parsed_file(file: Path) -> Mapping[str, Any]:
    """Return the keys and values of a JSON or YAML file; ConfigError if it has none."""
    data = bytes_of_config(file)
    found = _as_json(data) if file.suffix == ".json" else _as_yaml(data, file)
    if not isinstance(found, dict):
        raise ConfigError(f"{file} is no configuration; expected JSON or YAML with keys and values")
    return found


def _as_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _as_yaml(data: bytes, file: Path) -> Any:
    try:
        import yaml  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            f"{file} needs PyYAML; pip install 'allocsim[yaml]', or convert it to JSON"
        ) from None
    try:
        return yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError):
        return None
