"""A wrong parameter is one line that names file, key, expectation and the nearest valid name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from pipelines.config import Count, Share, given, load_section, read_yaml
from pipelines.errors import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    depth: Count = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    min_tokens: Count = 128
    share: Share = 0.5
    mode: Literal["fast", "exact"] = "fast"
    languages: tuple[str, ...] = ("en",)
    name: str | None = None
    exact: bool = False
    inner: Inner = Inner()


GOOD = {
    "min_tokens": 3,
    "share": 1,
    "mode": "exact",
    "languages": ["de"],
    "name": None,
    "exact": True,
    "inner": {"depth": 1},
}


def load(**changes: object) -> Sample:
    values = {**GOOD, **changes}
    return load_section(
        Sample, {"sample": {k: v for k, v in values.items() if v != "MISSING"}}, "sample", "params.yaml"
    )


def test_a_good_section_becomes_a_frozen_dataclass() -> None:
    assert load() == Sample(min_tokens=3, share=1.0, mode="exact", languages=("de",), exact=True, inner=Inner(depth=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_token": 1}, "params.yaml: sample.min_token: unknown key. Did you mean 'min_tokens'?"),
        ({"share": "MISSING"}, "params.yaml: sample.share: missing; expected float"),
        ({"mode": "MISSING"}, "params.yaml: sample.mode: missing; expected one of fast, exact"),
        ({"min_tokens": "many"}, "params.yaml: sample.min_tokens: expected a valid integer, got 'many'"),
        ({"min_tokens": True}, "params.yaml: sample.min_tokens: expected a valid integer, got True"),
        ({"min_tokens": 0}, "params.yaml: sample.min_tokens: expected greater than 0, got 0"),
        ({"share": 1.5}, "params.yaml: sample.share: expected less than or equal to 1, got 1.5"),
        ({"mode": "exakt"}, "params.yaml: sample.mode: expected 'fast' or 'exact', got 'exakt'"),
        ({"languages": "en"}, "params.yaml: sample.languages: expected a list, [en], got 'en'"),
        ({"languages": [False]}, "params.yaml: sample.languages.0: expected a valid string, got False; put a word"),
        ({"exact": "yes"}, "params.yaml: sample.exact: expected a valid boolean, got 'yes'; write true or false"),
        ({"languages": [1]}, "params.yaml: sample.languages.0: expected a valid string, got 1"),
        ({"inner": {"dept": 1}}, "params.yaml: sample.inner.dept: unknown key. Did you mean 'depth'?"),
        ({"inner": {"depth": -1}}, "params.yaml: sample.inner.depth: expected greater than 0, got -1"),
        ({"inner": 3}, "params.yaml: sample.inner: expected keys with values, such as depth, got 3"),
        ({"inner": [1]}, "params.yaml: sample.inner: expected keys with values, such as depth, got [1]"),
    ],
)
def test_a_wrong_key_or_value_names_file_key_and_expectation(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**changes)
    assert str(caught.value).startswith(message)


def test_a_missing_section_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"section 'sample' is missing. Did you mean 'sampel'"):
        load_section(Sample, {"sampel": GOOD}, "sample", "params.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not valid YAML"),
        ("- 1", r"expected keys with values \(key: value\), found a list"),
        ("word", "found one word"),
        (None, "no such file"),
        ("a: 1\nb: {}\na: 2\n", "not valid YAML: key 'a' stands twice, also in line 3; keep one"),
        ("b:\n  c: {d: 1, d: 1}\n", "key 'd' stands twice, also in line 2"),
    ],
)
def test_a_broken_parameter_file_is_one_clear_line(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "params.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_yaml(path)
    assert "\n" not in str(caught.value)


def test_an_empty_file_stands_for_no_source(tmp_path: Path) -> None:
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.touch()
    full.write_text("x")
    assert given(empty) is None
    assert given("") is None
    assert given(full) == full
    assert given(tmp_path / "missing") == tmp_path / "missing"


@pytest.mark.parametrize(("text", "value"), [("2e-05", 2e-5), ("1E5", 1e5), ("-3.5e+2", -350.0), (".5e1", 5.0)])
def test_numbers_are_read_as_dvc_writes_them(tmp_path: Path, text: str, value: float) -> None:
    """`dvc exp run -S finetune.lr=2e-5` writes 2e-05, which YAML 1.1 takes for text."""
    (tmp_path / "params.yaml").write_text(f"a: {{lr: {text}, name: 2e-05x}}")
    assert read_yaml(tmp_path / "params.yaml") == {"a": {"lr": value, "name": "2e-05x"}}


def test_words_of_yaml_are_read_as_dvc_reads_them(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("a: [no, on, Yes, true, False]\nb: &b {x: 1}\nc: {<<: *b, x: 2}\n")
    assert read_yaml(tmp_path / "params.yaml") == {
        "a": ["no", "on", "Yes", True, False],
        "b": {"x": 1},
        "c": {"x": 2},
    }


def test_a_name_in_another_case_is_still_recognised() -> None:
    assert did_you_mean("EN", ["de", "en", "zh-cn"]) == " Did you mean 'en'?"
    assert did_you_mean("zh-CN", ["de", "en", "zh-cn"]) == " Did you mean 'zh-cn'?"
