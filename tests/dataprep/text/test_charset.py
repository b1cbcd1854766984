"""The text of a page from its bytes, as a browser would read them."""

import codecs
import re

import pytest

from benchmarks import page_sets
from dataprep.text.charset import codec_name, declared_in, decode_html, decode_text
from tests.samples import Data
from tests.work import at_most

GERMAN = "Der Müller öffnet früh die Schleuse, und das große Rad beginnt sich zu drehen – „schon wieder“."
RUSSIAN = "Мельник открывает ворота на рассвете, и вода начинает вращать тяжёлое колесо мельницы."
JAPANESE = "粉屋は夜明けに水門を開け、水が重い水車を回し始める。"
KOREAN = "방앗간 주인은 새벽에 수문을 열고, 물은 무거운 물레방아를 돌리기 시작한다."
CHINESE = "磨坊主在黎明时打开闸门,水开始转动沉重的轮子。"


def page(text: str, meta: str = "") -> str:
    return f"<html><head>{meta}<title>t</title></head><body><p>{text}</p></body></html>"


CASES = [
    # name, text, encoding of the bytes, header charset, meta tag
    ("nothing declared, UTF-8", GERMAN, "utf-8", None, ""),
    ("UTF-8 by header", GERMAN, "utf-8", "UTF-8", ""),
    ("UTF-8 under a wrong header", GERMAN, "utf-8", "iso-8859-1", ""),
    ("latin-1 means windows-1252", GERMAN, "cp1252", "ISO-8859-1", ""),
    ("latin-1 by meta", GERMAN, "cp1252", None, '<meta charset="latin1">'),
    ("old meta", GERMAN, "cp1252", None, "<meta http-equiv='Content-Type' content='text/html; charset=iso-8859-1'>"),
    ("header before meta", RUSSIAN, "koi8-r", "koi8-r", '<meta charset="windows-1251">'),
    ("meta where the header is unknown", RUSSIAN, "cp1251", "x-unknown", '<meta charset="windows-1251">'),
    ("windows-1251", RUSSIAN, "cp1251", "windows-1251", ""),
    ("Shift_JIS", JAPANESE, "cp932", None, "<META CHARSET=Shift_JIS>"),
    ("EUC-JP", JAPANESE, "euc_jp", "euc-jp", ""),
    ("ISO-2022-JP is plain ASCII by its bytes", JAPANESE, "iso2022_jp", "iso-2022-jp", ""),
    ("gb2312 means gb18030", CHINESE, "gb18030", "gb2312", ""),
    ("XML declaration", GERMAN, "cp1252", None, ""),
    ("undeclared Cyrillic", RUSSIAN * 20, "cp1251", None, ""),
    ("undeclared Cyrillic of DOS", RUSSIAN * 20, "cp855", None, ""),
    ("undeclared Johab", KOREAN * 20, "johab", None, ""),
    ("undeclared EUC-KR is no Johab", KOREAN * 20, "cp949", None, ""),
    ("undeclared ISO-2022-KR", KOREAN, "iso2022_kr", None, ""),
    ("undeclared ISO-2022-JP", JAPANESE, "iso2022_jp", None, ""),
    ("ISO-2022-KR by header", KOREAN, "iso2022_kr", "iso-2022-kr", ""),
    ("UTF-32 by header", RUSSIAN, "utf-32-le", "utf-32", ""),
]


