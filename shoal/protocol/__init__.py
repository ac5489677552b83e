"""Bytes to checked objects and back."""
