"""Which checkpoints stay, which one is meant, and what a curve says."""

from pathlib import Path

import pytest

from pipelines.errors import UserError
from trainer.weights import records


def make(root: Path, *steps: int) -> None:
    for step in steps:
        folder = records.step_folder(root, step)
        folder.mkdir(parents=True)
        (folder / "run.json").write_text("{}")


def test_the_last_regular_checkpoints_and_the_newest_stay(tmp_path: Path) -> None:
    make(tmp_path, 100, 200, 230, 300, 330, 345)
    records.prune(tmp_path, records.Retention(keep=2, every=100), last=400, val_losses={})
    assert list(records.checkpoints(tmp_path)) == [200, 300, 345]
    assert not list(tmp_path.glob(".*"))


def test_each_multiple_and_the_best_stay_too(tmp_path: Path) -> None:
    make(tmp_path, 100, 200, 300, 400, 450, 500, 600)
    retention = records.Retention(keep=1, every=100, keep_every=200, best=True)
    # 450 is no regular one, and 700 has no checkpoint.
    losses = {0: 1.0, 100: 5.0, 300: 3.0, 450: 2.0, 500: 3.0, 600: 4.0, 700: 1.0}
    records.prune(tmp_path, retention, last=900, val_losses=losses)
    assert list(records.checkpoints(tmp_path)) == [200, 300, 400, 600]


def test_the_last_step_stays_also_off_the_cadence() -> None:
    assert records.Retention(keep=2, every=100).of([100, 200, 230, 250], last=250, val_losses={}) == [200, 250]


def test_without_a_validation_no_checkpoint_is_the_best() -> None:
    assert records.best_step([100, 200], {}) is None
    assert records.Retention(keep=1, every=100, best=True).of([100, 200], 900, {}) == [200]


def test_a_damaged_checkpoint_is_kept_where_none_is_looked_for(tmp_path: Path) -> None:
    make(tmp_path, 100, 200)
    for _ in range(2):  # also when one of that step is there already
        aside = records.set_aside(records.step_folder(tmp_path, 200))
        assert (aside.name, aside.is_dir()) == ("damaged-step-00000200", True)
        assert list(records.checkpoints(tmp_path)) == [100]
        make(tmp_path, 200)


def test_half_written_and_half_deleted_ones_do_not_count(tmp_path: Path) -> None:
    make(tmp_path, 100)
    (tmp_path / ".step-00000200.tmp").mkdir()
    (tmp_path / ".step-00000050.old").mkdir()
    assert list(records.checkpoints(tmp_path)) == [100]
    records.remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000100"]


def test_a_path_means_a_checkpoint_or_the_newest_one_inside(tmp_path: Path) -> None:
    make(tmp_path / "run", 9, 100, 20)
    assert records.newest_checkpoint(tmp_path / "run").name == "step-00000100"
    assert records.newest_checkpoint(tmp_path / "run/step-00000009").name == "step-00000009"
    with pytest.raises(UserError, match="holds no checkpoint"):
        records.newest_checkpoint(tmp_path)


def test_another_model_is_refused_by_its_first_field(tmp_path: Path) -> None:
    record = {"model": {"n_layer": 2, "n_embd": 32}}
    records.require_same_model(tmp_path, record, {"n_layer": 2, "n_embd": 32})
    with pytest.raises(UserError, match="another model: its n_embd is 32, here it is 64; make n_embd agree"):
        records.require_same_model(tmp_path, record, {"n_layer": 2, "n_embd": 64})


def test_a_record_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    make(tmp_path, 1)
    with pytest.raises(UserError, match="lacks model, optimizer_steps, position, step, tokenizer, tokens"):
        records.read_record(records.step_folder(tmp_path, 1))


def test_a_curve_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    lines = [
        "step,loss,lr,grad_norm,tokens,val_loss",
        "0,,,,0,4.5",
        *(f"{i},{5 - i / 10},1,1,{i}," for i in range(1, 20)),
    ]
    (tmp_path / "curve.csv").write_text("\n".join([*lines, "20,3.0,1,1,20,2.5"]) + "\n21,2.")
    rows = records.read_curve_rows(tmp_path / "curve.csv")
    assert len(rows) == 21
    assert records.read_curve_rows(tmp_path / "none.csv") == []
    assert records.summary(tmp_path / "curve.csv") == {
        "train_loss": pytest.approx((3.1 + 3.0) / 2),
        "untrained_val_loss": 4.5,
        "val_loss": 2.5,
        "val_perplexity": 12.1825,
    }


CURVE = "step,loss,lr,grad_norm,tokens,val_loss\n0,,,,0,0.5\n1,4,1,1,9,3\n2,4,1,1,9,2\n3,4,1,1,9,\n4,4,1,1,9,2.5\n"


@pytest.mark.parametrize(
    ("steps", "lost"),
    [([1, 2, 4], None), ([2], None), ([1, 4], (2, 2.0)), ([4], (2, 2.0)), ([3], (2, 2.0)), ([], (2, 2.0))],
)
def test_a_better_step_without_a_checkpoint_is_found(
    tmp_path: Path, steps: list[int], lost: tuple[int, float] | None
) -> None:
    """The weights that the run began with are the best of all here, but never had one."""
    (tmp_path / "curve.csv").write_text(CURVE)
    for step in steps:
        records.step_folder(tmp_path, step).mkdir()
    assert records.lost_best(tmp_path, tmp_path / "curve.csv") == lost
    assert records.lost_best(tmp_path, tmp_path / "none.csv") is None
