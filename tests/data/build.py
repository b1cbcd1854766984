"""Makes the sample of the tests: `build(folder)` fills a folder with the layout of the real collections.

Everything follows from the files beside this one and from the articles and pages of `dataprep/sample`; nothing is
drawn without a seed. What each part is, and its licence: README.md.
"""

import functools
import gzip
import html
import io
import json
import lzma
import random
import re
import shutil
import tarfile
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from dataprep.sample.texts import CONTAMINATED, MOJIBAKE, SAMPLE, Article, read_articles

HERE = Path(__file__).parent
END_OF_TEXT = "<|endoftext|>"
DATE = "2026-01-31T12:00:00Z"
NUM_DOCUMENTS = 200

articles_of = functools.cache(read_articles)


def build(folder: Path) -> None:
    """Fill a folder with the whole sample."""
    shutil.copytree(HERE / "glue", folder / "glue")
    (folder / "text").mkdir()
    shutil.copy(HERE / "text" / "udhr-multilingual.tar.xz", folder / "text")
    unpack_gpt2(folder / "gpt2-tokenizer")
    write_documents(folder / "text" / f"openwebtext-{NUM_DOCUMENTS}")
    write_books(folder / "text" / "gutenberg")
    write_encodings(folder / "encodings")
    write_pages(folder / "html")
    write_articles(folder / "dedup" / "minhash-articles")
    write_lists(folder / "urls")
    write_archives(folder)


# ------------------------------------------------------------------------------------------------------- tokenizers


def unpack_gpt2(folder: Path) -> None:
    """GPT-2's two files. Its vocabulary is the 256 bytes, then what each merge makes, then end-of-text."""
    folder.mkdir(parents=True)
    merges = lzma.decompress((HERE / "gpt2-tokenizer" / "vocab.bpe.xz").read_bytes())
    (folder / "vocab.bpe").write_bytes(merges)
    made = [line.replace(" ", "") for line in merges.decode().splitlines()[1:]]
    entries = [*letters_of_bytes(), *made, END_OF_TEXT]
    (folder / "encoder.json").write_text(json.dumps({entry: number for number, entry in enumerate(entries)}))


def letters_of_bytes() -> list[str]:
    """The letters that stand for bytes in GPT-2's files: first those that are printable, then all others."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(code) for code in printable] + [chr(0x100 + place) for place in range(256 - len(printable))]


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """A byte-level BPE of 2,000 entries whose last one is end-of-text."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = ByteLevelDecoder()
    alphabet = sorted(ByteLevel.alphabet())
    made.train_from_iterator(texts, BpeTrainer(vocab_size=1999, initial_alphabet=alphabet, show_progress=False))
    return made


# -------------------------------------------------------------------------------------------------------- documents

BOILERPLATE = (
    "Share this:\nClick to share on Twitter (Opens in new window)\nClick to email this to a friend",
    "Sign up for our newsletter\nEnter your e-mail address below. You can unsubscribe at any time.",
    "Advertisement\n\nContinue reading the main story",
    "© 2016 The Garden Wall. All rights reserved. | Terms of Use | Privacy Policy",
    "Please enable JavaScript to view the comments powered by Disqus.",
)


def web_documents() -> list[str]:
    """Texts as extractors leave them: whole and in parts, with boilerplate, entities, mojibake and near-duplicates."""
    articles = list(articles_of().values())
    documents: list[str] = []
    for number in range(NUM_DOCUMENTS):
        chance = random.Random(number)
        text = passage(articles[number % len(articles)], chance)
        documents.append(VARIANTS.get(number % 20, lambda text, *_: text)(text, chance, documents))
    return documents


def passage(article: Article, chance: random.Random) -> str:
    """Some paragraphs of an article in their order, half of the time with its title."""
    first = chance.randrange(len(article.paragraphs))
    paragraphs = article.paragraphs[first : first + chance.randint(1, 6)]
    return "\n\n".join([article.title, *paragraphs] if chance.random() < 0.5 else paragraphs)


