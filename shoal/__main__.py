"""`python -m shoal` is the `shoal` command."""

from shoal.node.app import main

main()
