"""The documentation as a site: what becomes of its Markdown on the way. `make docs` checks the rest."""

import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

CONF = Path(__file__).parents[1] / "docs/conf.py"


def test_figures_of_tables_stay_whole_and_code_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Sphinx, which only `make docs` installs."""
    application = ModuleType("sphinx.application")
    vars(application)["Sphinx"] = object
    for name, module in (("sphinx", ModuleType("sphinx")), ("sphinx.application", application)):
        monkeypatch.setitem(sys.modules, name, module)
    vars(sys.modules["sphinx"])["application"] = application
    source = ["lr 1e-5, 3.5 GB\n| 1.2e-7 9e-8 | 3.5 GB, 2 min, 4 minutes | `lr=1e-5 of 2 GB` |\n"]
    runpy.run_path(str(CONF))["keep_figures_whole"](None, "docs/x", source)
    hyphen, space = "\N{NON-BREAKING HYPHEN}", "\N{NO-BREAK SPACE}"
    whole = f"| 1.2e{hyphen}7 9e{hyphen}8 | 3.5{space}GB, 2{space}min, 4 minutes"
    assert source == [f"lr 1e-5, 3.5 GB\n{whole} | `lr=1e-5 of 2 GB` |\n"]
