"""What `dvc plots show` draws: columns that curve.csv has, from the first row with a number."""

import json
from pathlib import Path
from typing import Any

import yaml
from dvc_render.vega import VegaRenderer

from trainer.weights.records import COLUMNS

ROOT = Path(__file__).parents[1]
PLOTS: list[dict[str, Any]] = yaml.safe_load((ROOT / "dvc.yaml").read_text())["plots"]


def test_each_plot_shows_columns_of_the_curve_by_the_projects_template() -> None:
    shown: list[str] = []
    for plot in PLOTS:
        ((_, options),) = plot.items()
        assert (ROOT / ".dvc/plots" / f"{options['template']}.json").is_file()
        ((file, columns),) = options["y"].items()
        assert file == "runs/${run}/pretrain/curve.csv"
        shown += [options["x"], *([columns] if isinstance(columns, str) else columns)]
    assert set(shown) == {"step", "loss", "val_loss", "lr", "grad_norm"} <= set(COLUMNS)


def test_the_row_of_the_untrained_model_which_has_no_loss_is_not_drawn_as_0() -> None:
    rows = [{"step": "0", "loss": "", "rev": "a"}, {"step": "1", "loss": "7.6", "rev": "a"}]
    renderer = VegaRenderer(rows, "loss", x="step", y="loss", template="curve", template_dir=str(ROOT / ".dvc/plots"))
    drawn = renderer.get_filled_template()
    assert drawn["data"]["values"] == rows
    assert drawn["transform"] == [{"filter": {"not": {"field": "loss", "equal": ""}}}]
    assert drawn["encoding"]["y"]["scale"] == {"zero": False}
    assert "<DVC_METRIC" not in json.dumps(drawn)
