"""Makes a network process's libp2p identity before it runs, and prints the id.

    python -m shoal.node.network.identify FOLDER

So that others can be told an address that ends in it. An identity that is there is kept. In a
process of its own: hivemind is imported.
"""

import sys
from pathlib import Path

from shoal.node.network.libp2p import make_identity


def main() -> None:
    """Prints one line."""
    folder = Path(sys.argv[1])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    print(make_identity(folder))  # noqa: T201 - it is what the program is for


if __name__ == "__main__":
    main()
