"""What can be wrong with texts, tokenizers and shards.

Guarantees: one class, whose message names the file, what was expected, what was found and how to
mend it. Not a peer's fault: the data of a run is named in its manifest by content.
"""

from pathlib import Path


class DataError(Exception):
    """A text, a tokenizer or a shard is not what it must be.

    Attributes:
        file: Which one.
    """

    def __init__(self, file: Path | str, *, expected: str, found: str, fix: str) -> None:
        super().__init__(f"{file}: expected {expected}, found {found}; {fix}")
        self.file = str(file)
