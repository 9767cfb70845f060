"""The line that puts a setting in force, for each shell and for Python.

Rule: a line is complete: pasted as it stands, before the program starts, it sets what was
replayed and nothing else; a memory fraction that only a call can set is a line of its own.
"""

from __future__ import annotations

import shlex

from allocsim.tuning.setting import Setting

__all__ = ["environment", "paste_lines"]

_NAME = "PYTORCH_CUDA_ALLOC_CONF"


def environment(setting: Setting) -> str:
    """`NAME=value`, as an env file or a container takes it."""
    return f"{_NAME}={setting.conf}"


def paste_lines(setting: Setting) -> dict[str, str]:
    """By shell: "bash", "powershell", "cmd", "python", and "call" if there is one to make."""
    conf = setting.conf
    if conf:
        quoted = conf.replace("'", "''")
        lines = {
            "bash": f"export {_NAME}={shlex.quote(conf)}",
            "powershell": f"$env:{_NAME} = '{quoted}'",
            "cmd": f'set "{environment(setting)}"',
            "python": f'os.environ["{_NAME}"] = "{conf}"',
        }
    else:
        lines = {
            "bash": f"unset {_NAME}",
            "powershell": f"Remove-Item Env:{_NAME}",
            "cmd": f'set "{_NAME}="',
            "python": f'os.environ.pop("{_NAME}", None)',
        }
    if setting.call_fraction is not None:
        fraction = f"{setting.call_fraction:g}"
        lines["call"] = f"torch.cuda.set_per_process_memory_fraction({fraction})"
    return lines
