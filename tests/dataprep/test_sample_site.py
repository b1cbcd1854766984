"""The sample: made again it has the same bytes, and its first three stages give the answer that was computed."""

import csv
import json
import re
from pathlib import Path

import ftfy
import pytest

from dataprep.download.crawler.local_site import load_site
from dataprep.sample.make_pairs import PAIRS, contaminating_sentences, write_splits
from dataprep.sample.make_pairs import main as make_pairs_main
from dataprep.sample.make_site import main as make_site_main
from dataprep.sample.make_site import make_site
from dataprep.sample.pages import EXACT_COPIES, near_copy
from dataprep.sample.site_folder import KEPT
from dataprep.sample.texts import (
    CONTAMINATED,
    HELD_OUT_FOR_DEV,
    HELD_OUT_FOR_TEST,
    MOJIBAKE,
    SAMPLE,
    read_articles,
    split_sentences,
    word_ngrams,
)
from pipelines import store
from pipelines.command import StageSpec
from pipelines.identity import canonical_url, document_id
from pipelines.stage import run_command
from tests.dataprep.corpora import rows

SITE = SAMPLE / "site"
MRPC = SAMPLE / "glue" / "MRPC"
ARTICLES = read_articles()


def contents(folder: Path) -> dict[str, str]:
    return {file.relative_to(folder).as_posix(): store.sha256(file) for file in store.list_files(folder)}


def answers() -> list[dict[str, str]]:
    return [json.loads(line) for line in (SITE / "expected.jsonl").read_text().splitlines()]


def pairs(name: str) -> list[dict[str, str]]:
    with (MRPC / f"{name}.tsv").open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.mark.nightly
def test_the_committed_site_is_what_its_maker_makes(tmp_path: Path) -> None:
    for _ in range(2):
        make_site().write(tmp_path / "site")
    assert contents(tmp_path / "site") == contents(SITE)


def test_the_makers_leave_a_folder_alone_that_is_not_theirs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis").mkdir()
    for name in ("train.tsv", "chapter-1.tex"):
        (tmp_path / "thesis" / name).write_text("mine")
    assert make_site_main([str(tmp_path / "thesis")]) == 1
    assert "chapter-1.tex: not of an earlier site" in capsys.readouterr().err
    assert make_pairs_main([str(tmp_path / "thesis")]) == 1
    assert "train.tsv: exists already" in capsys.readouterr().err
    assert {file.read_text() for file in (tmp_path / "thesis").iterdir()} == {"mine"}


def test_the_committed_pairs_are_what_their_maker_makes(tmp_path: Path) -> None:
    write_splits(tmp_path)
    assert contents(tmp_path) == contents(MRPC)


def test_the_sample_is_small() -> None:
    assert sum(file.stat().st_size for file in store.list_files(SITE)) < 1_200_000
    assert sum(file.stat().st_size for file in store.list_files(MRPC)) < 700_000


def test_every_kind_of_rejection_is_there_twice_and_sixty_articles_stay() -> None:
    counts: dict[tuple[str, str], int] = {}
    for answer in answers():
        counts[answer["stage"], answer["rule"]] = counts.get((answer["stage"], answer["rule"]), 0) + 1
    assert min(counts.values()) >= 2
    assert counts[KEPT, ""] >= 60
    assert len({answer["url"] for answer in answers()}) == len(answers())


def test_everything_on_the_list_stays_on_this_machine() -> None:
    """No URL of the sample that reaches the downloader belongs to anybody else."""
    hosts = load_site(SITE).hosts
    for answer in answers():
        host = (canonical_url(answer["url"]) or "http://none/").split("/")[2].partition(":")[0]
        assert answer["stage"] == "urls" or host in hosts or answer["rule"] == "private_address", answer


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    fetch = ["--local-site", SITE, "--fetch-log", folder / "fetch_log", "--backoff-seconds", 0.02]
    for name, arguments in {
        "urls": [SITE / "urls.txt", folder / "urls"],
        "download": [folder / "urls", folder / "download", *fetch],
        "extract": [folder / "download", folder / "extract"],
    }.items():
        options = [*arguments, "--workers", 1, "--log-level", "error"]
        assert run_command(StageSpec.load(f"dataprep.{name}"), list(map(str, options))) == 0
    return folder


def test_urls_download_and_extract_give_the_computed_answer(stages: Path) -> None:
    final = {row["url"]: canonical_url(row["final_url"]) for row in rows(stages / "fetch_log") if not row["rule"]}
    extracted = {row["url"] for row in rows(stages / "extract")}
    wrong: list[str] = []
    for answer in answers():
        url = canonical_url(answer["url"]) or answer["url"]
        reached = {answer["url"], url, final.get(url)}
        found = {
            (stage, row["rule"])
            for stage in ("urls", "download", "extract")
            for row in rows(stages / stage / "rejected")
            if row["url"] in reached and (stage != "urls" or row["url"] == answer["url"])
        }
        if reached & extracted and answer["stage"] != "urls":
            found.add(("later", ""))
        early = answer["stage"] in ("urls", "download", "extract")
        if found != {(answer["stage"], answer["rule"]) if early else ("later", "")}:
            wrong.append(f"{answer}: {found}")
    assert wrong == []


