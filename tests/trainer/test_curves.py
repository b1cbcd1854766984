"""The picture of several runs: which panels, which names, whose lines, and what is refused."""

import re
from pathlib import Path

import pytest

from trainer.curves import draw_curves, main, panels, read_run, short_names

PRETRAINED = "step,loss,lr,grad_norm,tokens,val_loss\n0,,,,0,5.5\n1,5.4,0.1,1,8,\n2,5.2,0.1,1,16,5.3\n"
TUNED = "step,loss,lr,grad_norm,tokens,val_loss\n1,0.7,0.1,1,8,\n2,0.6,0.1,1,16,\n"
EPOCHS = "epoch,step,loss,lr,train_accuracy,validation_loss,validation_accuracy\n1,2,0.65,0.1,0.8,0.69,0.6\n"


def run(folder: Path, curve: str = TUNED, epochs: str = EPOCHS) -> Path:
    folder.mkdir(parents=True)
    (folder / "curve.csv").write_text(curve)
    if epochs:
        (folder / "epochs.csv").write_text(epochs)
    return folder


def test_losses_stand_by_step_and_scores_by_epoch(tmp_path: Path) -> None:
    tuned, pretrained = read_run(run(tmp_path / "tuned")), read_run(run(tmp_path / "pre", PRETRAINED, ""))
    assert panels([tuned]) == [("curve", "loss"), ("epochs", "validation_loss"), ("epochs", "validation_accuracy")]
    assert panels([pretrained]) == [("curve", "loss"), ("curve", "val_loss")]
    picture = draw_curves([tuned, pretrained])
    for text in ("Training loss", "Validation loss", "Validation accuracy", ">tuned<", ">pre<"):
        assert text in picture
    assert picture == draw_curves([tuned, pretrained])


def test_seeds_of_one_run_share_its_colour(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        run(tmp_path / f"many/seed-{seed}")
    many = read_run(tmp_path / "many")
    assert len(many.curves) == len(many.epochs) == 3
    alone, both = draw_curves([many]), draw_curves([many, read_run(run(tmp_path / "one"))])
    assert "#b5482f" not in alone
    assert alone.count("#1f7a96") == both.count("#1f7a96") > both.count("#b5482f") > 0


def test_the_line_of_training_rows_is_that_of_the_same_score(tmp_path: Path) -> None:
    """Also of scores and splits whose names have several words."""
    for column in ("validation_macro_f1", "validation_matched_accuracy"):
        training = f"train_{column.removeprefix('validation_').removeprefix('matched_')}"
        table = f"epoch,step,loss,lr,{column}\n1,2,0.6,0.1,0.5\n2,4,0.6,0.1,0.5\n"
        without = draw_curves([read_run(run(tmp_path / f"{column}-0", epochs=table))])
        table = f"epoch,step,loss,lr,{training},{column}\n1,2,0.6,0.1,0.8,0.5\n2,4,0.6,0.1,0.8,0.5\n"
        with_it = draw_curves([read_run(run(tmp_path / f"{column}-1", epochs=table))])
        in_the_legend = 1
        assert with_it.count("stroke-dasharray") == without.count("stroke-dasharray") + 1 + in_the_legend
        assert ("on training rows" in with_it, "on training rows" in without) == (True, False)


def test_one_epoch_has_a_whole_number_and_a_marker_for_training_rows(tmp_path: Path) -> None:
    tuned = run(tmp_path / "one")
    picture = draw_curves([read_run(tuned)])
    assert ">1</text>" in picture
    assert ">0.9" not in picture.rpartition("Validation loss")[0]
    panel = picture.rpartition("Validation accuracy")[0].rpartition("Validation loss")[2]
    assert len(re.findall(r"<use [^>]*style=\"fill: #ffffff; stroke: #1f7a96", panel)) == 1


def test_runs_are_called_by_what_tells_them_apart() -> None:
    assert short_names(["runs/a/finetune/mrpc", "runs/b/finetune/mrpc"]) == ["a", "b"]
    assert short_names(["runs/a/finetune/rte", "runs/a/finetune/mrpc"]) == ["rte", "mrpc"]
    assert short_names(["runs/a/finetune/mrpc"]) == ["mrpc"]
    assert short_names(["x", "x/y"]) == ["x", "y"]
    assert short_names(["/a/b", "c/b"]) == ["/a", "c"]


def test_more_runs_than_colours_have_one_each(tmp_path: Path) -> None:
    runs = [read_run(run(tmp_path / f"run{number:02d}", epochs="")) for number in range(12)]
    lines = re.findall(r"<path d=\"M [^>]*stroke: (#[0-9a-f]{6}); stroke-width: 1.5", draw_curves(runs))
    assert len(set(lines)) == 12


def test_the_command_writes_the_picture_or_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, picture = run(tmp_path / "one"), tmp_path / "curves.svg"
    assert main([str(picture), str(folder)]) == 0
    assert picture.read_text().startswith("<svg")
    assert main([str(picture), str(folder)]) == 1
    assert "curves.svg: exists already; --overwrite replaces it" in capsys.readouterr().err
    assert main([str(picture), str(folder), "--overwrite"]) == 0
    picture.write_text("<svg>mine</svg>")
    assert main([str(picture), str(folder), "--overwrite"]) == 1
    assert "curves.svg: not drawn by this command" in capsys.readouterr().err
    picture.unlink()
    assert main([str(picture), str(tmp_path / "two")]) == 1
    assert "two: has no curve.csv; name a folder that pretrain or finetune published" in capsys.readouterr().err
    assert main([str(tmp_path / "curves.png"), str(folder)]) == 1
    assert "only SVG is drawn" in capsys.readouterr().err
    (folder / "epochs.csv").write_text("epoch,step,loss\n1,2,much\n")
    assert main([str(picture), str(folder)]) == 1
    assert "epochs.csv:2: loss is 'much', expected a number" in capsys.readouterr().err
