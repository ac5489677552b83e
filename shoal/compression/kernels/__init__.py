"""Array-level loops of the codec, compiled by numba.

The only modules that know numba, and what a version for another device would replace: flat arrays,
a chunk range and plain integers in, filled arrays out. Every kernel releases the GIL, allocates at
most a few kilobytes, runs on one thread and may run on any number of threads at once.
"""