@pytest.mark.parametrize(("text", "encoding", "header", "meta"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_text_comes_out_as_it_went_in(text: str, encoding: str, header: str | None, meta: str) -> None:
    source = page(text, meta)
    if not header and not meta and encoding == "cp1252":
        source = '<?xml version="1.0" encoding="windows-1252"?>' + source
    assert decode_html(source.encode(encoding), header) == source


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", [GERMAN, RUSSIAN, JAPANESE + "\nabc", KOREAN], ids=["de", "ru", "ja", "ko"])
def test_wide_encodings_without_a_mark_are_known_by_their_zeros(encoding: str, text: str) -> None:
    assert decode_text(text.encode(encoding)) == text
    assert decode_html(page(text).encode(encoding), "utf-8") == page(text)
    assert decode_text(codecs.lookup(encoding[:6]).encode(text)[0]) == text  # with a mark


@pytest.mark.parametrize("body", [b"a\0b\0\0c", b"\0" * 100, b"plain\0text of ASCII", b"\x1b[1mbold\x1b[0m"])
def test_zeros_and_escapes_alone_change_nothing(body: bytes) -> None:
    assert decode_text(body) == body.decode()


def test_german_with_few_umlauts_is_no_hangul() -> None:
    assert decode_text(GERMAN.encode("cp1252") * 9) == GERMAN * 9


@pytest.mark.parametrize("mark", [codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE])
def test_a_byte_order_mark_goes_before_everything(mark: bytes) -> None:
    encoding = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}[mark]
    assert decode_html(mark + page(GERMAN).encode(encoding), "iso-8859-1") == page(GERMAN)


def test_a_few_stray_bytes_do_not_change_the_encoding() -> None:
    data = page(GERMAN * 30).encode() + b"\xff\x92"
    assert decode_html(data, "utf-8") == page(GERMAN * 30) + "\ufffd\ufffd"


def test_any_bytes_at_all_are_decoded() -> None:
    for data in (b"", b"\xff", bytes(range(256)) * 10, b"\x81\x8d\x8f\x90\x9d"):
        text = decode_html(data, "windows-1252")
        assert text == decode_html(data, "windows-1252")
        text.encode()


@pytest.mark.parametrize(
    ("label", "codec"),
    [
        ("UTF8", "utf-8"),
        (" 'utf-8' ", "utf-8"),
        ("latin-1", "cp1252"),
        ("us-ascii", "cp1252"),
        ("gbk", "gb18030"),
        ("x-sjis", "cp932"),
        ("Windows-874", "cp874"),
        ("iso-8859-8-i", "iso8859-8"),
        ("utf-7", None),
        ("rot13", None),
        ("unicode_escape", None),
        ("idna", None),
        ("nonsense", None),
        ("\0", None),
        ("", None),
        (None, None),
    ],
)
def test_labels_mean_what_browsers_make_of_them_and_nothing_dangerous(label: str | None, codec: str | None) -> None:
    assert codec_name(label) == codec


def test_a_hostile_meta_tag_takes_no_time() -> None:
    with at_most(20):  # it took 20 s when two patterns could share the spaces
        decode_html(b"<meta " * 227 + b"charset=" + b" " * 2700, None)


def test_a_hostile_page_of_brackets_or_scripts_takes_no_time() -> None:
    with at_most(20):
        for body in (b"<" * 2_000_000, b"<script" * 300_000, b"<style>a</" * 200_000):
            decode_html(body + b"\xfc", None)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_markup_in_utf_16_is_seen_without_a_mark(encoding: str) -> None:
    for text in (GERMAN, JAPANESE):
        assert decode_html(page(text).encode(encoding), None) == page(text)
        assert decode_html(page(text).encode(encoding), encoding) == page(text)


def test_a_header_that_says_utf_16_of_something_else_is_wrong() -> None:
    assert decode_html(page("plain words!").encode(), "utf-16") == page("plain words!")
    assert decode_html(page(GERMAN).encode("cp1252"), "utf-16") == page(GERMAN)


@pytest.mark.parametrize("declared", ["utf-8", "UTF8", "nonsense", None])
@pytest.mark.parametrize(("text", "encoding"), [(GERMAN, "cp1252"), (RUSSIAN, "koi8-r"), (JAPANESE, "euc_jp")])
def test_a_page_that_calls_itself_utf_8_and_is_not_is_read_by_its_bytes(
    text: str, encoding: str, declared: str | None
) -> None:
    meta = f'<meta charset="{declared}">' if declared else ""
    assert decode_html(page(text * 5, meta).encode(encoding), declared) == page(text * 5, meta)


@pytest.mark.parametrize("encoding", ["cp1251", "koi8-r", "cp866", "iso8859-5"])
def test_a_western_label_on_another_script_is_not_believed(encoding: str) -> None:
    source = page("<script>var text = 'a'; " * 30 + "</script>" + RUSSIAN * 8, '<meta charset="iso-8859-1">')
    assert decode_html(source.encode(encoding), "ISO-8859-1") == source


def test_a_few_quotes_and_accents_are_western() -> None:
    text = "A page of English words, “quoted” as in Word – with a naïve café and £5 on it. " * 20
    assert decode_html(page(text).encode("cp1252"), None) == page(text)


def test_plain_text_is_read_the_same_way() -> None:
    assert decode_text((RUSSIAN * 5).encode("cp1251")) == RUSSIAN * 5
    assert decode_text(codecs.BOM_UTF16_LE + GERMAN.encode("utf-16-le")) == GERMAN
    assert decode_text(b"") == ""


LANGUAGES = {
    "ar": ["cp1256"],
    "bg": ["cp1251"],
    "de": ["cp1252"],
    "el": ["cp1253", "iso8859-7"],
    "es": ["cp1252"],
    "fr": ["cp1252"],
    "hu": ["iso8859-2", "cp1250"],
    "ja": ["cp932", "euc_jp"],
    "ko": ["cp949"],
    "pl": ["iso8859-2", "cp1250"],
    "pt": ["cp1252"],
    "ro": ["iso8859-2"],
    "ru": ["cp1251", "koi8-r", "cp866", "iso8859-5"],
    "tr": ["cp1254"],
    "zh-hans": ["gb18030", "gbk"],
    "zh-hant": ["big5"],
}


def test_texts_of_sixteen_languages_are_read_in_their_old_encodings(data: Data) -> None:
    wrong: list[tuple[str, str]] = []
    tried = 0
    for each in data.translations():
        if data.real and not re.search(r"/(?:building|leadership|metrics)[a-z-]*\.md$", each.name):
            continue
        for encoding in LANGUAGES.get(each.language, ()):
            body = page(each.text[1000:4000]).encode(encoding, "ignore")
            for declared in (None, "utf-8", encoding):
                tried += 1
                if decode_html(body, declared) != body.decode(encoding):
                    wrong.append((each.name, encoding))
    assert tried > (150 if data.real else 70)
    assert len(wrong) <= tried // 50, wrong


def test_whole_pages_in_old_encodings_are_read_as_they_declare(data: Data) -> None:
    legacy = 0
    for each in page_sets.load(data.folder / "html", "cleaneval"):
        text = decode_html(each.body, None)
        assert text.count("\ufffd") <= 0.005 * len(text) + 3
        names = [name for name in map(codec_name, declared_in(each.body)) if name]
        if names and names[0] not in ("utf-8", "cp1252"):
            legacy += 1
            assert text == each.body.decode(names[0], "replace")
    assert legacy


def test_latin_1_books_are_read_as_pages(data: Data) -> None:
    books = sorted((data.folder / "text" / "gutenberg").glob("*-8.txt"))
    assert books
    for book in books:
        text = book.read_bytes()[:60_000].decode("cp1252")
        assert decode_html(page(text).encode("cp1252"), None) == page(text)
        assert decode_html(page(text).encode("cp1252"), "utf-8") == page(text)
