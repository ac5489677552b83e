"""Shoal trains one language model on many machines that do not trust each other.

`compression` turns tensors into bytes, `protocol` turns bytes into checked objects, `storage` keeps
bytes by key; `node` composes the three. The first three never import each other.
"""

__version__ = "0.1.0"