def near_copy(text: str, chance: random.Random, changed: float = 0.01) -> str:
    """The text with a few of its words replaced."""
    return re.sub(r"\w+", lambda word: "changed" if chance.random() < changed else word[0], text)


def mojibake(text: str, encoding: str = "windows-1252") -> str:
    """UTF-8 read in another encoding; bytes that it has no character for are read as Latin-1, as browsers do."""
    return "".join(byte_as(byte, encoding) for byte in text.encode())


def byte_as(byte: int, encoding: str) -> str:
    """One byte in a one-byte encoding."""
    try:
        return bytes([byte]).decode(encoding)
    except UnicodeDecodeError:
        return chr(byte)


VARIANTS: dict[int, Callable[[str, random.Random, list[str]], str]] = {
    1: lambda text, chance, _: f"{text}\n\n{chance.choice(BOILERPLATE)}",
    4: lambda text, chance, _: f"{chance.choice(BOILERPLATE)}\n\n{text}\n\n{chance.choice(BOILERPLATE)}",
    6: lambda text, chance, made: near_copy(made[chance.randrange(len(made))], chance),
    8: lambda text, *_: mojibake(text),
    9: lambda text, *_: html.escape(text).replace("’", "&rsquo;").replace("–", "&#8211;"),
    11: lambda text, *_: text[:150],
    12: lambda text, chance, made: made[chance.randrange(len(made))],
    14: lambda text, *_: text.replace(" ", "\u00a0", 9).replace("fi", "ﬁ"),
    17: lambda text, *_: mojibake(mojibake(text[:900])),
    18: lambda text, chance, _: chance.choice(list(translations().values()))[200:1800],
    19: lambda text, *_: text.replace("\n", "\r\n"),
}
"""What the documents with this number, modulo 20, are instead of a plain passage."""


def write_documents(folder: Path) -> None:
    """The documents as JSONL, and as a Megatron pair with its vocabulary and merges beside it."""
    from tests.dataprep.readers.test_megatron import write_pair

    folder.mkdir(parents=True)
    texts = web_documents()
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / f"{folder.name}.decoded.jsonl").write_text(rows)
    tokenizer = train_tokenizer(texts)
    vocabulary = tokenizer.get_vocab() | {END_OF_TEXT: tokenizer.get_vocab_size()}
    (folder / "gpt2-tiny-vocab.json").write_text(json.dumps(vocabulary))
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    (folder / "gpt2-tiny-merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, merges)]) + "\n")
    ids = [[*encoding.ids, vocabulary[END_OF_TEXT]] for encoding in tokenizer.encode_batch(texts)]
    for file in (write_pair(folder, [[each] for each in ids]), folder / "a.idx"):
        file.rename(folder / f"meg-gpt2-openwebtext_text_document{file.suffix}")


@functools.cache
def translations() -> dict[str, str]:
    """The beginning of the Universal Declaration of Human Rights, by language."""
    with tarfile.open(HERE / "text" / "udhr-multilingual.tar.xz") as tar:
        return {Path(member.name).stem: file.read().decode() for member in tar if (file := tar.extractfile(member))}


# ------------------------------------------------------------------------------------------------------------ books

LICENCE = "\n".join(
    f"Clause {number}. You may copy this book, give it away or read it aloud to anybody, whatever the hour, as long "
    "as you leave these clauses with it, and say where you had it from, and do not charge for it."
    for number in range(1, 13)
)
BEGINNINGS = (
    "*** START OF THIS PROJECT GUTENBERG EBOOK {} ***\n\n\n\n\nProduced by Nobody in Particular",
    "***START OF THE PROJECT GUTENBERG EBOOK {}***",
    "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*",
)
ENDINGS = (
    "*** END OF THIS PROJECT GUTENBERG EBOOK {} ***",
    "***END OF THE PROJECT GUTENBERG EBOOK {}***",
    "End of the Project Gutenberg Etext of {}",
)
ASCII = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "--", "—": "--", "…": "..."})


