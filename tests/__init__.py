"""Tests of allocsim; importing the package lets Python keep bytecode, which halves the start.

Many tests start commands in new processes.  If PYTHONDONTWRITEBYTECODE is set, as in many container
images, each of them compiles the package again, and pytest compiles every test and Hypothesis.
"""

import os
import sys

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
