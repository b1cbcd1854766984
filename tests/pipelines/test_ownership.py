"""What a run may replace: nothing of a user's, with `--overwrite` or without, and links stay links."""

import json
import os
import shlex
from pathlib import Path

import pytest

from pipelines import store
from pipelines.command import StageSpec, parse
from pipelines.config import read_yaml
from pipelines.errors import UserError
from pipelines.manifest import Manifest, load_checked, manifest_path
from pipelines.ownership import STAGED, check_stats_apart
from pipelines.project.graph import load_stages
from pipelines.stage import run_command
from tests.outputs import published

SENTENCE = "The miller opens the gate at dawn and the water begins to turn the heavy wheel again, day {}. "


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """One document, and one line that is rejected."""
    (tmp_path / "in").mkdir()
    text = "".join(SENTENCE.format(day) for day in range(10))
    (tmp_path / "in" / "in.jsonl").write_text(json.dumps({"text": text}) + '\n{"text": "short"}\n')
    return tmp_path / "in" / "in.jsonl"


def run(module: str, *arguments: object) -> int:
    return run_command(StageSpec.load(f"dataprep.{module}"), [*map(str, arguments), "--workers", "1"])


def tree(folder: Path) -> dict[str, str]:
    """Every file but those of .work, with its text."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes().hex()
        for file in store.list_files(folder)
        if ".work" not in file.parts
    }


def theirs(tmp_path: Path, case: str) -> Path:
    """Put something in an output's way; return the output."""
    folder, out = tmp_path / "thesis", tmp_path / "z.jsonl"
    if case == "folder":
        folder.mkdir()
        (folder / "chapter-1.tex").write_text("mine")
    elif case == "folder with a manifest of another kind":
        folder.mkdir()
        (folder / "manifest.json").write_text('{"name": "an app"}')
    elif case == "notes in a published folder":
        published(folder, old="ours")
        (folder / "notes.txt").write_text("mine")
    elif case == "link in a published folder":
        published(folder, old="ours")
        (folder / "notes").symlink_to(tmp_path / "in")
    elif case == "file":
        folder.write_text("mine")
    elif case == "JSONL":
        out.write_text("mine")
    elif case == "JSONL with a manifest of another file":
        published(tmp_path / "y.jsonl", **{"y.jsonl": "ours"})
        (tmp_path / "y.jsonl.manifest.json").rename(tmp_path / "z.jsonl.manifest.json")
        out.write_text("mine")
    elif case == "rejected rows":
        (tmp_path / "z.rejected.jsonl").write_text("mine")
    elif case == "rejected rows beside ours":
        published(out, **{"z.jsonl": "ours"})
        (tmp_path / "z.rejected.jsonl").write_text("mine")
    elif case == "manifest":
        (tmp_path / "z.jsonl.manifest.json").write_text("mine")
    return folder if folder.exists() else out


CASES = {
    "folder": "thesis: no stage made it",
    "folder with a manifest of another kind": "thesis: no stage made it",
    "notes in a published folder": "thesis/notes.txt: no stage made it (the folder's manifest.json does not name it)",
    "link in a published folder": "thesis/notes: no stage made it",
    "file": "thesis: no stage made it",
    "JSONL": "z.jsonl: no stage made it (no z.jsonl.manifest.json of ours names it)",
    "JSONL with a manifest of another file": "z.jsonl: no stage made it",
    "rejected rows": "z.rejected.jsonl: no stage made it",
    "rejected rows beside ours": "z.rejected.jsonl: no stage made it",
    "manifest": "z.jsonl.manifest.json: no stage made it",
}


@pytest.mark.parametrize("case", CASES)
def test_a_users_own_files_are_never_replaced(
    source: Path, tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = theirs(tmp_path, case)
    before = tree(tmp_path)
    assert run("clean", source, output) == 1
    assert "exists already" in capsys.readouterr().err
    assert run("clean", source, output, "--overwrite") == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path}/{CASES[case]}")
    assert error.count("\n") == 1
    assert tree(tmp_path) == before


