"""What file names, servers and documents say cannot control a terminal, forge a line of the log, or a page."""

import logging

import pytest

from pipelines import log
from pipelines.__main__ import main
from pipelines.command import StageSpec
from pipelines.stage import run_command
from pipelines.terminal import counted, print_error, print_line, they_are, visible, without_controls
from trainer.report import escape_markdown

HOSTILE = "a\x1b[2J\x07\nerror: forged\r\x9b31m\u202egnp.exe\udce9"
SAFE = r"a\x1b[2J\x07\nerror: forged\r\x9b31m\u202egnp.exe\udce9"


def test_a_text_from_outside_is_one_printable_line() -> None:
    assert visible(HOSTILE) == SAFE
    assert visible("naïve café 日本 – “ok”") == "naïve café 日本 – “ok”"
    assert visible("\0" * 1000) == r"\x00×1000 "


@pytest.mark.parametrize(
    ("one", "units"),
    [("document", "documents"), ("URL", "URLs"), ("process", "processes"), ("batch", "batches"), ("page", "pages")],
)
def test_one_of_something_is_not_called_by_its_plural(one: str, units: str) -> None:
    assert counted(1, units) == f"1 {one}"
    assert they_are(1, units) == f"1 {one} is"
    assert (counted(0, units), counted(2048, units)) == (f"0 {units}", f"2,048 {units}")
    assert they_are(2, units) == f"2 {units} are"


def test_errors_lines_and_the_log_are_printed_so(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure()
    logging.getLogger("any").warning("%s: not read", HOSTILE)
    print_error(HOSTILE)
    print_line(HOSTILE)
    printed = capsys.readouterr()
    assert printed.err == f"{SAFE}: not read\nerror: {SAFE}\n"
    assert printed.out == f"{SAFE}\n"


def test_a_traceback_in_the_log_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure()
    try:
        raise ValueError("inside")
    except ValueError:
        logging.getLogger("any").exception("broke\nhere")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == r"broke\nhere"
    assert lines[-1] == "ValueError: inside"


def test_a_path_in_the_error_of_a_command_is_printed_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(StageSpec.load("dataprep.clean"), [f"{HOSTILE[:-1]}.jsonl", "out"]) == 1
    assert main([HOSTILE]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error: {SAFE[:-6]}.jsonl: no such file or folder")
    assert second.startswith(f"error: {SAFE}: no such command")


def test_a_page_of_the_report_holds_no_control_characters() -> None:
    assert escape_markdown(HOSTILE[:-1]).isprintable()
    assert without_controls("two\nlines\tand a\u00a0gap") == "two\nlines\tand a\u00a0gap"
    assert without_controls("a\x1b[2J\u202e") == r"a\x1b[2J\u202e"
