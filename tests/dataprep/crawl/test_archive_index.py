"""The index of an archive: what each capture answers for, found without holding its pages."""

import subprocess
import sys
from pathlib import Path


def test_memory_does_not_grow_with_the_archive(tmp_path: Path) -> None:
    """600 pages of 200 kB are 120 MB."""
    program = """
import resource, sys
from pathlib import Path
from dataprep.crawl.archive_index import index_archive
from dataprep.crawl.fetched import Fetched
from dataprep.crawl.warc_writer import pack
from pipelines.command import Part
def run(name, number):
    file = Path(sys.argv[1]) / f"{name}.warc.gz"
    head, date = "HTTP/1.1 200 OK\\r\\nContent-Type: text/html\\r\\n\\r\\n", "2026-01-01T00:00:00Z"
    with file.open("wb") as archive:
        for i in range(number):
            url, body = f"http://garden.test/{i}", b"<html>" + b"x" * 200_000
            archive.write(pack(Fetched(url=url, final_url=url, started=date, response_head=head, body=body)).members)
    assert index_archive(Part("archive-00000", (file,)), file.parent, 10_000_000).rows_out == number
run("warm", 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run("large", 600)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 30, f"{done.stdout} MB"