def test_a_file_that_appears_while_the_stage_works_is_kept_and_so_is_the_work(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = published(tmp_path / "out", old="ours")
    real = store.write_json

    def write_json(path: Path, *arguments: object, **options: bool) -> None:
        real(path, *arguments, **options)  # type: ignore[arg-type]
        if "receipts" in path.parts:
            (out / "notes.txt").write_text("mine")

    monkeypatch.setattr(store, "write_json", write_json)
    assert run("clean", source, out, "--overwrite") == 1
    assert "notes.txt: no stage made it" in capsys.readouterr().err
    (out / "notes.txt").rename(tmp_path / "notes.txt")
    monkeypatch.setattr(store, "write_json", real)
    assert run("clean", source, out, "--overwrite") == 0
    assert "already done" in capsys.readouterr().err
    assert load_checked(out).counts.rows_out == 1


@pytest.mark.parametrize("output", ["out", "z.jsonl", "z.jsonl.gz"])
def test_what_a_stage_made_is_replaced_and_so_is_an_empty_folder(source: Path, tmp_path: Path, output: str) -> None:
    if output == "out":
        (tmp_path / output).mkdir()
    for _ in range(3):
        assert run("clean", source, tmp_path / output, "--overwrite") == 0
    (tmp_path / "damaged").mkdir()
    assert run("clean", source, tmp_path / output) == 1


def test_what_a_stopped_run_half_published_is_replaced_but_not_for_ever(source: Path, tmp_path: Path) -> None:
    out = published(tmp_path / "z.jsonl", **{"z.jsonl": "ours", "z.rejected.jsonl": "ours"})
    (tmp_path / "z.jsonl.manifest.json").unlink()
    scratch = tmp_path / ".work" / "z.jsonl-0123456789abcdef"
    scratch.mkdir(parents=True)
    store.write_json(scratch / STAGED, ["output"])
    assert run("clean", source, out) == 1, "other parameters than those of the stopped run: only with --overwrite"
    assert run("clean", source, out, "--overwrite") == 0
    for file in tmp_path.glob("z.*"):
        file.unlink()
    out.write_text("mine")
    assert run("clean", source, out, "--overwrite") == 1
    assert out.read_text() == "mine"


def test_an_old_output_that_a_stopped_run_had_moved_away_comes_back_before_anything_is_replaced(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published(tmp_path / ".work" / "out-0123456789abcdef" / "previous-output", old="ours")
    assert run("clean", source, tmp_path / "out") == 1
    assert "out: exists already" in capsys.readouterr().err
    assert (tmp_path / "out" / "old").read_text() == "ours"


@pytest.mark.parametrize("name", ["out", "z.jsonl"])
def test_an_output_that_is_a_link_stays_one(source: Path, tmp_path: Path, name: str) -> None:
    far, plain = tmp_path / "far" / f"real-{name}", tmp_path / "plain" / f"real-{name}"
    (tmp_path / "far").mkdir()
    if name == "out":
        far.mkdir()
    else:
        published(far, **{far.name: "ours"})
    link = tmp_path / name
    link.symlink_to(far)
    assert run("clean", source, plain) == 0
    for _ in range(2):
        assert run("clean", source, link, "--overwrite") == 0
        assert link.is_symlink()
        assert tree(far.parent) == tree(plain.parent)
    assert run("clean", source, link) == 1
    assert not list(far.parent.glob(".work/*/")), "scratch is beside what is replaced"
    assert not (tmp_path / ".work").exists()


def test_rejected_rows_are_shown_through_a_link(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("clean", source, tmp_path / "far" / "z.jsonl") == 0
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "far" / "z.jsonl")
    assert run("clean", tmp_path / "link.jsonl", "--sample-rejected", 1) == 0
    assert "too_few_tokens: 1 rejected" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["out", "z.jsonl"])
def test_a_link_to_nothing_is_one_clear_line(
    source: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).symlink_to("nowhere")
    for options in ([], ["--overwrite"], ["--sample-rejected", "3"]):
        assert run("clean", source, tmp_path / name, *options) == 1
        assert capsys.readouterr().err == (
            f"error: {tmp_path / name}: a link to nowhere, which does not exist; remove the link, or name that path "
            "itself\n"
        )
    (tmp_path / "stats.json").symlink_to("nowhere")
    assert run("clean", source, tmp_path / "other", "--stats", tmp_path / "stats.json") == 1
    assert not (tmp_path / "other").exists()


def test_the_second_output_is_published_from_a_folder_beside_it(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be on another file system, across which nothing can be renamed."""
    far = tmp_path / "disk" / "val"
    far.mkdir(parents=True)
    (tmp_path / "val").symlink_to(far)
    real = os.replace

    def replace(old: Path, new: Path) -> None:
        assert ("disk" in Path(old).parts) == ("disk" in Path(new).parts), "a rename across file systems"
        real(old, new)

    monkeypatch.setattr(os, "replace", replace)
    source.write_text("".join(json.dumps({"text": f"{number} {SENTENCE}"}) + "\n" for number in range(20)))
    for _ in range(2):
        paths = [source, tmp_path / "train", tmp_path / "val"]
        assert run("split", *paths, "--val-share", 0.5, "--overwrite") == 0
    assert (tmp_path / "val").is_symlink()
    assert load_checked(far).rows + load_checked(tmp_path / "train").rows == 20
    assert not [*tmp_path.glob(".work/*/"), *tmp_path.glob("disk/.work/*/")]


def test_a_link_into_dvcs_cache_is_replaced_itself(source: Path, tmp_path: Path) -> None:
    """What it points to has the name of its content, and other links."""
    out = tmp_path / "z.jsonl"
    assert run("clean", source, out) == 0
    cached = tmp_path / "cache" / "files" / "md5" / "d4" / "1d8cd98f00b204e9800998ecf8427e"
    cached.parent.mkdir(parents=True)
    out.rename(cached)
    out.symlink_to(cached)
    before = cached.read_bytes()
    assert run("clean", source, out, "--overwrite", "--min-tokens", "100000") == 0
    assert not out.is_symlink()
    assert out.read_bytes() != before == cached.read_bytes()


def test_stats_replace_only_stats_and_a_link_to_them_stays_one(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "far").mkdir()
    link, real = tmp_path / "stats.json", tmp_path / "far" / "s.json"
    for text in ('{"mine": 1}', "mine", ""):
        real.write_text(text)
        assert run("clean", source, tmp_path / "out", "--stats", real) == 1
        assert "s.json: no stage wrote it, so --stats does not replace it" in capsys.readouterr().err
        assert (real.read_text(), (tmp_path / "out").exists()) == (text, False)
    real.unlink()
    assert run("clean", source, tmp_path / "out", "--stats", real) == 0
    real.rename(tmp_path / "far" / "moved.json")
    link.symlink_to(tmp_path / "far" / "moved.json")
    assert run("clean", source, tmp_path / "out", "--stats", link, "--overwrite") == 0
    assert link.is_symlink()


@pytest.mark.parametrize(
    ("words", "stats", "why"),
    [
        ("clean in z.jsonl", "z.jsonl", "would replace the output"),
        ("split in a.jsonl b.jsonl", "a.jsonl", "would replace the output"),
        ("split in a.jsonl b.jsonl", "b.jsonl", "would replace the output"),
        ("clean in z.jsonl", "z.rejected.jsonl", "would replace the output"),
        ("clean in z.jsonl", "z.jsonl.manifest.json", "would replace the output"),
        ("clean in z.provenance.json", "z.json", "would replace the output"),
        ("clean in provenance/z.jsonl", "stats/z.jsonl", "would replace the output"),
        ("deduplicate in z.jsonl --pairs p.jsonl", "p.jsonl", "would replace the output"),
        ("clean in out", "out", "would replace the output"),
        ("clean in out", "link/../out", "would replace the output"),
        ("clean in out", "out/manifest.json", "would be inside the output"),
        ("clean in out", "out/stats.json", "would be inside the output"),
        ("clean in out", "out/deep/stats.json", "would be inside the output"),
        ("clean in z.jsonl", "z.jsonl/stats.json", "would be inside the output"),
        ("clean in new/out", "new", "is a file, and the output"),
        ("clean in out", "empty", "is a file, and this is a folder"),
        ("clean in out", "in/in.jsonl/stats.json", "cannot be inside"),
        ("clean in out", "old/stats.json", "which a stage published as a whole"),
        ("clean in out", "new/manifest.json", "the name of an output's manifest"),
        ("clean in out", "y.jsonl.manifest.json", "the name of an output's manifest"),
        ("clean in out", "in/stats.json", "would be inside the input"),
        ("clean in out", "link/stats.json", "would be inside the input"),
        ("clean in/in.jsonl out", "in/in.jsonl", "would replace the input"),
        ("extract in out", "in/stats.json", "would be inside the input"),
        ("extract in out", "in/deep/er/stats.txt", "would be inside the input"),
        ("decontaminate in out found --targets requests", "requests/stats.json", "would be inside the input"),
        ("clean in out", "s3://bucket/stats.json", "--stats writes a file of this machine"),
    ],
)
def test_stats_are_not_written_over_or_into_outputs_and_inputs(
    source: Path,
    tmp_path: Path,
    words: str,
    stats: str,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They come last: the run said that all was well, and its rows were gone."""
    monkeypatch.chdir(tmp_path)
    published(tmp_path / "old", old="ours")
    (tmp_path / "link").symlink_to("in")
    for folder in ("empty", "requests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "requests" / "mine.jsonl").write_text('{"text": "mine"}\n')
    before = tree(tmp_path)
    for more in ((), ("--overwrite",)):
        assert run(*words.split(), "--stats", stats, *more) == 1
        said = capsys.readouterr().err
        assert why in said
        assert said.count("\n") == 1
    assert tree(tmp_path) == before
    assert not (tmp_path / ".work").exists()


def test_stats_may_be_beside_outputs_and_where_no_run_reads_them(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given, stats in (
        ("in", "out.json"),
        ("in", "in/sub/stats.json"),
        (source, "in/s.json"),
    ):
        for _ in range(2):
            assert run("clean", given, "out", "--stats", stats, "--overwrite") == 0
            assert store.read_json(Path(stats))["in"] == 2


def test_the_graphs_own_stats_are_let_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    params = read_yaml(root / "params.yaml")
    stages = load_stages(params, root / "dvc.yaml")
    commands = [shlex.split(command)[2:] for stage in stages for command in stage.commands]
    commands = [words for words in commands if "--stats" in words]
    assert len(commands) >= 20
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").symlink_to(root / "params.yaml")
    for path in (path for stage in stages for path in stage.deps if not path.suffix):
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
    for module, *words in commands:
        spec = StageSpec.load(module)
        check_stats_apart(spec, parse(spec, words))


@pytest.mark.parametrize(
    ("train", "val", "message"),
    [
        ("out", "out", "two outputs have the same path"),
        ("out", "out/val", "inside the output"),
    ],
)
def test_outputs_do_not_overlap(
    source: Path, tmp_path: Path, train: str, val: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("split", source, tmp_path / train, tmp_path / val) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("clean", "in/out.jsonl"),
        ("clean", "link/out.jsonl.gz"),
        ("extract", "in/out"),
        ("extract", "in/deep/er/out.jsonl"),
        ("urls", "in/out"),
    ],
)
def test_no_output_is_put_where_the_next_run_would_read_it(
    source: Path, tmp_path: Path, module: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second run with --overwrite would read its own rows beside the input's, and give each document twice."""
    (tmp_path / "link").symlink_to("in")
    before = tree(tmp_path)
    folder, output = tmp_path / "in", tmp_path / name
    for more in ((), ("--overwrite",)):
        assert run(module, folder, output, *more) == 1
        why = "so the next run would read it as input too; choose an output outside of it"
        assert capsys.readouterr().err == f"error: {output}: inside the input {folder}, {why}\n"
    assert tree(tmp_path) == before


def test_no_output_is_put_into_what_an_option_names(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next run would be another one, since everything in the folder counts, or would lack what it reads."""
    requests = tmp_path / "requests"
    requests.mkdir()
    (requests / "mine.jsonl").write_text('{"text": "mine"}\n')
    before = tree(tmp_path)
    for output, said in (
        (requests / "out", f"inside the input {requests}, so the next run would read it as input too"),
        (requests, f"the output would replace the input {requests}"),
    ):
        for more in ((), ("--overwrite",)):
            assert run("decontaminate", source, output, tmp_path / "found", "--targets", requests, *more) == 1
            assert said in capsys.readouterr().err
    assert tree(tmp_path) == before


def test_an_output_may_be_made_in_an_input_folder_where_no_run_reads_it(source: Path, tmp_path: Path) -> None:
    """Of documents, only the files directly in a folder are read; of an input that is a file, only that."""
    for folder in (source.parent, source):
        outputs = [source.parent / "out", source.parent / "sub" / "out.jsonl"]
        outputs += [source.parent / "beside.jsonl"] if folder == source else []
        for output in outputs:
            for _ in range(2):
                assert run("clean", folder, output, "--overwrite") == 0
                assert Manifest.load(manifest_path(output)).counts.rows_in == 2


@pytest.mark.parametrize("name", ["old/new", "old/rejected/new.jsonl", "link/new"])
def test_no_output_is_put_into_a_published_folder(
    source: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its manifest would not name it, and the next run of its stage would not replace the folder."""
    published(tmp_path / "old", old="ours")
    (tmp_path / "link").symlink_to("old")
    before = tree(tmp_path)
    output, above = tmp_path / name, tmp_path / name.partition("/")[0]
    for more in ((), ("--overwrite",)):
        assert run("clean", source, output, *more) == 1
        said = capsys.readouterr().err
        assert said == f"error: {output}: inside {above}, which a stage published as a whole; choose another output\n"
    assert tree(tmp_path) == before


def test_an_input_is_no_companion_of_the_output(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rejected = source.rename(tmp_path / "z.rejected.jsonl")
    assert run("clean", rejected, tmp_path / "z.jsonl", "--overwrite") == 1
    assert "would replace the input" in capsys.readouterr().err


def test_two_runs_with_the_same_second_output_do_not_work_at_once(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import filelock

    (tmp_path / ".work").mkdir()
    with filelock.FileLock(tmp_path / ".work" / "val.lock"):
        assert run("split", source, tmp_path / "train", tmp_path / "val") == 1
    assert "another process is making val" in capsys.readouterr().err


def test_a_temporary_file_is_written_beside_what_a_link_points_to(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "value.json").write_text("{}")
    (tmp_path / "link.json").symlink_to("far/value.json")
    store.write_json(tmp_path / "link.json", {"a": 1})
    assert (tmp_path / "link.json").is_symlink()
    assert store.read_json(tmp_path / "far" / "value.json") == {"a": 1}
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="a link to loop, which does not exist"):
        store.write_json(tmp_path / "loop", {})


@pytest.mark.parametrize("options", [[], ["--overwrite"]])
@pytest.mark.parametrize(
    "name", ["/dev/stdout", "/dev/null", "/dev/fd/1", "/proc/self/fd/1", "pipe", "pipe.jsonl", "link"]
)
def test_a_device_or_pipe_is_no_output_and_stays(
    source: Path, tmp_path: Path, name: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for pipe in ("pipe", "pipe.jsonl"):
        os.mkfifo(tmp_path / pipe)
    (tmp_path / "link").symlink_to("/dev/null")
    output = tmp_path / name
    assert run("clean", source, output, *options) == 1
    refusal = "a device, pipe or socket, where no output can be published; name a file or folder"
    assert capsys.readouterr().err == f"error: {output}: {refusal}\n"
    assert output.is_symlink() == (name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"))
    stats = tmp_path / "stats.json"
    stats.symlink_to("/dev/null")
    assert run("clean", source, tmp_path / "new", "--stats", stats) == 1
    assert capsys.readouterr().err == f"error: {stats}: {refusal}\n"
