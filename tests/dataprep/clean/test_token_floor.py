"""The token floor decides as counting all tokens does, with any tokenizer, and cheaply if a text passes."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.trainers import BpeTrainer, WordLevelTrainer

from dataprep.clean import token_floor
from dataprep.clean.token_floor import TokenFloor, count_pre_tokens
from dataprep.text.tokenizers import END_OF_TEXT, TextEncoder
from tests.samples import Data, gpt2

PROSE = (
    "The river's mill turned 300 years, and we'll see: it isn't done.\n\n  «Señor», said Öyvind — 中文 مرحبا 🦕\t\r\n"
)
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = st.text(max_size=300) | st.lists(
    st.sampled_from([" ", "  ", "\n", "\t", "\x1c", "\x85", "\u00a0", "'", "'ll", "the", "mill", "a", "7", "1999"])
    | st.sampled_from(["!?", "…", "中文", "é", "e\u0301", "▁", "🦕", PROSE, "aaaaaaaaaaaaaaaaaaaaaaaa"]),
    max_size=80,
).map("".join)


def trained(pre_tokenizer: PreTokenizer, *, bytes_too: bool) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet() if bytes_too else []
    trainer = BpeTrainer(
        vocab_size=400, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False, max_token_length=9
    )
    tokenizer.train_from_iterator([PROSE * 20], trainer)
    return tokenizer


def words() -> Tokenizer:
    tokenizer = Tokenizer(WordLevel(unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator([PROSE * 20], WordLevelTrainer(special_tokens=[END_OF_TEXT, "?"]))
    return tokenizer


def lower_case() -> Tokenizer:
    tokenizer = trained(pre_tokenizers.ByteLevel(), bytes_too=True)
    tokenizer.normalizer = Lowercase()
    return tokenizer


def split_like_cl100k() -> Tokenizer:
    steps = [pre_tokenizers.Split(Regex(CL100K), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    return trained(pre_tokenizers.Sequence(steps), bytes_too=True)


TRAINED: dict[str, Callable[[], Tokenizer]] = {
    "byte level": lambda: trained(pre_tokenizers.ByteLevel(add_prefix_space=False), bytes_too=True),
    "byte level with a space before": lambda: trained(pre_tokenizers.ByteLevel(), bytes_too=True),
    "byte level without all bytes": lambda: trained(pre_tokenizers.ByteLevel(), bytes_too=False),
    "byte level over spaces": lambda: trained(pre_tokenizers.ByteLevel(use_regex=False), bytes_too=True),
    "metaspace": lambda: trained(pre_tokenizers.Metaspace(), bytes_too=False),
    "metaspace over spaces": lambda: trained(pre_tokenizers.Metaspace(split=False), bytes_too=False),
    "whitespace": lambda: trained(pre_tokenizers.Whitespace(), bytes_too=False),
    "bert": lambda: trained(pre_tokenizers.BertPreTokenizer(), bytes_too=False),
    "cl100k": split_like_cl100k,
    "words": words,
    "lower case": lower_case,
}


@functools.cache
def encoder(name: str) -> TextEncoder:
    folder = Path(functools.cache(_folder)())
    file = folder / f"{name.replace(' ', '-')}.json"
    if not file.exists():
        TRAINED[name]().save(str(file))
    return TextEncoder.load(file)


def _folder() -> str:
    import tempfile

    return tempfile.mkdtemp(prefix="millrace-tests-")


@pytest.mark.parametrize("name", TRAINED)
@given(text=TEXTS, floor=st.integers(1, 40))
def test_the_decision_is_that_of_counting_all_tokens(name: str, text: str, floor: int) -> None:
    count = encoder(name).count(text)
    assert TokenFloor(encoder(name)).shortfall(text, floor) == (count if count < floor else None)


@given(text=TEXTS, floor=st.integers(1, 40))
def test_without_a_tokenizer_the_decision_is_that_of_counting_pre_tokens(text: str, floor: int) -> None:
    count = count_pre_tokens(text)
    assert TokenFloor(None).shortfall(text, floor) == (count if count < floor else None)
    assert TokenFloor(None).count(text) == count


def tiny_gpt2(data: Data) -> TextEncoder:
    """The small vocabulary beside the documents."""
    names = {"vocab.json": "gpt2-tiny-vocab.json", "merges.txt": "gpt2-tiny-merges.txt"}
    copy = Path(_folder())
    for name, original in names.items():
        (copy / name).write_bytes((data.openwebtext / original).read_bytes())
    return TextEncoder.load(copy)


@pytest.mark.parametrize("kind", ["gpt2", "tiny"])
def test_the_decision_is_that_of_counting_on_web_texts(data: Data, kind: str) -> None:
    real = TextEncoder.load(gpt2()) if kind == "gpt2" else tiny_gpt2(data)
    texts = data.documents(60)
    texts += [text[:size] for text in texts[:30] for size in (200, 500, 800)]
    floor = TokenFloor(real)
    for text in texts:
        count = real.count(text)
        assert count_pre_tokens(text) <= count or kind == "tiny"
        for least in (1, 128, count, count + 1, 1000):
            assert floor.shortfall(text, least) == (count if count < least else None)


class Counting(TextEncoder):
    """Remembers how many characters were encoded."""

    encoded: list[int] = []  # noqa: RUF012 (a dataclass with slots has no room of its own)

    def count(self, text: str) -> int:
        self.encoded.append(len(text))
        return super().count(text)


@pytest.mark.parametrize(
    ("name", "text", "most"),
    [
        ("byte level", "the mill turned " * 10_000, 0),
        ("byte level", "." * 300_000, 0),
        ("cl100k", "中" * 100_000, 0),
        ("byte level", "antidisestablishmentarianism. " * 5000, 0),
        ("byte level", "antidisestablishmentarianism" * 10 + "\nno " * 4, 400),
        ("metaspace", "the mill turned " * 10_000, 1100),
        ("words", "the mill turned " * 10_000, 1100),
        ("cl100k", "the mill\n" * 60 + " turned " * 10, 1100),
    ],
)
def test_no_more_is_encoded_than_the_answer_takes(name: str, text: str, most: int) -> None:
    counting = Counting(encoder(name).tokenizer, encoder(name).meta)
    counting.encoded.clear()
    assert TokenFloor(counting).shortfall(text, 128) is None or most
    assert sum(counting.encoded) <= most


def test_the_tokens_of_each_short_chunk_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(encoder("cl100k").tokenizer, encoder("cl100k").meta)
    floor = TokenFloor(counting)
    text = "the mill turned, the mill stood " + "a" * 100
    expected = encoder("cl100k").count(text)
    counting.encoded.clear()
    assert floor.count(text) == expected
    assert sorted(counting.encoded) == [0, 1, 3, 4, 5, 6, 7, 101]
    counting.encoded.clear()
    assert floor.count(text) == expected
    assert counting.encoded == [101]
    monkeypatch.setattr(token_floor, "_MOST_CHUNKS", 2)
    assert TokenFloor(counting).count(text) == expected


def test_chunks_settle_what_words_do_not() -> None:
    counting = Counting(encoder("byte level").tokenizer, encoder("byte level").meta)
    counting.encoded.clear()
    assert TokenFloor(counting).shortfall("mill-2, " * 16, 64) is None
    assert not counting.encoded


def test_the_floor_counts_to_the_last_token() -> None:
    floor = TokenFloor(None)
    assert floor.shortfall(" ".join(["mill"] * 128), 128) is None
    assert floor.shortfall(" ".join(["mill"] * 127), 128) == 127
    assert floor.shortfall("", 1) == 0