def write_books(folder: Path) -> None:
    """Two books in the editions of several years: UTF-8 (-0), Latin-1 (-8), and plain ASCII."""
    folder.mkdir(parents=True)
    articles = list(articles_of().values())
    foreign = list(articles_of("articles_foreign").values())
    books = {
        "sample-paths-and-rivers_1": ("PATHS AND RIVERS", articles[:30]),
        "sample-quatre-contes_2": ("QUATRE CONTES", foreign),
    }
    for name, (title, chapters) in books.items():
        body = "\n\n\n\n".join(f"{each.title.upper()}\n\n" + "\n\n".join(each.paragraphs) for each in chapters)
        for year, suffix in enumerate(("-0", "-8", "")):
            text = edition(title, body if suffix == "-0" else body.translate(ASCII), year)
            encoding = {"-0": "utf-8", "-8": "latin-1", "": "ascii"}[suffix]
            number = name.rpartition("_")[2]
            (folder / f"{name}__{number}{suffix}.txt").write_bytes(text.encode(encoding, "replace"))


def edition(title: str, body: str, year: int) -> str:
    """A book between its header and the licence, in lines of 70 characters that end as on Windows."""
    head = f"The Project Gutenberg EBook of {title}, by Nobody\n\nThis eBook is for the use of anyone anywhere.\n\n"
    head += LICENCE if year == 2 else ""
    parts = [head, BEGINNINGS[year].format(title), "", "", title, "", "", body, "", "", ENDINGS[year].format(title)]
    lines = "\n".join([*parts, "", LICENCE if year != 2 else ""]).split("\n")
    return "\r\n".join(wrapped for line in lines for wrapped in (textwrap.wrap(line, 70) or [""]))


# --------------------------------------------------------------------------------------------------- mojibake, pages

MISREADINGS = {
    "UTF-8 as Windows-1252": mojibake,
    "UTF-8 as Latin-1": lambda text: mojibake(text, "latin-1"),
    "UTF-8 as MacRoman": lambda text: mojibake(text, "mac_roman"),
    "UTF-8 as Windows-1251": lambda text: mojibake(text, "windows-1251"),
    "UTF-8 as code page 437": lambda text: mojibake(text, "cp437"),
    "twice UTF-8 as Windows-1252": lambda text: mojibake(mojibake(text)),
    "a no-break space lost": lambda text: mojibake(text).replace("\u00a0", " "),
    "bytes lost": lambda text: mojibake(text).replace("\x9d", "\ufffd").replace("\x81", "?"),
    "entities": lambda text: html.escape(text).encode("ascii", "xmlcharrefreplace").decode(),
    "mojibake in entities": lambda text: html.escape(mojibake(text)),
    "nothing wrong": str,
}


def write_encodings(folder: Path) -> None:
    """Lines of many languages, some of them misread in each common way, as lists of cases."""
    folder.mkdir(parents=True)
    lines = {code: text.split("\n")[4][:120] for code, text in translations().items()}
    lines |= {"quotes": "“It’s late”, she said — ‘too late’…", "signs": "½ € £ 5 °C × ² ¼ © ® ™ «ﬁne» naïve café"}
    for number, (name, misread) in enumerate(MISREADINGS.items()):
        chosen = list(lines.items())[number % 4 :: 4]
        cases = [{"label": f"{name}: {code}", "original": misread(line), "fixed": line} for code, line in chosen]
        file = folder / f"{name.replace(' ', '-').lower()}.json"
        file.write_text(json.dumps(cases, indent=4, ensure_ascii=False), "utf-8")
    (folder / "face.txt").write_text(mojibake("(╯°□°)╯︵ ┻━┻") + "\n", "utf-8")


