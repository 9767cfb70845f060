"""The notebooks under notebooks/: run in fresh kernels, compared with what they show.

`python -m tests.notebooks --write` puts the outputs of such a run into the files.
"""
