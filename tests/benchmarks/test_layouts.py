"""The command that compares and times layouts: which rows it runs."""

from pathlib import Path

import pytest

from benchmarks import layout_speeds, layouts


@pytest.mark.parametrize("words", [["--only", "tensor5"], ["--no-parity"], ["--skip", "e", "i"]])
def test_choosing_no_row_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, words: list[str]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr("sys.argv", ["layouts", str(tmp_path), *words])
    with pytest.raises(SystemExit, match="2"):
        layouts.main()
    assert "no row is left" in capsys.readouterr().err


def test_two_gpus_time_what_they_are_enough_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    timed: list[layout_speeds.Speed] = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    monkeypatch.setattr("sys.argv", ["layouts", str(tmp_path), "--speed", "--no-parity"])
    monkeypatch.setattr(layouts, "measure_speeds", lambda _, speeds, __: timed.extend(speeds) or [])
    layouts.main()
    assert timed == [each for each in layouts.SPEEDS if each.gpus <= 2 and not each.nanogpt]
    assert {each.gpus for each in timed} == {1, 2}
    timed.clear()
    monkeypatch.setattr("sys.argv", ["layouts", str(tmp_path), "--speed", "--no-parity", "--nanogpt", "model.py"])
    layouts.main()
    assert timed == [each for each in layouts.SPEEDS if each.gpus <= 2]
    capsys.readouterr()
