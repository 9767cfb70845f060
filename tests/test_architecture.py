"""Layers of the package: allowed imports, and modules that the model must not use.

A module imports its own package, and the exported names of packages in lower layers.  Packages of
one layer never import each other, and neither do the packages of `allocsim.analysis`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "allocsim"
LAYERS = {
    "__version__": 0,  # a constant of the package that any module may read
    "units": 0,
    "_fast_numpy": 0,
    "collector": 0,
    "workers": 0,
    "errors": 0,
    "state": 0,
    "_repr": 0,
    "_lazy": 0,
    "core": 1,
    "recording": 1,
    "capture": 1,
    "host": 2,
    "simulation": 2,
    "fidelity": 3,
    "inference": 4,
    "replaying": 5,
    "export": 6,
    "metrics": 6,
    "workload": 6,
    "phantom": 6,
    "recommend": 7,
    "ownership": 7,
    "editing": 8,
    "fitting": 8,
    "verify": 9,
    "analysis": 9,
    "report": 10,
    "cli": 11,
    "plot": 11,
    "results": 11,
    "pytest_plugin": 11,
}
ROOF = ("__init__", "__main__")
"""Modules of the package itself, above every layer."""

THIRD_PARTY = {
    "numpy",
    "sortedcontainers",
    "matplotlib",
    "rich",
    "torch",
    "dask",
    "pyarrow",
    "shtab",
    "pytest",
    "yaml",
    "zstandard",
}
ONLY_FOR_TYPES = {"mypy_extensions"}
ONLY_IN_FUNCTIONS = {"matplotlib", "torch", "dask", "pyarrow", "shtab", "yaml", "zstandard"}
WORLDLY = {
    "datetime",
    "io",
    "os",
    "pathlib",
    "random",
    "secrets",
    "shutil",
    "socket",
    "subprocess",
    "sys",
    "tempfile",
    "time",
    "uuid",
}
"""Modules that a model without clock, files, environment or randomness does not use."""


@dataclass(frozen=True, slots=True)
class Import:
    """One import with its place, and True if it runs only in a function or for type checks."""

    file: Path
    line: int
    module: str
    is_deferred: bool
    is_for_types: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(PACKAGE.parent)}:{self.line} imports {self.module}"

    @property
    def top(self) -> str:
        return self.module.split(".", maxsplit=1)[0]

    @property
    def package(self) -> str:
        """Imported package or module of allocsim, by its first name."""
        return [*self.module.split("."), "__init__"][1]

    @property
    def unit(self) -> str:
        """Imported package; for `allocsim.analysis`, the package below it."""
        return unit_of([*self.module.split(".")][1:])


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(file: Path) -> str:
    """Return the layer name of a file."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def unit_of(parts: Sequence[str]) -> str:
    """Return the package of a path; for `allocsim.analysis`, the package below it."""
    return ".".join(parts[: 2 if parts[:1] == ["analysis"] else 1])


def home_of(file: Path) -> str:
    return unit_of([*file.relative_to(PACKAGE).with_suffix("").parts])


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def imports_of(file: Path) -> tuple[Import, ...]:
    return tuple(_walk(file, tree_of(file), deferred=False, types=False))


