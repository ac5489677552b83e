"""How fast, how large and how faithful the codec is; `python -m benchmarks.compression`."""
