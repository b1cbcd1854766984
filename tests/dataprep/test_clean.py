"""Clean: repairs equal ftfy's, verdicts do not depend on order or process, every rejection has its value."""

import json
import subprocess
import sys
from pathlib import Path

import ftfy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.clean import CleanConfig, clean_part
from dataprep.text.clean_rules import count_pre_tokens, detect_language, enough_tokens, repair
from pipelines.command import Part, StageSpec
from pipelines.documents import DOCUMENT_SCHEMA, TableWriter, read_rows
from pipelines.stage import run_command

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
ENGLISH = "The river has turned the wheel of this mill for three hundred years, and the miller still lives here. " * 10
GERMAN = (
    "Der Fluss dreht seit dreihundert Jahren das Rad dieser Mühle, und der Müller wohnt noch immer hier im Tal. " * 10
)


@settings(max_examples=400, deadline=None)
@given(
    st.text(max_size=200)
    | st.text(st.characters(max_codepoint=127), max_size=200)
    | st.text(st.sampled_from("aA &;#\r\n\t\x1b[0m\x00\x7f\"'<>"), max_size=60)
)
def test_the_fast_path_of_repair_equals_ftfy(text: str) -> None:
    config = ftfy.TextFixerConfig(uncurl_quotes=True, explain=False)
    assert repair(text, uncurl_quotes=True) == ftfy.fix_text(text, config)


def test_repair_mends_real_mojibake_as_the_published_cases_say() -> None:
    file = DATA / "encodings" / "ftfy-in-the-wild.json"
    if not file.exists():
        pytest.skip("needs ../shared/data/encodings")
    cases = [case for case in json.loads(file.read_text()) if case["expect"] == "pass"]
    assert len(cases) > 20
    for case in cases:
        assert repair(case["original"], uncurl_quotes=True) == case["fixed"]


def test_curly_quotes_stay_when_asked() -> None:
    assert repair("“schön”", uncurl_quotes=False) == "“schön”"
    assert repair("“schön”", uncurl_quotes=True) == '"schön"'


def test_pre_tokens_are_a_lower_bound_of_gpt2_tokens_on_real_text() -> None:
    vocabulary, corpus = DATA / "gpt2-tokenizer", DATA / "text" / "openwebtext-1000" / "openwebtext-1000.decoded.jsonl"
    if not corpus.exists():
        pytest.skip("needs ../shared/data")
    from dataprep.text.bpe import TextEncoder

    encoder = TextEncoder.load(vocabulary)
    with corpus.open() as file:
        texts = [json.loads(line)["text"] for _, line in zip(range(50), file, strict=False)]
    for text in texts:
        assert count_pre_tokens(text, 10**9) <= encoder.count(text)


def test_the_token_floor_counts_to_the_last_token() -> None:
    text = " ".join(["mill"] * 128)
    assert enough_tokens(text, minimum=128, count_tokens=None).passed
    short = enough_tokens(" ".join(["mill"] * 127), minimum=128, count_tokens=None)
    assert (short.passed, short.value) == (False, "127")
    assert not enough_tokens(text, minimum=128, count_tokens=lambda _: 127).passed


def test_language_verdicts_do_not_depend_on_what_came_before() -> None:
    texts = [ENGLISH, GERMAN, "Ein short mixed text of zwei Sprachen", "12345 67890", ""]
    forward = [detect_language(text, 0) for text in texts]
    backward = [detect_language(text, 0) for text in reversed(texts)][::-1]
    assert forward == backward
    assert [language for language, _ in forward[:2]] == ["en", "de"]
    assert forward[3:] == [("und", 0.0), ("und", 0.0)]


def test_language_verdicts_are_the_same_in_another_process() -> None:
    load = "from dataprep.text.clean_rules import detect_language as d"
    code = f"{load}; print(d({GERMAN[:300]!r}, 0), d('a few words', 0))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1


def test_every_rejection_has_a_rule_and_the_value_it_saw(tmp_path: Path) -> None:
    texts = {"good": ENGLISH, "german": GERMAN, "short": "Too short.", "broken": ENGLISH.replace("river", "rivâ€™er")}
    source = tmp_path / "source.parquet"
    with TableWriter(source, DOCUMENT_SCHEMA) as table:
        for name, text in texts.items():
            table.write({"doc_id": name.encode().ljust(16), "url": name, "text": text, "source": "test"})
    counts = clean_part(Part("part-00000", (source,)), tmp_path, CleanConfig())
    kept = {row["url"]: row for row in read_rows(tmp_path / "part-00000.parquet")}
    assert list(kept) == ["good", "broken"]
    assert (kept["good"]["repaired"], kept["broken"]["repaired"]) == (False, True)
    assert "riv'er" in kept["broken"]["text"]
    rejected = {r["url"]: (r["rule"], r["value"]) for r in read_rows(tmp_path / "rejected" / "part-00000.parquet")}
    assert rejected["short"] == ("too_few_tokens", "3")
    assert rejected["german"][0] == "language"
    assert rejected["german"][1].startswith("de ")
    assert counts.rows_in == 4
    assert counts.rejected == {"language": 1, "too_few_tokens": 1}


def test_a_language_that_langdetect_does_not_know_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text(json.dumps({"text": ENGLISH}) + "\n")
    assert run_command(StageSpec.load("dataprep.clean"), [str(source), str(tmp_path / "o"), "--languages", "eng"]) == 2
    assert "langdetect knows no 'eng'. Did you mean 'en'?" in capsys.readouterr().err
