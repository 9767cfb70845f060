"""Result of `allocsim record`: the files written, and the next command to run."""

from __future__ import annotations

from typing import Any

from allocsim.phantom import ProcessRecording, Recorded, RecordedProgram
from allocsim.replaying import routing_text
from allocsim.report.layout import fields, plural
from allocsim.units import format_size

_UNLESS_EMPTY = "oom=oom_text stopped_by reads_back guessed routing"


def document(program: RecordedProgram, recorded: Recorded) -> dict[str, Any]:
    return {
        "exit_code": recorded.exit_code,
        "recordings": [
            {
                "file": str(process.file),
                "entries": process.entries,
                **{key: found or None for key, found in fields(process, _UNLESS_EMPTY).items()},
            }
            for process in recorded.processes
        ],
        "is_phantom": program.gpu is not None,
        **fields(program, "device_name=gpu.name device_memory=gpu.memory"),
        **fields(program, "context_memory=gpu.context_memory"),
        **fields(recorded, "torch_version=torch.version"),
        "conf": program.conf,
    }


def text(program: RecordedProgram, recorded: Recorded) -> str:
    gpu = program.gpu
    where = f"a phantom {gpu.name}, {format_size(gpu.memory)}" if gpu else "the GPU"
    lines = [f"allocsim: recorded on {where}; the program's exit code: {recorded.exit_code}"]
    for process in recorded.processes:
        end = "; ended out of memory" if process.oom_text else ""
        end = f"; ended by --{process.stopped_by}" if process.stopped_by else end
        lines.append(
            f"allocsim: wrote {process.file}: {plural(process.entries, 'entry', 'entries')}{end}"
        )
        if process.reads_back:
            lines.append(
                f"allocsim: values are read back at {process.reads_back}: they are zero on a "
                "phantom GPU. A printed loss does not matter, but sizes that depend on such "
                "values differ from a real run"
            )
        if process.routing:
            lines.append(f"allocsim: {routing_text(process.routing)}")
        if process.guessed:
            lines.append(
                f"allocsim: workspaces of {process.guessed} are a guess, as small as possible: "
                "their true sizes need a real card"
            )
        lines.append(f"allocsim: {_next(process, recorded.exit_code)}")
    if not recorded.processes:
        lines.append(
            "allocsim: nothing was recorded: no process used CUDA through PyTorch to its end "
            "(a process that is killed, or runs as python -I or -E, writes no recording)"
        )
    return "\n".join(lines) + "\n"


def _next(process: ProcessRecording, exit_code: int) -> str:
    if process.oom_text:
        return f"next: allocsim explain {process.file}"
    if exit_code and not process.stopped_by:
        return (
            f"the program failed (exit code {exit_code}), so the recording ends there and does "
            f"not show its full need: allocsim replay {process.file}"
        )
    return f"next: allocsim replay {process.file}"
