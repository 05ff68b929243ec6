"""What the site has besides its pages: drawings without another server, and every page in the navigation.

Material draws mermaid by a script from the network, unless the page brings one. The console's package has that script,
so it is copied from there; without the extra `console` drawings stay text.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any, Final

# What Material asks of mermaid, which is there at once and waits for the module by itself.
SCRIPT: Final = """\
const module = import("./index.js");
let options = {};
// Parts that Material's own colours do not reach: second halves of alternatives, heads of arrows.
const inTheDark = `
  .sectionTitle, .sectionTitle > tspan, .loopText, .loopText > tspan { fill: var(--md-mermaid-label-fg-color) }
  marker path, marker polygon {
    fill: var(--md-mermaid-edge-color) !important; stroke: var(--md-mermaid-edge-color) !important
  }
`;
window.mermaid = {
  initialize(wanted) { options = wanted; },
  async render(id, text) {
    const { mermaid } = await module;
    mermaid.initialize({ ...options, themeCSS: (options.themeCSS || "") + inTheDark });
    return mermaid.render(id, text);
  },
};
"""
FOLDER: Final = "assets/mermaid"


def on_config(config: Any) -> Any:
    if _mermaid() is not None:
        config.extra_javascript.append(f"{FOLDER}/start.js")
    named = set(_pages(config.nav))
    unnamed = [path.name for path in sorted(Path(config.docs_dir).glob("*.md")) if path.name not in named]
    if unnamed:
        config.nav.append({"More": unnamed})
    return config


def _pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [page for entry in entries for page in _pages(entry)]


def on_post_build(config: Any) -> None:
    found = _mermaid()
    if found is None:
        return
    target = Path(config.site_dir, FOLDER)
    shutil.copytree(found, target, dirs_exist_ok=True)
    (target / "start.js").write_text(SCRIPT)


def _mermaid() -> Path | None:
    spec = importlib.util.find_spec("nicegui")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "elements" / "mermaid" / "dist"
    return folder if (folder / "index.js").is_file() else None
