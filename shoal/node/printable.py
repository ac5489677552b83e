"""Text from files of others, made fit for a terminal.

Guarantees: one line, and nothing that moves the cursor, colours or clears the screen. Does not do:
shorten.
"""


def printable(text: str) -> str:
    """`text` on one line, with everything that is not printable as an escape."""
    one_line = " ".join(part.strip() for part in text.splitlines())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in one_line)
