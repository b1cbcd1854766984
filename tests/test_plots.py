"""What `dvc plots show` draws: columns that its files have, from the first row with a number."""

import json
from pathlib import Path
from typing import Any

import yaml
from dvc_render.vega import VegaRenderer

from trainer.loop.hooks import SpeedCurve
from trainer.weights.records import COLUMNS

ROOT = Path(__file__).parents[1]
PLOTS: list[dict[str, Any]] = yaml.safe_load((ROOT / "dvc.yaml").read_text())["plots"]


SHOWN = {
    "runs/${run}/pretrain/curve.csv": {*COLUMNS} - {"tokens"},
    "provenance/${run}/pretrain.speed.csv": {"step", "tokens_per_second"},
    "reports/${run}/funnel.csv": {"stage", "documents"},
    "reports/${run}/scores.csv": {"score", "value"},
}
"""File -> its columns that are shown."""


def test_each_plot_shows_columns_of_its_file_by_the_projects_template() -> None:
    shown: dict[str, set[str]] = {file: set() for file in SHOWN}
    for plot in PLOTS:
        ((_, options),) = plot.items()
        assert (ROOT / ".dvc/plots" / f"{options['template']}.json").is_file()
        ((file, columns),) = options["y"].items()
        shown[file] |= {options["x"], *([columns] if isinstance(columns, str) else columns)}
    assert shown == SHOWN
    assert set(SpeedCurve.COLUMNS) >= SHOWN["provenance/${run}/pretrain.speed.csv"]


def test_bars_stand_in_the_order_of_the_table_and_begin_at_0() -> None:
    rows = [{"stage": "urls", "documents": "9", "rev": "a"}, {"stage": "clean", "documents": "7", "rev": "a"}]
    options = {"x": "documents", "y": "stage", "template": "bars", "template_dir": str(ROOT / ".dvc/plots")}
    drawn = VegaRenderer(rows, "funnel", **options).get_filled_template()
    assert drawn["encoding"]["y"]["sort"] is None
    assert drawn["encoding"]["x"]["scale"] == {"zero": True}
    assert "<DVC_METRIC" not in json.dumps(drawn)


def test_the_row_of_the_untrained_model_which_has_no_loss_is_not_drawn_as_0() -> None:
    rows = [{"step": "0", "loss": "", "rev": "a"}, {"step": "1", "loss": "7.6", "rev": "a"}]
    renderer = VegaRenderer(rows, "loss", x="step", y="loss", template="curve", template_dir=str(ROOT / ".dvc/plots"))
    drawn = renderer.get_filled_template()
    assert drawn["data"]["values"] == rows
    assert drawn["transform"] == [{"filter": {"not": {"field": "loss", "equal": ""}}}]
    assert drawn["encoding"]["y"]["scale"] == {"zero": False}
    assert "<DVC_METRIC" not in json.dumps(drawn)
