"""Documents for tests of `clean` as a whole: web pages, hard texts, and a shard of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dataprep.clean.config import CleanConfig
from dataprep.clean.stage import clean_part
from pipelines.command import Part
from pipelines.documents import DOCUMENT_SCHEMA, TableWriter, read_rows
from pipelines.manifest import Counts
from tests.samples import Data

ENGLISH = "The river has turned the wheel of this mill for three hundred years, and the miller still lives here. " * 10
GERMAN = (
    "Der Fluss dreht seit dreihundert Jahren das Rad dieser Mühle, und der Müller wohnt noch immer hier im Tal. " * 10
)
HEBREW = "הטחנה הישנה עומדת על גדת הנהר והגלגל שלה מסתובב כבר שלוש מאות שנה " * 12
NAUGHTY = {
    "empty": "",
    "space": " \n\t\r\n ",
    "NULs": "The mill\x00 turned\x00. " * 60,
    "only NULs": "\x00" * 500,
    "control characters": "".join(map(chr, range(32))) * 30 + ENGLISH,
    "escapes": "\x1b[31mThe mill turned red.\x1b[0m " * 60,
    "C1 controls": "".join(map(chr, range(128, 160))) * 20,
    "no letters": "1234 5678 90, 3.14! " * 100,
    "punctuation": "?!… --- *** ### " * 100,
    "emoji only": "🦕🏳️‍🌈👩‍👩‍👧‍👦🇺🇳" * 100,
    "mixed scripts": "The мельница stands 在河边 και γυρίζει الماء. " * 40,
    "right to left": HEBREW,
    "bidirectional": "\u202eThe mill\u202c \u2066turned\u2069 \u200fהטחנה\u200e. " * 50,
    "combining": "Z̴̡̛͙̰̩̣̆͆̈́̂͐a̵l̶g̷o̸ turns the mill. " * 60,
    "one character": "a" * 20_000,
    "one word many times": "mill " * 5000,
    "wide": "Ｔｈｅ　ｍｉｌｌ　ｔｕｒｎｅｄ　" * 60,
    "byte order marks": "\ufeffThe mill turned. " * 60,
    "non-characters": "The mill\ufffe turned\uffff at \U0010ffff dawn. " * 40,
    "replacement characters": "The mill \ufffd\ufffd turned. " * 60,
    "surrogates as entities": "The mill &#xD800;&#55357; turned &#x110000; &#0; &notanentity; &amp;amp;lt;. " * 30,
    "surrogates as mojibake": "The mill í\xa0\x80 turned í\xa0½í¸\x80. " * 60,
    "markup": "<script>alert('mill')</script><b>The mill</b> turned {{ wheel }} ${water} %s %n " * 40,
    "quotes": "“The mill” ‘turned’ „at“ «dawn» ʼn " * 60,
    "line separators": "The mill turned.\u2028It turned.\u2029And turned.\x85\x0b\x0c" * 40,
    "long lines": "\n".join(["The mill turned and turned again at dawn. " * 100] * 4),
    "many lines": "\n" * 5000 + "mill\n" * 3000,
    "ligatures": "The oﬃcial ﬁrst ﬂood of the mill. ǆ ĳ " * 60,
    "undecodable": "ÃƒÂ¢Ã¢â€šÂ¬Ã¢â€žÂ¢ the mill turned " * 40,
    "mail and numbers": "Write to miller@mill.example or 203.0.113.7, or call +1 (555) 010-9999 at the mill. " * 20,
}


def encoding_cases(data: Data) -> dict[str, str]:
    """Cases of mojibake, right and wrong."""
    return {f"case {number}": text for number, text in enumerate(data.encoding_cases())}


def web_texts(data: Data, number: int) -> dict[str, str]:
    """Web pages, nearly all in English, the first lines of some, and one text in each of many languages."""
    texts = data.documents(number)
    guides = [each for each in data.translations() if not data.real or each.name.endswith("/best-practices.md")]
    texts += [each.text[:2000] for each in guides]
    texts += [text[: 150 + 45 * place] for place, text in enumerate(texts[:25])]
    return {f"web {place}": text for place, text in enumerate(texts)}


def shard(folder: Path, texts: dict[str, str]) -> Path:
    """One shard of documents whose URLs are the keys."""
    with TableWriter(folder / "part-00000.parquet", DOCUMENT_SCHEMA) as table:
        for number, (name, text) in enumerate(texts.items()):
            row = {"doc_id": (number * 2654435761 % 2**32).to_bytes(4, "big") * 4, "url": name, "text": text}
            table.write({**row, "source": "test"})
    return folder / "part-00000.parquet"


def clean_shard(source: Path, folder: Path, config: CleanConfig) -> tuple[Counts, Sequence[Any], Sequence[Any]]:
    """Counts, kept rows and rejected rows of one shard."""
    counts = clean_part(Part("part-00000", (source,)), folder, config)
    rejected = folder / "rejected" / "part-00000.parquet"
    rows = list(read_rows(rejected)) if rejected.exists() else []
    return counts, list(read_rows(folder / "part-00000.parquet")), rows