def test_the_text_of_every_article_comes_out_exactly(stages: Path) -> None:
    texts = {row["url"]: row["text"] for row in rows(stages / "extract")}
    found = set(texts.values())
    for slug, article in ARTICLES.items():
        if slug in HELD_OUT_FOR_DEV + HELD_OUT_FOR_TEST + CONTAMINATED + MOJIBAKE:
            assert f"{article.title}\n{article.text}" not in found, slug
        else:
            assert f"{article.title}\n{article.text}" in found, slug


def test_mojibake_is_broken_on_the_site_and_can_be_repaired(stages: Path) -> None:
    texts = {row["url"]: row["text"] for row in rows(stages / "extract")}
    urls = [answer["url"] for answer in answers() if answer["kind"] == "mojibake"]
    assert len(urls) == len(MOJIBAKE)
    for url in urls:
        assert "â€" in texts[url]
        repaired = ftfy.fix_text(texts[url], ftfy.TextFixerConfig(uncurl_quotes=False))
        assert repaired in {f"{ARTICLES[slug].title}\n{ARTICLES[slug].text}" for slug in MOJIBAKE}


def test_of_exact_copies_the_lowest_document_id_is_kept(stages: Path) -> None:
    documents = {row["url"]: row for row in rows(stages / "extract")}
    copies = [answer for answer in answers() if answer["kind"] == "exact copy"]
    for slug, number in EXACT_COPIES.items():
        group = [answer for answer in copies if slug in answer["url"]]
        assert len(group) == number + 1
        assert len({documents[answer["url"]]["text"] for answer in group}) == 1
        lowest = min(group, key=lambda answer: documents[answer["url"]]["doc_id"])
        assert [answer for answer in group if answer["stage"] == KEPT] == [lowest]
        for answer in group:
            row = documents[answer["url"]]
            assert row["doc_id"] == document_id(row["url"], row["text"])


def test_near_copies_are_near_and_shorter() -> None:
    for slug in ("reading-the-brown-lines", "why-wool-is-warm"):
        article, copy = ARTICLES[slug], near_copy(ARTICLES[slug])
        ours, theirs = word_ngrams(article.text, 5), word_ngrams(copy.text, 5)
        assert 0.85 <= len(ours & theirs) / len(ours | theirs) < 1
        assert len(copy.text) < len(article.text)


def test_validation_sentences_are_on_two_pages_only(stages: Path) -> None:
    held_out = {gram for name in ("dev", "test") for pair in pairs(name) for gram in word_ngrams(pair["#1 String"], 13)}
    assert held_out
    hits = {row["url"] for row in rows(stages / "extract") if word_ngrams(row["text"], 13) & held_out}
    assert hits == {answer["url"] for answer in answers() if answer["stage"] == "decontaminate"}
    assert len(hits) == len(CONTAMINATED)
    dev = {pair["#1 String"] for pair in pairs("dev")}
    for sentence in contaminating_sentences()[:2]:
        assert sentence in dev
        assert len(re.findall(r"\w+", sentence)) >= 13


@pytest.mark.parametrize("split", PAIRS)
def test_the_pairs_are_in_the_format_of_mrpc(split: str) -> None:
    data = (MRPC / f"{split}.tsv").read_bytes()
    header, *lines = data.decode().rstrip("\n").split("\n")
    first = "index" if split == "test" else "Quality"
    assert header == f"{first}\t#1 ID\t#2 ID\t#1 String\t#2 String"
    assert len(lines) == PAIRS[split]
    assert b"\r" not in data
    cells = [line.split("\t") for line in lines]
    assert {len(row) for row in cells} == {5}
    if split == "test":
        assert [row[0] for row in cells] == [str(i) for i in range(len(lines))]
    else:
        assert [row[0] for row in cells].count("1") == len(lines) / 2
    texts: dict[str, str] = {}
    for row in cells:
        assert all(text == text.strip() and len(text) > 20 for text in row[3:])
        assert row[3] != row[4]
        for number, text in zip(row[1:3], row[3:], strict=True):
            assert texts.setdefault(number, text) == text, "an id stands for one text"
    assert len({tuple(row[3:]) for row in cells}) == len(cells)


def test_there_are_enough_pairs_and_splits_share_no_sentence() -> None:
    assert sum(PAIRS.values()) >= 3000
    first = {name: {pair["#1 String"] for pair in pairs(name)} for name in PAIRS}
    assert not first["train"] & first["dev"]
    assert not first["train"] & first["test"]
    assert not first["dev"] & first["test"]


def test_sentences_end_where_they_should() -> None:
    assert split_sentences("One day. “Two?” she said. Mr Pell came at 5. It rained.") == [
        "One day.",
        "“Two?” she said.",
        "Mr Pell came at 5.",
        "It rained.",
    ]
