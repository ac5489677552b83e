"""The one door to the `tokenizers` library: byte-level BPE, trained from the run's own texts.

Guarantees: every text has an encoding (the alphabet is all 256 bytes) and decoding gives it back;
id 0 is <pad>, id 1 is <eos>, and no text can produce them, also when it contains those words;
training is deterministic; nothing touches the network.

Does not insert <eos>: whoever joins documents does (`prepare`).
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from shoal.node.data.errors import DataError

PAD: Final = "<pad>"
EOS: Final = "<eos>"
PAD_ID: Final = 0
EOS_ID: Final = 1
MIN_VOCAB_SIZE: Final = 256 + 2

_BATCH_TEXTS: Final = 512


class TextTokenizer:
    """Text to token ids and back. Made by `train` or `load`.

    Args:
        tokenizer: The library's object, already trained.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        # Otherwise "<eos>" inside a text would end the document. The file format does not keep this
        # setting, so it is made here, for trained and loaded tokenizers alike.
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "TextTokenizer":
        """Learn a vocabulary.

        Args:
            texts: What to learn from, read once.
            vocab_size: Number of ids, the two special ones and the 256 bytes included.

        Returns:
            A tokenizer; it has fewer ids than asked for when the texts are too small.

        Raises:
            ValueError: `vocab_size` is below 258.
        """
        if vocab_size < MIN_VOCAB_SIZE:
            raise ValueError(f"vocab_size {vocab_size}, at least {MIN_VOCAB_SIZE} are needed")
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[PAD, EOS],
            # Sorted, because the library hands out the alphabet in no fixed order.
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    @classmethod
    def load(cls, path: Path) -> "TextTokenizer":
        """Read a tokenizer.json.

        Args:
            path: The file.

        Returns:
            The tokenizer.

        Raises:
            DataError: The file is missing, is no tokenizer, or has other special tokens.
        """
        fix = "make it again with `shoal data` or fetch the run's own file"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(path, expected="a tokenizer.json", found=str(error), fix=fix) from error
        try:
            tokenizer = Tokenizer.from_str(text)
        except Exception as error:
            # The library raises bare Exception for whatever it cannot read.
            raise DataError(path, expected="a tokenizer.json", found=str(error), fix=fix) from error
        special = {name: tokenizer.token_to_id(name) for name in (PAD, EOS)}
        if special != {PAD: PAD_ID, EOS: EOS_ID}:
            raise DataError(
                path,
                expected=f"{PAD} as id {PAD_ID}, {EOS} as id {EOS_ID}",
                found=str(special),
                fix=fix,
            )
        return cls(tokenizer)

    @property
    def vocab_size(self) -> int:
        """Number of ids, special ones included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def to_bytes(self) -> bytes:
        """Give the content of its tokenizer.json; equal tokenizers give equal bytes."""
        return str(self._tokenizer.to_str(pretty=False)).encode()

    def encode(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Encode texts as they come, a few hundred at a time.

        Args:
            texts: What to encode.

        Yields:
            The ids of one text, in the order of the texts.
        """
        rest = iter(texts)
        while batch := list(islice(rest, _BATCH_TEXTS)):
            for encoding in self._tokenizer.encode_batch(batch, add_special_tokens=False):
                yield encoding.ids

    def decode(self, ids: Iterable[int]) -> str:
        """Turn ids back into text; special ones are left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))
