"""What every page has: the header, the way to the other pages, light and dark, and the look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from nicegui import ui

from contrailmq.console.model.console_model import ConsoleModel
from contrailmq.console.pages.parts import show_notes

PAGES: Final = (
    ("/", "Overview", "dashboard"),
    ("/topics", "Topics", "topic"),
    ("/groups", "Groups", "groups"),
    ("/messages", "Messages", "mail"),
    ("/letters", "Dead letters", "report"),
    ("/pending", "Timers and transactions", "schedule"),
    ("/cluster", "Cluster", "dns"),
    ("/pipeline", "Pipeline", "account_tree"),
)
LOOK: Final = """
.console-break { overflow-wrap: anywhere; }
.console-note { gap: .5rem; padding: .5rem .75rem; border-left: 4px solid var(--q-warning); width: 100%;
  background: color-mix(in srgb, var(--q-warning) 12%, transparent); }
.console-error { border-left-color: var(--q-negative);
  background: color-mix(in srgb, var(--q-negative) 12%, transparent); }
.console-link { color: var(--console-link); }
.console-plain { white-space: pre-wrap; overflow-wrap: anywhere; font-family: ui-monospace, monospace; font-size: 13px;
  max-height: 28rem; overflow: auto; margin: 0; width: 100%; }
.console-figure { min-width: 9rem; flex: 1 1 9rem; }
.console-figure .text-h5 { font-variant-numeric: tabular-nums; }
.console-here { font-weight: 600; background: color-mix(in srgb, currentColor 12%, transparent); }
body { --console-link: #1254a1; }
body.body--dark { --console-link: #8ab8f5; }
:focus-visible { outline: 3px solid var(--q-warning) !important; outline-offset: 1px; }
.q-table td, .q-table th { white-space: normal; }
.nicegui-content { padding: 1rem; max-width: 1400px; margin: 0 auto; width: 100%; }
@media (max-width: 500px) { .nicegui-content { padding: .5rem; } .console-wide { display: none !important; } }
"""


@contextmanager
def frame(model: ConsoleModel, title: str, path: str, *, has_login: bool = False) -> Iterator[None]:
    """A page of the console; `path` is its place in the menu."""
    ui.page_title(f"{title} · ContrailMQ")
    ui.add_css(LOOK)
    ui.colors(primary="#1f4e79", negative="#b3261e", positive="#1b6e3c", warning="#b26a00")
    dark = ui.dark_mode(None)
    drawer = _drawer()
    with drawer:
        _menu(path)
    with ui.header().classes("items-center no-wrap q-pa-xs"):
        ui.button(icon="menu").props('flat round color=white aria-label="Show or hide the menu"').on(
            "click", js_handler=f"() => getElement({drawer.id}).toggle()"
        )
        ui.label("ContrailMQ").classes("text-subtitle1 text-weight-bold")
        ui.label(model.namesrv).classes("console-wide ellipsis").props('aria-label="NameServer"')
        ui.space()
        if model.is_read_only:
            ui.badge("read-only", color="warning")
        _switch_for(dark)
        if has_login:
            with ui.element("form").props("method=post action=/logout"):
                ui.button(icon="logout").props('flat round color=white type=submit aria-label="Log out"')
    with ui.column().classes("full-width q-gutter-y-sm") as content:
        ui.label(title).classes("text-h5 console-break").props("role=heading aria-level=1")
        gone = _Gone(model)
        yield
    ui.skip_link("Skip to the content", target=content)
    ui.timer(2.0, gone.refresh)  # last: a timer waits for the browser, and NiceGUI sends what is there then


class _Gone:
    """Brokers that went away, on every page: what they alone have looks deleted everywhere."""

    def __init__(self, model: ConsoleModel) -> None:
        self._sampler = model.sampler
        self._shown: tuple[str, ...] = ()
        self._notes = ui.column().classes("full-width")
        self.refresh()

    def refresh(self) -> None:
        self._sampler.looked_at()
        if self._sampler.overview.gone != self._shown:
            self._shown = self._sampler.overview.gone
            self._notes.clear()
            with self._notes:
                show_notes(self._shown)


def _drawer() -> ui.element:
    """Where the menu is. The browser shows it where there is room and hides it where there is none, by itself.

    NiceGUI's drawer has its value from the server: an answer that comes late opens it again over a narrow page.
    """
    layout = ui.context.client.layout.props('view="hHh Lpr fFf"')
    with layout:
        drawer = ui.element("q-drawer").classes("nicegui-drawer")
    drawer.props('show-if-above bordered side=left width=200 aria-label="Pages"')
    drawer.move(target_index=layout.default_slot.children.index(ui.context.client.page_container))
    return drawer


def _menu(path: str) -> None:
    with ui.list().classes("full-width").props('role=navigation aria-label="Pages"'):
        for target, name, icon in PAGES:
            here = "console-here" if target == path else ""
            current = ' aria-current="page"' if target == path else ""
            with ui.item().props(f'clickable tag=a role=link href="{target}"{current}').classes(here):
                with ui.item_section().props("avatar").style("min-width: 2rem"):
                    ui.icon(icon).props("aria-hidden=true")
                ui.item_section(name)


def _switch_for(dark: object) -> None:
    """Light, dark, or as the system has it; the browser remembers."""
    remembered = "localStorage.getItem('contrailmq-dark')"
    ui.run_javascript(f"if ({remembered} !== null) Quasar.Dark.set({remembered} === 'true')")
    button = ui.button(icon="contrast").props('flat round color=white aria-label="Switch between light and dark"')
    button.on(
        "click",
        js_handler="() => { Quasar.Dark.toggle(); localStorage.setItem('contrailmq-dark', Quasar.Dark.isActive); }",
    )
