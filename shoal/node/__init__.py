"""Composes compression, protocol and storage into a node that trains."""
