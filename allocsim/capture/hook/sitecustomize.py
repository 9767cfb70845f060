"""Module that Python imports at startup, before the program's code; it starts a capture.

If allocsim is not installed for this interpreter, it is imported from the folder that contains this
file's package.
"""

import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BESIDE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))


class Finder:
    """Import hook in sys.meta_path that finds allocsim if it is not installed."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "allocsim":
            return None
        return importlib.machinery.PathFinder.find_spec(name, [BESIDE])


def run_the_other():
    """Run the environment's own sitecustomize module, which this file hides, if there is one."""
    rest = [place for place in sys.path if os.path.abspath(place or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("ALLOCSIM_CAPTURE"):
    sys.meta_path.append(Finder)
    try:
        from allocsim.capture import install

        install()
    except Exception as error:
        if sys.stderr is not None:
            sys.stderr.write(f"allocsim: the program is not captured: {error!r}\n")
run_the_other()
