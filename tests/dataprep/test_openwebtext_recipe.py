"""ColossalAI's recipe for Webtext data, line by line: Megatron's tools and OpenWebText's, in our stages' commands."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.dataprep.sites import HTML, make_site

OTHER = "A wide river runs past the village, and in winter the ice on it carries carts from one bank to the other. " * 9


def command(stage: str, folder: Path, *words: str) -> None:
    arguments = [str(folder / word) if "." in word or word in ("URLs", "site") else word for word in words]
    done = subprocess.run(
        [sys.executable, "-m", f"dataprep.{stage}", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{stage}\n{done.stderr}"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_from_a_folder_of_lists_to_the_training_data(tmp_path: Path) -> None:
    short = {"url": "http://garden.test/short", "body": HTML.format("Too short.")}
    river = {"url": "http://garden.test/river", "body": HTML.format(OTHER)}
    make_site(tmp_path / "site", short, river, pages=3)  # three pages that differ in a number
    (tmp_path / "URLs").mkdir()
    names = ["page/0", "page/1", "page/2", "short", "river", "picture.jpg", "river"]
    (tmp_path / "URLs" / "RS_2017.txt").write_text("".join(f"http://garden.test/{name}\n" for name in names))
    command("urls", tmp_path, "URLs", "clean_urls.txt")
    command("download", tmp_path, "clean_urls.txt", "--n_procs", "50", "--output", "raw.json", "--local-site", "site")
    command("clean", tmp_path, "raw.json", "clean.json")
    command("find_duplicates", tmp_path, "--inputs", "clean.json", "url", "--output", "process_stage_one.json")
    command("group_duplicates", tmp_path, "process_stage_one.json", "process_stage_two.json")
    command("remove_duplicates", tmp_path, "process_stage_two.json", "clean.json", "dedup.json")
    command("shuffle", tmp_path, "dedup.json", "train_data.json")
    counts = {name: len(read(tmp_path / f"{name}.json")) for name in ("raw", "clean", "dedup", "train_data")}
    assert counts == {"raw": 5, "clean": 4, "dedup": 2, "train_data": 2}
    rows = read(tmp_path / "train_data.json")
    assert {row["url"] for row in rows} == {"http://garden.test/page/0", "http://garden.test/river"}
    assert all(row["text"] for row in rows)