@functools.cache
def site_pages() -> dict[str, tuple[str, bytes]]:
    """URL and body of the page of each article on the sample's sites, by slug; of several copies the first."""
    pages: dict[str, tuple[str, bytes]] = {}
    for file in sorted((SAMPLE / "site" / "pages").glob("*/*.html")):
        pages.setdefault(file.stem, (f"http://{file.parent.name}/{file.stem}", file.read_bytes()))
    return pages


def write_pages(folder: Path) -> None:
    """The sample's pages with the articles that they were made of, and pages in old encodings that they declare."""
    (folder / "scrapinghub" / "html").mkdir(parents=True)
    truth: dict[str, dict[str, str]] = {}
    for slug, article in articles_of().items():
        url, body = site_pages().get(slug, ("", b""))
        if body and slug not in (*CONTAMINATED, *MOJIBAKE):  # whose pages are not what the article says
            truth[slug] = {"url": url, "articleBody": article.text}
            (folder / "scrapinghub" / "html" / f"{slug}.html.gz").write_bytes(gzip.compress(body, mtime=0))
    (folder / "scrapinghub" / "ground-truth.json").write_text(json.dumps(truth, indent=1))
    write_old_pages(folder / "cleaneval-final.tar.gz")


OLD_ENCODINGS = {
    "ar": "windows-1256",
    "cs": "iso-8859-2",
    "de": "iso-8859-1",
    "el": "iso-8859-7",
    "fr": "windows-1252",
    "he": "windows-1255",
    "ja": "shift_jis",
    "ko": "euc-kr",
    "pl": "windows-1250",
    "ru": "koi8-r",
    "sv": "utf-8",
    "th": "windows-874",
    "tr": "iso-8859-9",
    "uk": "windows-1251",
    "zh-hans": "gb2312",
    "zh-hant": "big5",
}
CODECS = {"windows-874": "cp874", "shift_jis": "cp932", "gb2312": "gbk"}
"""Codecs of Python for what browsers take these names for."""


def old_page(code: str, text: str) -> bytes:
    """A page of 2006 in an encoding of its language."""
    label = OLD_ENCODINGS[code]
    paragraphs = "".join(f"<P>{html.escape(line)}</P>\n" for line in text.split("\n"))
    head = f'<META HTTP-EQUIV="Content-Type" CONTENT="text/html; charset={label}">'
    page = f"<HTML><HEAD>{head}<TITLE>{code}</TITLE></HEAD>\n<BODY>{paragraphs}</BODY></HTML>"
    return page.encode(CODECS.get(label, label), "xmlcharrefreplace")


def write_old_pages(archive: Path) -> None:
    """Those pages and their texts, in the layout of CleanEval's final set."""
    with tarfile.open(archive, "w:gz") as tar:
        for number, (code, text) in enumerate((c, t) for c, t in translations().items() if c in OLD_ENCODINGS):
            add_member(tar, f"cleaneval/input/{number}.html", old_page(code, text))
            gold = f"URL: http://{code}.test/\n\n<h>{text.replace(chr(10), chr(10) + '<p>')}"
            add_member(tar, f"cleaneval/GoldStandard/{number}.txt", gold.encode())


def add_member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Append a file to a tar archive."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


# ------------------------------------------------------------------------------------------ near-duplicates and URLs


def write_articles(folder: Path) -> None:
    """One article on a line behind its name, eight of them nearly twice; those pairs are the truth."""
    folder.mkdir(parents=True)
    texts = [" ".join(article.text.split()) for article in articles_of().values()]
    chance = random.Random(1)
    copied = chance.sample(range(len(texts)), 8)
    lines = [f"t{number} {text}" for number, text in enumerate(texts)]
    lines += [f"t{1000 + number} {near_copy(texts[number], chance, 0.015)}" for number in copied]
    chance.shuffle(lines)
    (folder / f"articles_{len(lines)}.train").write_text("\n".join(lines) + "\n")
    truth = "".join(f"t{number} t{1000 + number}\n" for number in copied)
    (folder / f"articles_{len(lines)}.truth").write_text(truth)


