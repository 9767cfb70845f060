"""Scripts that run in the Python with PyTorch, each in a process of its own.

They import the standard library and PyTorch only, and write one JSON file each.
"""
