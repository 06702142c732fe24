"""Measures one accelerator for servetwin: ceilings, operators, whole steps, serving.

Needs Python 3.10+, PyTorch and numpy; Triton for the fast paged kernels; transformers for its serving engine.
No network. `python -m servetwin_gpu --help` says how to run a part.
"""
