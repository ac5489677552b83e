"""What the project measures; each package runs with `python -m`."""
