"""The sample's URLs without text: empty pages, errors, redirects, forbidden and private URLs, bad lines of the list."""

from dataprep.sample.pages import HOSTS, Page, render
from dataprep.sample.site_folder import SiteFolder, with_parameter

TOO_LARGE_BYTES = 11_000_000
"""More than the default limit of 10 MB."""


def add_other_pages(site: SiteFolder) -> None:
    """Add all URLs without text, except those that repeat others."""
    add_robots(site)
    add_pages_without_text(site)
    add_errors(site)
    add_unwanted_bodies(site)
    add_redirects(site)
    add_forbidden(site)
    add_bad_lines(site)


def add_robots(site: SiteFolder) -> None:
    """Add the robots.txt of the hosts that have one."""
    for name, host in HOSTS.items():
        if host.robots:
            file = site.add_file(f"robots/{name}.txt", host.robots.encode())
            site.serve(f"http://{name}/robots.txt", file=file, headers={"Content-Type": "text/plain"})


def add_pages_without_text(site: SiteFolder) -> None:
    """Add pages that are fetched but have nothing to read."""
    for url, design in {
        "http://observatory.test/app": "app_shell",
        "http://garden.test/photos/": "gallery",
        "http://kitchen.test/menu": "app_shell",
    }.items():
        name = url.strip("/").rpartition("/")[2]
        site.add_page(url, name, render(design, Page("", name.capitalize())))
        site.expect(url, "extract", "empty_text", kind="no text")


def add_errors(site: SiteFolder) -> None:
    """Add responses with an error status."""
    for url, status in {
        "http://garden.test/2019/gone/": 410,
        "http://kitchen.test/posts/deleted": 410,
        "http://harbour.test/articles/broken.html": 500,
        "http://library.test/read?page=broken": 500,
    }.items():
        site.expect(site.serve(url, status=status), "download", "http_status", kind=f"status {status}")
    for url in ("http://observatory.test/stories/never-written", "http://workshop.test/missing.htm"):
        site.expect(url, "download", "http_status", kind="status 404")


def add_unwanted_bodies(site: SiteFolder) -> None:
    """Add bodies that are not HTML, or too large."""
    for url, content_type in {
        "http://observatory.test/api/stars": "application/json",
        "http://harbour.test/chart": "image/png",
    }.items():
        site.serve(url, headers={"Content-Type": content_type})
        site.expect(url, "download", "not_html", kind="not HTML")
    pdf = site.add_file("pages/library.test/catalogue.bin", b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj\n<<>>\nendobj\n")
    site.expect(site.serve("http://library.test/catalogue", file=pdf), "download", "not_html", kind="disguised PDF")
    for url in ("http://observatory.test/all-plates", "http://garden.test/endless/"):
        site.expect(site.serve(url, pad_bytes=TOO_LARGE_BYTES), "download", "too_large", kind="too large")


def add_redirects(site: SiteFolder) -> None:
    """Add redirects that lead nowhere, or to forbidden addresses."""
    for host in ("harbour.test", "workshop.test"):
        there, back = f"http://{host}/round", f"http://{host}/and-round"
        site.serve(there, status=302, location=back)
        site.serve(back, status=302, location=there)
        site.expect(there, "download", "redirect_loop", kind="redirect loop")
        for step in range(7):
            site.serve(f"http://{host}/relay/{step}", status=302, location=f"/relay/{step + 1}")
        site.expect(f"http://{host}/relay/0", "download", "too_many_redirects", kind="long redirect")
    for url, location in {
        "http://garden.test/gate": "http://10.0.0.7/admin",
        "http://observatory.test/metadata": "http://169.254.169.254/latest/meta-data/",
        "http://kitchen.test/local": "http://[::ffff:127.0.0.1]/",
    }.items():
        site.serve(url, status=302, location=location)
        site.expect(url, "download", "private_address", kind="redirect to a private address")


def add_forbidden(site: SiteFolder) -> None:
    """Add URLs that must not be requested: denied by robots.txt, on unusual ports, or private (rejected by `urls`)."""
    for url in (
        "http://garden.test/private/diary",
        "http://harbour.test/drafts/tide.html",
        "http://workshop.test/members/1",
    ):
        site.expect(site.serve(url), "download", "robots_denied", kind="robots.txt")
    for url in ("http://127.0.0.1/index.html", "http://2130706433/status", "http://0xa9fea9fe/latest/meta-data/"):
        site.expect(url, "urls", "malformed", kind="private address")
    for url in ("http://garden.test:8080/admin", "http://harbour.test:6379/"):
        site.expect(url, "download", "port_not_allowed", kind="port")


def add_bad_lines(site: SiteFolder) -> None:
    """Add URLs that are rejected before any request."""
    rules = {
        "domain_blacklist": [
            "https://www.youtube.com/watch?v=sourdough",
            "https://en.wikipedia.org/wiki/Arch",
            "http://i.imgur.com/harbour",
        ],
        "extension_blacklist": [
            "http://harbour.test/files/tide-table.pdf",
            "http://garden.test/pictures/Lime-Tree.JPG?size=large#top",
            "http://workshop.test/plans.7z",
            "http://workshop.test/logo.ai",
        ],
        "too_short": ["http://a", "b.test"],
        "malformed": [
            "www.harbour.test/without-a-scheme",
            "http://gar den.test/a-space-in-the-host",
            "htp://garden.test/wrong-scheme",
            "http://intranet/no-public-name",
        ],
    }
    for rule, urls in rules.items():
        for url in urls:
            site.expect(url, "urls", rule, kind=rule.replace("_", " "))


def add_other_spellings(site: SiteFolder) -> None:
    """Add URLs that repeat an earlier one in another spelling, and tracking parameters to two that are unique."""
    articles = [answer for answer in site.answers if answer["kind"] == "article"]
    first, second, third, fourth, fifth = articles[:5]
    for url in (
        first["url"].replace("http://", "HTTP://").replace(".test", ".TEST") + "#comments",
        second["url"].replace(".test/", ".test:80/"),
        with_parameter(third["url"], "utm_source=newsletter&utm_medium=email"),
    ):
        site.expect(url, "urls", "duplicate", kind="duplicate URL")
    for answer in (fourth, fifth):
        answer["url"] = with_parameter(answer["url"], "utm_campaign=spring")
        answer["kind"] = "tracking parameter"
