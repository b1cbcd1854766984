"""Megatron's two scripts as their description has them, and `compat`, which must decide the same on real text."""

import dataclasses
import functools
import re
from pathlib import Path

import ftfy
import pytest
from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory
from langdetect.lang_detect_exception import LangDetectException

from dataprep.cleaning.config import CleanConfig
from dataprep.cleaning.thresholds import SeedRules
from dataprep.text.bpe import TextEncoder
from tests.dataprep.cleaning.documents import DATA, NAUGHTY, clean_shard, real_texts, shard

GPT2 = DATA / "gpt2-tokenizer"
COMPAT = CleanConfig(compat=True, language_mode="exact", tokenizer=str(GPT2))


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    if not GPT2.exists():
        pytest.skip("needs ../shared/data/gpt2-tokenizer")
    short = {f"short {size}": ("The mill turned at dawn. " * 40)[:size] for size in (10, 255, 511, 512, 600, 1023)}
    script = {"script": "Enable JavaScript to see the mill. " * 4, "german": "Das Rad dreht sich am Fluss. " * 9}
    return real_texts(12) | NAUGHTY | short | script | OTHERWISE_AFTER_FTFY


def _entities(text: str) -> str:
    return "".join(f"&#{ord(character)};" if ord(character) > 127 else character for character in text)


RUSSIAN = "Мельница стоит у реки, и колесо её вертится уже триста лет. "
OTHERWISE_AFTER_FTFY = {
    "mojibake with English": (RUSSIAN * 2).encode().decode("latin-1")
    + " The old mill stands at the river and turns its wheel.",
    "mojibake": (RUSSIAN * 2).encode().decode("latin-1"),
    "entities with English": _entities("Старая мельница стоит у реки. " * 2) + " The old mill by the river",
}
"""Short texts whose language is another before ftfy than after it."""


@functools.cache
def factory() -> DetectorFactory:
    made = DetectorFactory()
    made.seed = 0
    made.load_json_profile([file.read_text("utf-8") for file in sorted(Path(PROFILES_DIRECTORY).iterdir())])
    return made


@functools.cache
def detect(text: str) -> str:
    """The library itself; raises where it finds no features."""
    detector = factory().create()
    detector.append(text)
    return detector.detect()


def cleanup_dataset(text: str, encoder: TextEncoder, floor: int) -> tuple[str, str]:
    """(what drops the text, or nothing; the text)."""
    text = ftfy.fix_text(text)
    try:
        if detect(text) != "en":
            return "language", text
    except LangDetectException:
        return "language", text
    with_end = encoder.count(text) + 1 if len(text) < 8 * floor else floor
    return ("too_few_tokens" if with_end < floor else ""), text


def cleanup_fix_dataset(text: str, tasks: tuple[str, ...]) -> tuple[str, str]:
    """(the task that filters the text, or nothing; the text)."""
    try:
        if "remove_512" in tasks and len(text) < 512:
            return "seeds_remove_512", text
        if "remove_256_javascript" in tasks and len(text) < 256 and "javascript" in text.lower():
            return "seeds_remove_256_javascript", text
        if "remove_512_non_english" in tasks and len(text) < 512 and detect(text) != "en":
            return "seeds_remove_512_non_english", text
    except LangDetectException:
        return "seeds_remove_512_non_english", text
    if "ftfy_fix_text" in tasks:
        return "", ftfy.fix_text(text)
    if "general_cleaning" in tasks:
        return "", re.sub(r"  +|\b\n+ |\b\n+", " ", text)
    return "", text


@pytest.mark.parametrize("floor", [128, 40])
def test_compat_decides_as_cleanup_dataset(texts: dict[str, str], tmp_path: Path, floor: int) -> None:
    encoder = TextEncoder.load(GPT2)
    expected = {name: cleanup_dataset(text, encoder, floor) for name, text in texts.items()}
    assert {reason for reason, _ in expected.values()} == {"", "language", "too_few_tokens"}
    config = dataclasses.replace(COMPAT, min_tokens=floor)
    _, kept, rejected = clean_shard(shard(tmp_path, texts), tmp_path / "out", config)
    found = {row["url"]: ("", row["text"]) for row in kept}
    found |= {row["url"]: (row["rule"], expected[row["url"]][1]) for row in rejected}
    assert found == expected


TASKS = ("remove_512", "remove_256_javascript", "remove_512_non_english", "ftfy_fix_text", "general_cleaning")


@pytest.mark.parametrize("tasks", [*((task,) for task in TASKS), TASKS[2:], TASKS[1:3], TASKS], ids="+".join)
def test_compat_decides_as_cleanup_fix_dataset_for_any_tasks(
    texts: dict[str, str], tmp_path: Path, tasks: tuple[str, ...]
) -> None:
    expected = {name: cleanup_fix_dataset(text, tasks) for name, text in texts.items()}
    limits = {"remove_512": 512, "remove_256_javascript": 256, "remove_512_non_english": 512}
    config = dataclasses.replace(
        COMPAT,
        min_tokens=0,
        languages=(),
        repair="ftfy_fix_text" in tasks,
        general_cleaning="general_cleaning" in tasks,
        seeds=SeedRules(**{task: limit for task, limit in limits.items() if task in tasks}),
    )
    _, kept, rejected = clean_shard(shard(tmp_path, texts), tmp_path / "out", config)
    found = {row["url"]: ("", row["text"]) for row in kept} | {
        row["url"]: (row["rule"], row["text"]) for row in rejected
    }
    assert found == expected


def test_compat_asks_for_the_language_of_the_text_as_it_came_and_otherwise_of_the_edited_one(tmp_path: Path) -> None:
    for name, text in OTHERWISE_AFTER_FTFY.items():
        assert detect(ftfy.fix_text(text)) == "ru", name
    english = {name: text for name, text in OTHERWISE_AFTER_FTFY.items() if detect(text) == "en"}
    assert sorted(english) == ["entities with English", "mojibake with English"]
    rules = SeedRules(remove_512_non_english=512)
    config = CleanConfig(min_tokens=0, languages=(), language_mode="exact", seeds=rules)
    source = shard(tmp_path, english)
    _, kept, _ = clean_shard(source, tmp_path / "compat", dataclasses.replace(config, compat=True))
    assert {row["url"] for row in kept} == set(english)
    _, kept, rejected = clean_shard(source, tmp_path / "edited", config)
    assert not kept
    assert {row["rule"] for row in rejected} == {"seeds_remove_512_non_english"}


def test_without_compat_both_edits_are_made_and_every_text_has_the_floor(tmp_path: Path) -> None:
    long = "ab" * 1000
    source = shard(tmp_path, {"long": long, "both": "The  “old” mill\nturned. " * 60})
    config = CleanConfig(languages=(), general_cleaning=True)
    _, kept, rejected = clean_shard(source, tmp_path / "out", config)
    assert [row["text"] for row in kept] == ['The "old" mill turned. ' * 60]
    assert [(row["url"], row["rule"], row["value"]) for row in rejected] == [("long", "too_few_tokens", "1 pre-tokens")]
