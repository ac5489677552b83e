"""Bytes by key: one interface, and the stores behind it.

`object_store` is the interface and its guarantees, `directory` the embedded default, `memory` for
tests, `meter` counts bytes, `errors` is what can go wrong. Knows no rounds and no peers.
"""
