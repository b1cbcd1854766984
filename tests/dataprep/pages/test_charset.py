"""The text of a page from its bytes, as a browser would read them."""

import codecs
import time

import pytest

from dataprep.pages.charset import codec_name, decode_html

GERMAN = "Der Müller öffnet früh die Schleuse, und das große Rad beginnt sich zu drehen – „schon wieder“."
RUSSIAN = "Мельник открывает ворота на рассвете, и вода начинает вращать тяжёлое колесо мельницы."
JAPANESE = "粉屋は夜明けに水門を開け、水が重い水車を回し始める。"
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
]


@pytest.mark.parametrize(("text", "encoding", "header", "meta"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_text_comes_out_as_it_went_in(text: str, encoding: str, header: str | None, meta: str) -> None:
    source = page(text, meta)
    if not header and not meta and encoding == "cp1252":
        source = '<?xml version="1.0" encoding="windows-1252"?>' + source
    assert decode_html(source.encode(encoding), header) == source


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
    started = time.process_time()
    decode_html(b"<meta " * 227 + b"charset=" + b" " * 2700, None)
    assert time.process_time() - started < 2.0, "it took 20 s when two patterns could share the spaces"
