"""Compiled kernels and their plain NumPy references."""
