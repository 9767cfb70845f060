"""Scripts that run with the Python that has PyTorch, each in a separate process.

They import only the standard library and PyTorch, and write one JSON file each.
"""
