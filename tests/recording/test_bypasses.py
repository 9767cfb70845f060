"""Nothing in a pickle is run, looked up or written, whatever bypasses scanners."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from allocsim.errors import RecordingError
from allocsim.recording import load
from tests.recording.bypasses import GLOBALS, STRUCTURES, cases

TAKEN = {"a second pickle behind the first"}
"""Cases that load, because data after the end of the pickle is not read."""

CASES = {name: (source, data) for name, source, data in cases()}


def test_corpus_files_are_described() -> None:
    assert len(CASES) == 2 * len(GLOBALS) + 2 * len(STRUCTURES) + 3
    assert all(source for source, _ in CASES.values())


def test_malicious_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    for name, (_, data) in CASES.items():
        path.write_bytes(data)
        if name in TAKEN:
            assert len(load(path).device(0)) > 0
            continue
        with pytest.raises(RecordingError) as error:
            load(path)
        sentence = str(error.value)
        assert sentence.isprintable(), name
        assert "nothing in it was run" in sentence or "is cut short" in sentence, (name, sentence)


def test_no_audit_event_of_code_files_or_networks(tmp_path: Path) -> None:
    """The interpreter reports imports, execution, files opened for writing, and connections."""
    for number, (_, data) in enumerate(CASES.values()):
        (tmp_path / f"{number}.pickle").write_bytes(data)
    program = textwrap.dedent(f"""
        import importlib, pathlib, sys
        from allocsim.errors import RecordingError
        from allocsim.recording import load
        reader = importlib.import_module("allocsim.recording.files")
        reader._LARGE = 0  # both readers
        files = sorted(pathlib.Path({str(tmp_path)!r}).glob("*.pickle"))
        def read():
            for path in files:
                try:
                    load(path)
                except RecordingError:
                    pass
        read()  # what has to be imported is now
        REFUSED = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen", "exec",
            "compile", "pickle.find_class", "import", "socket.", "ctypes.", "marshal.", "shutil.",
            "os.remove", "os.rename", "os.mkdir", "code.__new__", "function.__new__")
        def hook(event, arguments):
            if event == "open" and set(str(arguments[1])) & set("wax+"):
                raise SystemExit(f"{{event}} {{arguments}}")
            if event.startswith(REFUSED):
                raise SystemExit(f"{{event}} {{arguments}}")
        sys.addaudithook(hook)
        read()
        print("quiet")
    """)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=tmp_path,
    )
    assert (done.stdout, done.stderr) == ("quiet\n", "")
    assert not (tmp_path / "pwned").exists()
