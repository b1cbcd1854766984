"""Command lines of other programs: the help of a stage names the one that it takes, with its options."""

import pytest

from pipelines.command import StageSpec


@pytest.mark.parametrize(
    ("stage", "script", "options"),
    [
        ("extract", "merge_jsons.py", ["--json_path", "--output_file"]),
        ("extract", "add_id.py", ["--input-file", "--output-file", "--id-prefix"]),
        ("clean", "cleanup_fix_dataset.py", ["--input-files", "--tasks", "--output-path"]),
        ("download", "download.py", ["--output", "--n_procs", "--timeout", "--max_urls"]),
        ("find_duplicates", "find_duplicates.py", ["--inputs", "--output"]),
        ("group_duplicates", "group_duplicate_url.py", []),
        ("remove_duplicates", "remove_group_duplicates.py", []),
    ],
)
def test_the_help_names_the_script_whose_command_line_works(stage: str, script: str, options: list[str]) -> None:
    spec = StageSpec.load(f"dataprep.{stage}")
    (said,) = (part for part in spec.doc.split("\n\n") if script in part and "here too" in " ".join(part.split()))
    assert spec.other_command
    assert all(option in said for option in options)