def submission(number: int) -> dict[str, Any]:
    """One link as Pushshift's dumps have it, every fifth with an entity in its URL."""
    query = "?a=1&amp;b=2" if number % 5 == 0 else ""
    host = f"{('garden', 'harbour', 'library')[number % 3]}.test"
    return {
        "author": f"reader{number % 7}",
        "created_utc": 1119300000 + 20_000 * number,  # from 2005-06-20 on
        "domain": host,
        "is_self": number % 11 == 10,
        "over_18": number % 13 == 12,
        "permalink": f"/r/reddit.com/comments/{number}/",
        "score": number % 9,
        "selftext": "",
        "subreddit": "reddit.com",
        "title": f"Article “{number}”",
        "url": f"http://{host}/article/{number}{query}",
    }


def write_lists(folder: Path) -> None:
    """Submissions of two months, compressed as Pushshift did then, and a table of domains that is no blacklist."""
    (folder / "pushshift").mkdir(parents=True)
    for month, numbers in (("06", range(30)), ("07", range(30, 90))):
        lines = "".join(json.dumps(submission(number)) + "\n" for number in numbers)
        (folder / "pushshift" / f"RS_v2_2005-{month}.xz").write_bytes(lzma.compress(lines.encode()))
    rows = [f"gazette{number}.test,{('fake', 'satire')[number % 2]},https://list.test/{number}" for number in range(40)]
    table = "\n".join(["domain,flag_description,dataset", *rows, "politics.test#,fake,", "lonely.test"]) + "\n"
    (folder / "fake_news_domain_list.csv").write_text(table)


# --------------------------------------------------------------------------------------------------------- archives


class Archive:
    """A WARC as another crawler writes it: warcio's writer, one gzip member for each record."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._writer = WARCWriter(self._buffer, gzip=True)
        self.ends: list[int] = []
        """Where each member ends, in bytes."""

    def add(self, kind: str, url: str, block: bytes, http: StatusAndHeaders | None = None, **fields: str) -> None:
        """Append a record; `http` is the head of a response or request."""
        number = len(self.ends)
        headers = {"WARC-Date": DATE, "WARC-Record-ID": f"<urn:uuid:00000000-0000-4000-8000-{number:012d}>"}
        headers |= {name.replace("_", "-"): value for name, value in fields.items()}
        record = self._writer.create_warc_record(
            url, kind, payload=io.BytesIO(block), http_headers=http, warc_headers_dict=headers
        )
        self._writer.write_record(record)
        self.ends.append(self._buffer.tell())

    def page(self, url: str, body: bytes, *headers: tuple[str, str], status: str = "200 OK") -> None:
        """Append a request and its response."""
        named = headers if any(name == "Content-Type" for name, _ in headers) else (*headers, HTML_TYPE)
        asked = StatusAndHeaders(f"GET {url} HTTP/1.1", [("Host", "a.test")], is_http_request=True)
        self.add("request", url, b"", asked)
        self.add("response", url, body, StatusAndHeaders(status, [*named], protocol="HTTP/1.1"))

    @property
    def data(self) -> bytes:
        """The whole file."""
        return self._buffer.getvalue()


HTML_TYPE = ("Content-Type", "text/html; charset=utf-8")


def chunked(body: bytes, size: int = 1000) -> bytes:
    """A body in chunks of HTTP's transfer encoding."""
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""])


