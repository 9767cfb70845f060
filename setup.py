"""Build of the compiled core; pyproject.toml has everything else.

ALLOCSIM_COMPILED=1 requires the compiled core, ALLOCSIM_COMPILED=0 leaves it out.  Without the
variable it is built if there is a C compiler.  Editable installs are always pure Python.

Modules of allocsim/core with a .pxd file beside them are compiled as they are, and so are the .pyx
files there.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

REPOSITORY = "https://github.com/allocsim/allocsim"
"""The only place of the package's metadata that knows where the project is hosted."""

_OWNER, _NAME = REPOSITORY.split("/")[-2:]
SITE = f"https://{_OWNER}.github.io/{_NAME}/"
"""The documentation site, as GitHub names the pages of the repository."""

URLS = {
    "Homepage": REPOSITORY,
    "Documentation": f"{SITE}getting-started.html",
    "Source": REPOSITORY,
    "Issues": f"{REPOSITORY}/issues",
    "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
}

CORE = Path("allocsim", "core")
"""Relative to this file, which is the working directory of a build."""


def extensions() -> list[Extension]:
    """Return the extension modules of the core."""
    sources = {path.stem: path.with_suffix(".py") for path in CORE.glob("*.pxd")}
    sources |= {path.stem: path for path in CORE.glob("*.pyx")}
    return [
        Extension(".".join((*CORE.parts, name)), [str(path)])
        for name, path in sorted(sources.items())
    ]


def has_compiler() -> bool:
    """Return whether a C extension can be built here."""
    # The names of the old standard library, which setuptools provides.
    from distutils.ccompiler import new_compiler  # noqa: PLC0415
    from distutils.errors import CCompilerError, DistutilsError  # noqa: PLC0415
    from distutils.sysconfig import customize_compiler  # noqa: PLC0415

    with TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <Python.h>\n")
        try:
            compiler = new_compiler()
            customize_compiler(compiler)
            compiler.compile(
                [str(source)], folder, include_dirs=[sysconfig.get_path("platinclude")]
            )
        except (CCompilerError, DistutilsError, OSError) as error:
            sys.stderr.write(f"allocsim: no C compiler, the core stays pure Python ({error})\n")
            return False
    return True


def is_compiled() -> bool:
    """Return whether to build the compiled core."""
    asked = os.environ.get("ALLOCSIM_COMPILED", "")
    if asked not in ("", "0", "1"):
        raise SystemExit(f"ALLOCSIM_COMPILED={asked!r} is unknown; expected 0 or 1")
    if "bdist_wheel" not in sys.argv or asked == "0":
        return False
    return asked == "1" or has_compiler()


class BuildCore(build_ext):
    """Cython's translation, then the C compiler."""

    def finalize_options(self) -> None:
        from Cython.Build import cythonize  # noqa: PLC0415

        self.distribution.ext_modules = cythonize(
            self.distribution.ext_modules,
            build_dir=str(Path(self.get_finalized_command("build").build_temp, "cython")),
            compiler_directives={"language_level": 3, "annotation_typing": False},
            quiet=True,
        )
        super().finalize_options()

    def build_extension(self, ext: Any) -> None:
        if self.compiler.compiler_type == "unix":
            ext.extra_compile_args = ["-O2", "-g0"]
        super().build_extension(ext)


setup(
    project_urls=URLS,
    ext_modules=extensions() if is_compiled() else [],
    cmdclass={"build_ext": BuildCore},
)
