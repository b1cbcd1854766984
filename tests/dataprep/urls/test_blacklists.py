"""Blacklists in the formats that people publish them in, and the tables made of them."""

import io
import lzma
import tarfile
from pathlib import Path

import pytest

from dataprep.urls.blacklists import (
    Blacklists,
    EntryCollector,
    EntryTable,
    compile_blacklists,
    list_files,
    load_blacklists,
    open_blacklists,
)
from pipelines.command import Part
from pipelines.errors import UserError
from tests.samples import Data

HOSTS = b"""# a hosts file
127.0.0.1 localhost localhost.localdomain
::1 ip6-localhost
0.0.0.0 0.0.0.0
0.0.0.0 ads.garden.test tracker.garden.test # two
"""


def load(*files: Path) -> Blacklists:
    return load_blacklists(files)


def test_a_plain_list_of_domains_in_any_spelling(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(
        "Garden.test # all of it\n\n*.harbour.test\n.pier.test\nb\u00fccher.test.\nhttp://quay.test/\n192.0.2.7\n"
    )
    found = ["garden.test", "harbour.test", "pier.test", "xn--bcher-kva.test", "quay.test", "192.0.2.7"]
    assert load(file).domains == dict.fromkeys(found, "mine")


def test_encodings_are_read_or_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    marked, windows, latin = (tmp_path / f"{name}.txt" for name in ("marked", "windows", "latin"))
    marked.write_bytes("\ufeffgarden.test\n".encode())
    assert load(marked).domains == {"garden.test": "marked"}
    windows.write_bytes("garden.test\n".encode("utf-16"))
    assert load(windows).domains == {"garden.test": "windows"}
    latin.write_bytes(b"garden.test\n" * 20 + "b\u00fccher.test\n".encode("latin-1"))
    assert load(latin).domains == {"garden.test": "latin"}
    assert "latin.txt: lines that are not entries: 1, the first is line 21: 'b\ufffdcher.test'" in caplog.text


def test_a_hosts_file_gives_its_names_and_not_this_machine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "hosts").write_bytes(HOSTS)
    assert load(tmp_path / "hosts").domains == {"ads.garden.test": "hosts", "tracker.garden.test": "hosts"}
    assert caplog.text == ""


