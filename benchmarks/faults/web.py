"""A crawl of hostile servers in a network namespace of its own, in which every address of the internet is this machine.

The namespace has a name server, and listeners behind each address, so also behind every forbidden one. Each packet that
opens a connection, and each datagram, is seen: none may go to a private address. Nothing leaves the namespace.
The servers are those of the tests (`tests/dataprep/hostile_sites.py`).

    unshare -n -m python -m benchmarks.faults.web FOLDER      (what the campaign runs)
"""

import asyncio
import contextlib
import ipaddress
import json
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.faults.campaign import Campaign
from benchmarks.faults.running import ROOT, Running, environment
from benchmarks.faults.table import Row
from dataprep.web.domains import is_public
from pipelines.documents import read_rows
from tests.dataprep import hostile_names as names
from tests.dataprep import hostile_sites as sites

NAME_SERVER = "9.9.9.9"
SLOW = "robots-delay-86400"
"""Left out: a crawler waits a minute for it."""
SECONDS = 500
PATIENT = {"connect-seconds": 3.0, "read-seconds": 3.0, "total-seconds": 6.0}
"""So that a busy machine does not turn an honest answer into a timeout."""


def hostile_web(campaign: Campaign) -> Row:
    """A crawl of hostile servers, with listeners on every forbidden range."""
    row, folder = Row("hostile web"), campaign.work / "web"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    apart = ["unshare", "--net", "--mount", "--map-root-user"]
    if not shutil.which("ip") or subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        row.skipped = "needs the right to make a network namespace, and the command ip"
        return row
    command = [*apart, sys.executable, "-m", "benchmarks.faults.web", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=SECONDS + 60
    )
    if done.returncode:
        row.wrong.append(f"the crawl's surroundings failed: {done.stderr[-300:]}")
        return row
    seen = json.loads(done.stdout.splitlines()[-1])
    row.runs = seen["urls"]
    row.outcomes.update(seen["rules"])
    row.wrong += seen["wrong"] + [f"a packet for {address}" for address in seen["forbidden"]]
    row.lost += seen["lost"]
    row.tracebacks += seen["tracebacks"]
    return row


class Packets:
    """The destinations of all connections that are begun, and of all datagrams but those for the name server."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0003))
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            packet = self._socket.recv(65_535)
            version = packet[0] >> 4
            start, protocol = ((packet[0] & 15) * 4, packet[9]) if version == 4 else (40, packet[6])
            target = ipaddress.ip_address(packet[16:20] if version == 4 else packet[24:40])
            begins = protocol == socket.IPPROTO_TCP and packet[start + 13] & 0x12 == 0x02
            port = struct.unpack("!H", packet[start + 2 : start + 4])[0]
            asks = protocol == socket.IPPROTO_UDP and NAME_SERVER not in (
                str(target),
                str(ipaddress.ip_address(packet[12:16])) if version == 4 else "",
            )
            if begins or asks:
                self.seen[f"{target} {port}"] += 1

    def forbidden(self) -> list[str]:
        """Those that no crawler may be led to."""
        return sorted(each for each in self.seen if not is_public(ipaddress.ip_address(each.split()[0])))


def name_server() -> None:
    """Answer for the names of the hostile web; all others have the address of its good server."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((NAME_SERVER, 53))
    lookups: Counter[str] = Counter()
    while True:
        question, asker = server.recvfrom(4096)
        labels, place = list[str](), 12
        while size := question[place]:
            labels.append(question[place + 1 : place + 1 + size].decode("latin-1"))
            place += 1 + size
        name, kind = ".".join(labels).lower(), question[place + 1 : place + 3]
        code = {socket.EAI_NONAME: 3, socket.EAI_AGAIN: 2}.get(names.ERRORS.get(name, 0), 0)
        lookups[name] += kind == b"\0\1"
        found = names.NAMES.get(name, [names.WEB])
        if name == names.CHANGING and lookups[name] > 1:
            found = ["127.0.0.1"]
        addresses = [ipaddress.ip_address(each.partition("%")[0]) for each in found] if not code else []
        packed = [each.packed for each in addresses if len(each.packed) == (4 if kind == b"\0\1" else 16)]
        head = question[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, len(packed), 0, 0)
        answers = [b"\xc0\x0c" + kind + b"\0\1" + struct.pack("!IH", 1, len(each)) + each for each in packed]
        if name != names.SILENT:
            server.sendto(b"".join((head, question[12 : place + 5], *answers)), asker)


async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Behave as the server does whose address the client has asked for."""
    address, port = writer.get_extra_info("sockname")[:2]
    with contextlib.suppress(ConnectionError):
        if found := names.SERVERS.get((address, port)):
            await sites.SERVERS[found](reader, writer)
        elif address == names.NOWHERE:
            await asyncio.sleep(3600)
        else:
            sites.abort(writer)


async def crawl(folder: Path) -> dict[str, Any]:
    """Serve, crawl, and compare each URL's outcome with the rules that are right for it."""
    for host in ("0.0.0.0", "::"):
        for port in (80, 443):
            await asyncio.start_server(meet, host, port)
    wanted = {url: rules for url, rules in names.hostile_urls().items() if SLOW not in url}
    (folder / "list.txt").write_text("\n".join(wanted) + "\n")
    for name in (names.SILENT, *names.ERRORS):  # a real resolver gives up sooner or later than the crawler
        wanted[f"http://{name}/"] |= {"dns_error", "robots_unreachable"}
    options = [word for name, value in {**names.OPTIONS, **PATIENT}.items() for word in (f"--{name}", str(value))]
    words = ["-m", "dataprep.download", "list.txt", "download", "--fetch-log", "log", *options]
    running = Running(words, folder)
    await asyncio.to_thread(running.wait_for, SECONDS)
    running.kill_all()
    end = running.end()
    log = {row["url"]: row for file in sorted((folder / "log").glob("*.parquet")) for row in read_rows(file)}
    wrong = [
        f"{url}: {log[url]['rule']} ({log[url]['value']})"
        for url, rules in wanted.items()
        if url in log and log[url]["rule"] not in rules
    ]
    return {
        "urls": len(wanted),
        "rules": Counter(row["rule"] or "page" for row in log.values()),
        "wrong": wrong + ([end.last_lines] if end.status else []),
        "lost": [url for url in wanted if url not in log],
        "tracebacks": [end.last_lines] if end.has_traceback() else [],
    }


def main() -> None:
    """In the namespace: make every address local, start the servers, crawl, and print what was seen as JSON."""
    folder = Path(sys.argv[1])
    (folder / "resolv.conf").write_text(f"nameserver {NAME_SERVER}\noptions timeout:1 attempts:1\n")
    for command in (
        "ip link set lo up",
        "ip route add local 0.0.0.0/0 dev lo",
        "ip -6 route add local ::/0 dev lo",
        f"mount --bind {folder}/resolv.conf /etc/resolv.conf",
    ):
        subprocess.run(command.split(), check=True)
    packets = Packets()
    threading.Thread(target=name_server, daemon=True).start()
    seen = asyncio.run(crawl(folder))
    print(json.dumps({**seen, "forbidden": packets.forbidden()}), flush=True)


if __name__ == "__main__":
    main()