def _walk(file: Path, node: ast.AST, *, deferred: bool, types: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue  # an import is a statement
        inside = deferred or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        typed = types or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
        for module in _modules(file, child):
            yield Import(file, getattr(child, "lineno", 0), module, inside, typed)
        yield from _walk(file, child, deferred=inside, types=typed)


def _modules(file: Path, node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{file}:{node.lineno}: a relative import"
        module = node.module or ""
        if module == "allocsim":
            return [f"allocsim.{alias.name}" for alias in node.names]
        return [module]
    return []


@cache
def all_imports() -> tuple[Import, ...]:
    return tuple(found for file in files() for found in imports_of(file))


def calls_of(file: Path) -> Iterator[tuple[int, str]]:
    """Yield every call, by its written name."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Call):
            yield node.lineno, _dotted(node.func)


def _dotted(node: ast.expr) -> str:
    """Return a name with its attributes; "…" for other expressions."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "…"


def test_every_file_is_on_a_layer() -> None:
    unknown = [str(file) for file in files() if part_of(file) not in (*LAYERS, *ROOF)]
    assert not unknown


def test_no_module_imports_a_higher_layer_or_a_neighbour() -> None:
    wrong = []
    for found in all_imports():
        home = part_of(found.file)
        if found.top != "allocsim" or home in ROOF or found.package == home:
            continue
        if LAYERS.get(found.package, 99) >= LAYERS[home]:
            wrong.append(str(found))
    assert not wrong


def test_siblings_never_import_each_other() -> None:
    wrong = [
        str(found)
        for found in all_imports()
        if part_of(found.file) == "analysis"
        and found.package == "analysis"
        and found.unit != home_of(found.file)
    ]
    assert not wrong


def test_another_package_is_imported_by_the_names_that_it_exports() -> None:
    """The imported module is the package itself or one of its subpackages.

    A module that is a unit by itself exports its names without an underscore.
    """
    packages = {
        ".".join(("allocsim", *file.parent.relative_to(PACKAGE).parts))
        for file in files()
        if file.name == "__init__.py"
    }
    wrong = []
    for file in files():
        for node in ast.walk(tree_of(file)):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            parts = node.module.split(".")
            is_alone = len(parts) == 2 and LAYERS.get(parts[1]) == 0
            if parts[0] != "allocsim" or len(parts) == 1 or is_alone:
                continue
            if part_of(file) in ROOF or unit_of(parts[1:]) == home_of(file):
                continue
            module = import_module(node.module)
            exported = getattr(module, "__all__", ())
            if unit_of(parts[1:]) == ".".join(parts[1:]) and node.module not in packages:
                exported = [name for name in vars(module) if name[0] != "_"]
            wrong += [
                f"{file.relative_to(PACKAGE.parent)}:{node.lineno} imports {alias.name} from "
                f"{node.module}"
                for alias in node.names
                if alias.name not in exported
            ]
    assert not wrong


def test_a_command_has_one_name() -> None:
    """Its modules in cli/ and report/ have that name, and so has its part of analysis/, if any."""
    shown = {path.stem for path in (PACKAGE / "report").glob("*.py")}
    asked = {path.stem for path in (PACKAGE / "analysis").iterdir()}
    commands = {
        "replay",
        "explain",
        "top",
        "compare",
        "gate",
        "lint",
        "ranks",
        "colocate",
        "watch",
        "risk",
        "fit",
        "scale",
        "stats",
        "tune",
        "step",
        "crosscheck",
        "record",
        "convert",
    }
    assert commands <= shown
    assert commands <= {path.stem for path in (PACKAGE / "cli").glob("*.py")}
    questions = {
        "explain",
        "top",
        "compare",
        "gate",
        "lint",
        "ranks",
        "colocate",
        "watch",
        "risk",
        "stats",
        "tune",
        "step",
        "picture",
    }
    assert asked - {"__pycache__", "__init__"} == questions


MOST_LINES = 400


def test_no_module_is_long_without_a_reason() -> None:
    """A module with more than about 400 lines gives the reason in its docstring."""
    for file in files():
        text = file.read_text()
        if len(text.splitlines()) > MOST_LINES:
            doc = ast.get_docstring(ast.parse(text)) or ""
            assert "is long because" in doc, f"{file} has {len(text.splitlines())} lines"


def test_the_core_needs_the_standard_library_and_sortedcontainers() -> None:
    allowed = {*sys.stdlib_module_names, "sortedcontainers", "allocsim"}
    core = [found for found in all_imports() if part_of(found.file) in ("core", "units", "errors")]
    assert core
    assert not [str(found) for found in core if found.top not in allowed and not found.is_for_types]


def test_the_model_reads_no_clock_file_environment_or_chance_and_never_prints() -> None:
    wrong = [
        str(found)
        for found in all_imports()
        if part_of(found.file) == "core" and found.top in WORLDLY
    ]
    for file in files():
        if part_of(file) == "core":
            wrong += [
                f"{file.name}:{line} calls {name}"
                for line, name in calls_of(file)
                if name in ("print", "open", "input", "eval", "exec")
            ]
    assert not wrong


def test_third_parties_are_known_ones() -> None:
    allowed = {*sys.stdlib_module_names, *THIRD_PARTY, "allocsim"}
    for found in all_imports():
        is_known = found.top in allowed or (found.is_for_types and found.top in ONLY_FOR_TYPES)
        assert is_known, str(found)


@pytest.mark.parametrize("module", sorted(ONLY_IN_FUNCTIONS))
def test_what_is_heavy_or_optional_is_imported_inside_functions(module: str) -> None:
    assert not [
        str(found)
        for found in all_imports()
        if found.top == module and not (found.is_deferred or found.is_for_types)
    ]


def test_a_capture_needs_the_standard_library_and_units() -> None:
    """It runs in other people's programs and cannot add dependencies."""
    allowed = {*sys.stdlib_module_names, "allocsim"}
    found = [each for each in all_imports() if part_of(each.file) in ("capture", "collector")]
    assert {part_of(each.file) for each in found} == {"capture", "collector"}
    assert not [str(each) for each in found if each.top not in allowed]
    ours = {each.package for each in found if each.top == "allocsim"}
    assert ours <= {"capture", "collector", "units"}


def test_only_the_phantom_and_the_crosscheck_know_torch() -> None:
    allowed = ("phantom", "verify")
    assert not [
        str(found)
        for found in all_imports()
        if found.top == "torch" and home_of(found.file) not in allowed
    ]
    # A module may also be imported by its name as text.
    by_name = {
        home_of(file)
        for file in files()
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Call)
        and _dotted(node.func).endswith("import_module")
        and [ast.unparse(each) for each in node.args[:1]] == ["'torch'"]
    }
    assert by_name == {"verify"}


def test_the_package_never_imports_what_stands_beside_it() -> None:
    beside = {"tests", "benchmarks", "notebooks", "docs"}
    assert not [str(found) for found in all_imports() if found.top in beside]


def test_no_pickle_is_loaded_but_by_the_unpickler_of_trace() -> None:
    loaders = ("pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.loads", "shelve.open")
    wrong = []
    for file in files():
        is_ours = file == PACKAGE / "recording" / "unpickle.py"
        for line, name in calls_of(file):
            if name in loaders and not is_ours:
                wrong.append(f"{file.name}:{line} calls {name}")
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                is_off = isinstance(node.value, ast.Constant) and node.value.value is False
                if not is_off:
                    wrong.append(f"{file.name}:{node.value.lineno} allows pickles in NumPy files")
    wrong += [
        str(found)
        for found in all_imports()
        if found.module == "pickle"
        and part_of(found.file) != "recording"
        # These modules write the snapshot in the program's interpreter.
        and found.file.parent.name != "hook"
        and found.file != PACKAGE / "capture" / "files.py"
    ]
    assert not wrong