def write_ut1(folder: Path) -> Path:
    """As UT1's archive unpacks: categories with `domains` and `urls`, and files that are no lists."""
    for name, text in {
        "adult/domains": "rose.test\n10.9.8.7\n",
        "adult/urls": "garden.test/~rose\nwww.garden.test/adult/\n",
        "adult/expressions": "(rose|thorn)",
        "press/domains": "rose.test\nnews.test\n",
        "README": "words",
        "cc-by-sa-4-0.pdf": "%PDF",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def check_ut1(lists: Blacklists) -> None:
    assert lists.domains == {"rose.test": "adult", "10.9.8.7": "adult", "news.test": "press"}
    assert lists.pages == {"garden.test/~rose": "adult", "garden.test/adult": "adult"}
    assert lists.page_hosts == {"garden.test": "adult"}


def test_folders_of_ut1_are_categories_of_domains_and_pages(tmp_path: Path) -> None:
    folder = write_ut1(tmp_path / "blacklists")
    check_ut1(load(*list_files(folder)))
    assert load(*list_files(folder / "press")).domains == {"rose.test": "press", "news.test": "press"}


def test_ut1s_archive_is_read_as_it_comes(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as archive:
        archive.add(write_ut1(tmp_path / "blacklists"), "blacklists")
    check_ut1(load(*list_files(tmp_path / "all.tar.gz")))


def test_a_folder_may_mix_formats_and_the_first_category_of_an_entry_counts(tmp_path: Path) -> None:
    (tmp_path / "domains-b.txt.xz").write_bytes(lzma.compress(b"garden.test\nquay.test\n"))
    (tmp_path / "extensions-x.txt").write_text(".PDF\n.tar.gz\n")
    (tmp_path / "domains-a.txt").write_text("garden.test\n")
    (tmp_path / "ads.hosts").write_bytes(HOSTS)
    lists = load(*list_files(tmp_path))
    assert lists.domains["garden.test"] == "a"
    assert lists.domains["quay.test"] == "b"
    assert lists.domains["ads.garden.test"] == "ads"
    assert lists.extensions == {".pdf": "x", ".tar.gz": "x"}


def test_lines_that_are_no_entries_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    domains = [f"garden{i}.test" for i in range(18)]
    (tmp_path / "mine.txt").write_text("\n".join([domains[0], "||ads.test^", "two words", *domains[1:]]))
    with caplog.at_level("WARNING"):
        assert load(tmp_path / "mine.txt").domains == dict.fromkeys(domains, "mine")
    assert "lines that are not entries: 2, the first is line 2: '||ads.test^'" in caplog.text


def test_a_list_of_which_more_than_a_tenth_are_no_entries_is_refused(tmp_path: Path) -> None:
    good = "".join(f"garden{i}.test\n" for i in range(17))
    (tmp_path / "mine.txt").write_text(f"{good}||ads.test^\ntwo words\n")
    with pytest.raises(UserError, match=r"mine.txt: 2 of its 19 lines are not a domain.*; line 18: '\|\|ads.test\^'"):
        load(tmp_path / "mine.txt")


def test_a_table_of_domains_with_an_address_in_each_row_is_no_hosts_file(tmp_path: Path) -> None:
    """The `:` of a web address made such rows pass for addresses of this machine."""
    rows = "".join(f"garden{i}.test,fake,https://bit.test/{i}\n" for i in range(30))
    (tmp_path / "domains.csv").write_text(f"domain,flag,dataset\n{rows}politics.test#,fake,x\n")
    message = "31 of its 32 lines are not a domain, a hosts-file line or a page; line 1: 'domain,flag,dataset'"
    with pytest.raises(UserError, match=message):
        load(tmp_path / "domains.csv")


def test_a_published_table_of_domains_is_refused(data: Data) -> None:
    refused = "2984 of its 2985" if data.real else "41 of its 43"
    with pytest.raises(UserError, match=f"{refused} lines are not a domain"):
        load(data.folder / "urls" / "fake_news_domain_list.csv")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mine.txt", "||ads.test^\n", "none of its 1 lines is a domain"),
        ("mine.txt", "imgur\nyoutube\n", "none of its 2 lines is a domain"),
        ("extensions-mine.txt", "pdf\n", "none of its 1 lines is an extension such as .pdf; line 1: 'pdf'"),
        ("mine.tar.gz", "no archive", "not a readable tar archive"),
        ("mine.txt.gz", "no gzip", "cut off, damaged or of another kind"),
    ],
)
def test_a_list_that_is_none_is_one_clear_line(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message) as error:
        load(tmp_path / name)
    assert str(error.value).startswith(str(tmp_path / name))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_an_archive_damaged_in_the_middle_is_one_clear_line(kind: str, damage: str, tmp_path: Path) -> None:
    text = "".join(f"h{number * 7919 % 1_000_003}.test\n" for number in range(20_000)).encode()
    member = tarfile.TarInfo("ads/domains")
    member.size = len(text)
    file = tmp_path / f"all.tar.{kind}"
    with tarfile.open(file, f"w:{kind}") as archive:  # type: ignore[call-overload]
        archive.addfile(member, io.BytesIO(text))
    data = file.read_bytes()
    middle = len(data) // 2
    file.write_bytes(data[:middle] + (b"" if damage == "cut" else bytes(64) + data[middle + 64 :]))
    with pytest.raises(UserError, match="not a readable tar archive") as error:
        load(file)
    assert "\n" not in str(error.value)


def test_folders_that_are_called_like_lists_are_no_lists(tmp_path: Path) -> None:
    (tmp_path / "ads" / "domains").mkdir(parents=True)
    (tmp_path / "press").mkdir()
    (tmp_path / "press" / "domains").write_text("news.test\n")
    assert load(*list_files(tmp_path)).domains == {"news.test": "press"}


def test_an_archive_without_lists_and_a_missing_path_are_errors(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("adult/readme"), io.BytesIO())
    with pytest.raises(UserError, match="holds no <category>/domains"):
        load(tmp_path / "a.tar")
    with pytest.raises(UserError, match="no such blacklist"):
        list_files(tmp_path / "nothing")


def test_compiled_tables_answer_as_the_lists_do(tmp_path: Path) -> None:
    files = list_files(write_ut1(tmp_path / "lists"))
    (tmp_path / "tables").mkdir()
    compile_blacklists(Part("lists", tuple(files)), tmp_path / "tables", "none")
    check_ut1(open_blacklists((tmp_path / "tables").iterdir()))


def test_a_table_finds_all_its_entries_and_nothing_else(tmp_path: Path) -> None:
    collector = EntryCollector()
    for number in range(300_000):
        collector.add(f"host{number % 150_000}.test", f"category{number % 7}")
    collector.write(tmp_path / "domains.ipc")
    table = EntryTable(tmp_path / "domains.ipc")
    assert len(table) == 150_000
    for number in range(0, 150_000, 997):
        assert table.get(f"host{number}.test") == f"category{number % 7}"
    assert table.get("host150000.test") is None
    assert table.get("") is None


def test_a_table_without_entries_finds_nothing(tmp_path: Path) -> None:
    EntryCollector().write(tmp_path / "pages.ipc")
    assert EntryTable(tmp_path / "pages.ipc").get("garden.test") is None
