"""Hook that runs when a program's interpreter starts, before any of its code, and captures it.

Rule: the program behaves as it does without the hook.  The interpreter may lack allocsim: the
package is loaded from the folder of this file, but no other package there is visible.  Another
sitecustomize still runs.
"""

import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BESIDE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))


class Finder:
    """Finder of the package allocsim for interpreters that lack it."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "allocsim":
            return None
        return importlib.machinery.PathFinder.find_spec(name, [BESIDE])


def run_the_other():
    """Run the sitecustomize that this one hides, if there is one."""
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
