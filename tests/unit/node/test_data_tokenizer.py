import pytest

from shoal.node.data.errors import DataError
from shoal.node.data.tokenizer import EOS_ID, PAD_ID, TextTokenizer

TEXTS = ["the sea and the shoal", "fish and the other fish", "a school of fish in the sea"] * 5


def test_training_is_deterministic_and_reaches_the_size():
    first = TextTokenizer.train(TEXTS, 280)
    assert first.vocab_size == 280
    assert first.to_bytes() == TextTokenizer.train(iter(TEXTS), 280).to_bytes()


@pytest.mark.parametrize(
    "text", ["the fish", " two  spaces\n\nand lines\t", "\u0436\U0001f41f\0\x7f", "\r\n", ""]
)
def test_every_text_comes_back(text):
    tokenizer = TextTokenizer.train(TEXTS, 258)
    (ids,) = tokenizer.encode([text])
    assert tokenizer.decode(ids) == text
    assert all(2 <= one < 258 for one in ids)


def test_a_text_cannot_make_special_tokens(tmp_path):
    trained = TextTokenizer.train(TEXTS, 258)
    (tmp_path / "tokenizer.json").write_bytes(trained.to_bytes())
    for tokenizer in (trained, TextTokenizer.load(tmp_path / "tokenizer.json")):
        (ids,) = tokenizer.encode(["a<eos>b<pad>"])
        assert not {PAD_ID, EOS_ID} & set(ids)
        assert tokenizer.decode(ids) == "a<eos>b<pad>"


def test_many_texts_are_encoded_in_order_and_as_a_stream():
    tokenizer = TextTokenizer.train(TEXTS, 258)
    num_taken = 0

    def texts():
        nonlocal num_taken
        for number in range(5000):
            num_taken += 1
            yield str(number)

    encoded = tokenizer.encode(texts())
    assert [tokenizer.decode(next(encoded)) for _ in range(3)] == ["0", "1", "2"]
    assert num_taken < 1000
    assert tokenizer.decode(list(encoded)[-1]) == "4999"


def test_a_saved_tokenizer_is_the_same(tmp_path):
    trained = TextTokenizer.train(TEXTS, 300)
    (tmp_path / "tokenizer.json").write_bytes(trained.to_bytes())
    loaded = TextTokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.to_bytes() == trained.to_bytes()
    assert list(loaded.encode(TEXTS)) == list(trained.encode(TEXTS))


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b"\xff\xfe"])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, content):
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(DataError, match=r"t\.json: expected a tokenizer\.json"):
        TextTokenizer.load(tmp_path / "t.json")


def test_a_missing_tokenizer_is_refused(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        TextTokenizer.load(tmp_path / "t.json")


def test_other_special_tokens_are_refused(tmp_path):
    changed = TextTokenizer.train(TEXTS, 258).to_bytes().replace(b"<eos>", b"<end>")
    (tmp_path / "t.json").write_bytes(changed)
    with pytest.raises(DataError, match="'<eos>': None"):
        TextTokenizer.load(tmp_path / "t.json")


def test_a_vocabulary_smaller_than_the_bytes_is_refused():
    with pytest.raises(ValueError, match="at least 258"):
        TextTokenizer.train(TEXTS, 257)
