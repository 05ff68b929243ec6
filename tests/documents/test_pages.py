"""Every link of the documents leads somewhere, the site is built without a warning, and what is made of code is new."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from contrailmq.broker.config import BrokerConfig, store_properties
from contrailmq.console.model.setting_meanings import MEANINGS
from contrailmq.namesrv.config import WITHOUT_EFFECT, NamesrvConfig
from contrailmq.store import StoreConfig
from documents.pages import DOCS, PAGES, ROOT, anchors, prose

OF_ROCKETMQ_ALONE = {"transferMsgByHeap", "waitTimeMillsInSendQueue"}  # the console shows Apache's brokers too


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?:", target):
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        if not other.exists() or (anchor and anchor not in anchors(other)):
            wrong.append(target)
    assert wrong == []


def test_the_settings_page_is_what_the_code_says() -> None:
    said: str = tool("settings_page").page()
    assert (DOCS / "settings.md").read_text() == said, "python tools/settings_page.py > docs/settings.md"


def test_every_setting_has_its_meaning_and_there_is_no_other() -> None:
    known = {*BrokerConfig().to_properties(), *store_properties(StoreConfig("unused"))}
    known |= NamesrvConfig().to_properties().keys() - WITHOUT_EFFECT
    assert known - MEANINGS.keys() == set()
    assert MEANINGS.keys() - known == OF_ROCKETMQ_ALONE


def test_every_figure_of_the_sizing_is_one_of_the_benchmarks() -> None:
    section = (DOCS / "operations.md").read_text().split("\n## Sizing\n")[1].split("\n- ")[0]
    figures = [row.split("|")[2] for row in section.splitlines() if row.startswith("| ")][1:]
    named = [number for figure in figures for number in re.findall(r"\d[\d,.]*\d", figure)]
    measured = (DOCS / "benchmarks.md").read_text()
    assert len(named) >= 9
    assert [number for number in named if number not in measured] == []


def test_the_site_is_built_and_asks_no_other_server(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed (extra docs)")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    html = (tmp_path / "concepts.html").read_text()
    loaded = re.findall(r"<(?:script|img|iframe)[^>]*src=\"([^\"]+)", html)
    loaded += re.findall(r"<link(?![^>]*canonical)[^>]*href=\"([^\"]+)", html)
    assert len(loaded) >= 4
    assert [address for address in loaded if address.startswith(("http", "//"))] == []
    unnamed = [page.stem for page in DOCS.glob("*.md") if f'href="{page.stem}.html"' not in html]
    assert unnamed == [], "the navigation names every page"
    assert "assets/mermaid/start.js" in loaded
    assert (tmp_path / "assets" / "mermaid" / "index.js").is_file()
