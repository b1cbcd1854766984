"""Names and paths of the user's: nothing that a command, a path or DVC would take for something else."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.command import StageSpec
from pipelines.errors import ConfigError
from pipelines.names import TEXTS, check_texts, folder_problem, name_problem, path_problem, source_problem
from pipelines.stage import run_command

ROOT = Path(__file__).parents[2]
GRAPH: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
BODIES = {name: body.get("do", body) for name, body in GRAPH.items()}
REFUSED_NAMES = [
    *("", ".", "..", "../x", "a/b", "a..b", ".hidden", "-x", "a b", "a;touch pwn", "$(touch pwn)", "`touch pwn`"),
    *("a'b", 'a"b', "a\nb", "a\\b", "${run}", "a@b", "é", "a" * 101, "a\x1b[31m"),
]
REFUSED_PATHS = {
    "a'b": "single quote",
    "a\\": "backslash",
    "${oc.env:HOME}": "'${'",
    "a\nb": "line break",
    "a\u2028b": "line break",
    "a\x85b": "line break",
    "a\x1b]0;x": "control character",
    "a\0b": "control character",
    "a\udcff": "not UTF-8",
    "-rf": "./",
    "s3://bucket/x": "an address",
    "http://127.0.0.1/x": "an address",
    "a" * 1001: "1001 characters",
}
HARMLESS_PATHS = [
    *(
        "inputs/a;touch pwn;.jsonl",
        "$(touch pwn)",
        "`touch pwn`",
        "a && b",
        "mein Körper 語料/x y",
        "a|b>c<d*?[e]",
        '"a"',
    ),
    *("#a", "~a", "../corpus", "/abs/olute", "a:b", "!x", "{a,b}", "%41"),
]


@pytest.mark.parametrize("name", REFUSED_NAMES)
def test_what_is_no_name_is_refused(name: str) -> None:
    assert name_problem(name)


@pytest.mark.parametrize("name", ["sample", "openwebtext_hub", "gpt2-exlarge", "v1.0", "2024", "_x", "A-b.C_d"])
def test_names_are_names(name: str) -> None:
    assert not name_problem(name)


@pytest.mark.parametrize(("path", "why"), REFUSED_PATHS.items(), ids=ascii)
def test_a_path_that_a_command_or_dvc_would_misread_is_refused(path: str, why: str) -> None:
    assert why in path_problem(path)
    assert why in source_problem(path)


@pytest.mark.parametrize("path", HARMLESS_PATHS, ids=ascii)
def test_a_path_between_single_quotes_is_one_word(path: str) -> None:
    assert not path_problem(path)
    assert shlex.split(f"python '{path}/x'") == ["python", f"{path}/x"]


def test_outputs_stay_in_the_project() -> None:
    assert not folder_problem("data/my corpus")
    assert folder_problem("/tmp/x")
    assert folder_problem("data/../../x")
    assert path_problem("")
    assert not source_problem("")


def templates(value: Any) -> set[str]:
    """Return what stands in `${...}` anywhere in a value."""
    return set(re.findall(r"\$\{([^}]+)\}", yaml.safe_dump(value, width=10_000)))


def test_every_parameter_that_the_graph_names_is_checked() -> None:
    named = templates(yaml.safe_load((ROOT / "dvc.yaml").read_text())) - {"item", "key"}
    assert named - {*TEXTS} == set()
    assert {*TEXTS} - named == {"labels.model", "labels.parallel"}  # what `run` is made of
    assert {key for key, problem in TEXTS.items() if problem is source_problem} & in_commands() == set()


def in_commands() -> set[str]:
    """Return the parameters that become part of commands, those of `foreach` included."""
    groups = {template for body in GRAPH.values() for template in templates(body.get("foreach"))}
    return groups | {key for body in BODIES.values() for key in templates(body["cmd"])} - {"item", "key"}


def test_a_change_of_what_stands_in_commands_runs_versions_first() -> None:
    """It refuses what must not be there; every other stage depends on what it writes."""
    watched = GRAPH["versions"]["params"]
    assert [key for key in in_commands() if key not in watched and key.split(".")[0] not in watched] == []
    others = BODIES.keys() - {"versions", "metrics"}  # the last runs after all of them
    assert all({"versions.yaml": [name]} in BODIES[name]["params"] for name in others)


@pytest.mark.parametrize("name", sorted(BODIES))
def test_each_word_of_a_command_with_a_parameter_is_in_single_quotes(name: str) -> None:
    commands = BODIES[name]["cmd"]
    for command in commands if isinstance(commands, list) else [commands]:
        outside = re.sub(r"(?<= )'[^']*'(?= |$)", "", command)
        assert "${" not in outside
        assert "'" not in outside


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"corpus": {"name": "a;b"}}, "params.yaml: corpus.name: 'a;b': not a name; use "),
        ({"run": None}, "params.yaml: run: None: expected text; put it in quotes"),
        ({"run": 2024}, "params.yaml: run: 2024: expected text; put it in quotes"),
        ({"glue": {"tasks": ["mrpc", "../x"]}}, "params.yaml: glue.tasks: '../x': not a name"),
        ({"glue": {"scored": {"$(x)": "mnli"}}}, r"params.yaml: glue.scored: '$(x)': not a name"),
        ({"glue": {"scored": {"ax": ["mnli"]}}}, "params.yaml: glue.scored: ['mnli']: expected text"),
        ({"glue_download": {"tasks": "a b"}}, "params.yaml: glue_download.tasks: 'a b': not a name"),
        ({"base": {"model": "x\x1b[2J'"}}, r"""params.yaml: base.model: "x\x1b[2J'": a path with a single quote"""),
        ({"clean": {"bad_words": "-v"}}, "params.yaml: clean.bad_words: '-v': a path that begins as an option does"),
        ({"data": "../data"}, "params.yaml: data: '../data': not inside the project"),
        ({"corpus": {"urls": "x" * 5000}}, f"params.yaml: corpus.urls: '{'x' * 99}…: a path of 5000 characters"),
    ],
)
def test_a_value_that_does_not_belong_there_is_one_line_with_its_key(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_texts(params, Path("params.yaml"))
    assert str(caught.value).startswith(message)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_what_is_not_there_is_passed_over() -> None:
    check_texts({"clean": {"min_tokens": 3}, "glue": None}, Path("params.yaml"))


def test_a_stage_refuses_a_name_that_only_other_stages_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one without a section of its own."""
    params = tmp_path / "params.yaml"
    params.write_text("run: \"x'; touch pwn; '\"\n")
    words = ["docs", "groups", str(tmp_path / "out"), "--params", str(params)]
    assert run_command(StageSpec.load("dataprep.remove_duplicates"), words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"""error: {params}: run: "x'; touch pwn; '": not a name""")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("dataprep.glue_tokenize", ["../x", "glue", "tokenizer", "out"]),
        ("dataprep.glue_download", ["mrpc", "../x", "out"]),
        ("trainer.finetune", ["../x", "model", "rows", "out"]),
        ("trainer.glue_score", ["../x", "model", "rows", "out"]),
    ],
)
def test_a_task_on_the_command_line_is_a_name(
    module: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(StageSpec.load(module), words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"error: command line: tasks?: '\.\./x': not a name; use ", line)