def sample_archive() -> Archive:
    """Twenty pages of the sample's sites in all that HTTP and WARC make of a page, and records that are no page."""
    archive = Archive()
    archive.add("warcinfo", "", b"software: warcio\r\nformat: WARC File Format 1.0\r\n")
    archive.add(
        "response", "dns:garden.test", b"20260131120000\ngarden.test.\t300\tIN\tA\t192.0.2.1\n", Content_Type="text/dns"
    )
    pages = list(site_pages_of_articles())
    for number, (url, body) in enumerate(pages[:20]):
        if number % 4 == 1:
            archive.page(url, gzip.compress(body, mtime=0), ("Content-Encoding", "gzip"))
        elif number % 4 == 2:
            archive.page(url, chunked(body), ("Transfer-Encoding", "chunked"))
        else:
            archive.page(url, body)
    archive.page("http://garden.test/gone", b"<p>Gone.</p>", status="404 Not Found")
    archive.page("http://garden.test/old", b"", ("Location", pages[0][0]), status="301 Moved Permanently")
    archive.page("http://garden.test/bee.png", b"\x89PNG\r\n\x1a\n" + bytes(200), ("Content-Type", "image/png"))
    archive.page("http://garden.test/de", old_page("de", translations()["de"]), ("Content-Type", "text/html"))
    head = StatusAndHeaders("200 OK", [HTML_TYPE], protocol="HTTP/1.1")
    archive.add("revisit", pages[0][0], b"", head, WARC_Refers_To_Date=DATE)
    archive.add("metadata", pages[0][0], b"fetchTimeMs: 12\r\n")
    return archive


def site_pages_of_articles() -> Iterable[tuple[str, bytes]]:
    """URL and body of the pages with a whole English article."""
    return [page for slug, page in site_pages().items() if slug in articles_of() and slug not in MOJIBAKE]


def write_archives(folder: Path) -> None:
    """A sound WARC, WET and ARC file, and the WARC damaged in three places."""
    (folder / "warc").mkdir()
    (folder / "warc-damaged").mkdir()
    archive = sample_archive()
    (folder / "warc" / "sample.warc.gz").write_bytes(archive.data)
    for name, data in damaged(archive).items():
        (folder / "warc-damaged" / f"sample-{name}.warc.gz").write_bytes(data)
    texts = Archive()
    texts.add("warcinfo", "", b"Software-Info: ia-web-commons\r\n")
    for article in list(articles_of().values())[:3]:
        texts.add("conversion", f"http://garden.test/{article.slug}", article.text.encode(), Content_Type="text/plain")
    (folder / "warc" / "sample.warc.wet.gz").write_bytes(texts.data)
    (folder / "warc" / "sample.arc").write_bytes(arc())


def damaged(archive: Archive) -> dict[str, bytes]:
    """Bits flipped in the middle of the tenth page, the file cut off in the twentieth, bytes between two records."""
    data, ends = archive.data, archive.ends
    tenth, last = (2 + 2 * page + 1 for page in (9, 19))
    middle = (ends[tenth - 1] + ends[tenth]) // 2
    noise = random.Random(2).randbytes(700).replace(b"\x1f\x8b", b"..")
    return {
        "flipped": data[:middle] + bytes(byte ^ 0x55 for byte in data[middle : middle + 8]) + data[middle + 8 :],
        "cut": data[: (ends[last - 1] + ends[last]) // 2],
        "noise": data[: ends[tenth]] + noise + data[ends[tenth] :],
    }


def arc() -> bytes:
    """Eight pages in an ARC file as Common Crawl wrote them until 2012, but not compressed."""
    names = b"1 0 CommonCrawl\nURL IP-address Archive-date Content-type Archive-length\n"
    records = [b"filedesc://sample.arc 0.0.0.0 20100106234911 text/plain %d\n%b" % (len(names), names)]
    for url, body in list(site_pages_of_articles())[20:28]:
        block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=UTF-8\r\nServer: sample\r\n\r\n" + body
        records.append(b"%b 192.0.2.1 20100106234911 text/html %d\n%b" % (url.encode(), len(block), block))
    return b"\n".join(records) + b"\n"
