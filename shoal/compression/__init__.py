"""Tensors to bytes and back."""
