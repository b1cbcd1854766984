"""The stage `download` as a command, for the crawl benchmark: its local site is the benchmark's server.

    python -m benchmarks.crawl_client PORT HOSTS URLS OUTPUT --local-site FOLDER ...

The downloader reaches nothing on loopback but the server that it starts for `download.local_site`.
So only that is replaced: the hosts of the benchmark lead to the port of its own server process.
"""

import contextlib
import sys
from collections.abc import Iterator

from benchmarks.crawl_server import host_name
from dataprep.crawl import local_site
from pipelines.stage import stage_main


def main() -> None:
    """Run the stage, with the first two arguments taken for the benchmark."""
    _, port, hosts, *arguments = sys.argv
    server = local_site.LocalServer(frozenset(map(host_name, range(int(hosts)))), int(port))

    @contextlib.contextmanager
    def serve(_: local_site.Site) -> Iterator[local_site.LocalServer]:
        yield server

    local_site.serve = serve
    sys.argv = [sys.argv[0], *arguments]
    stage_main("dataprep.download")


if __name__ == "__main__":
    main()
