"""`python -m bench console`: how soon the console shows its first pages, and what it costs the broker that it asks.

A broker and its NameServer are filled with topics and groups, each group with a position in one topic. Chromium opens
each page with an empty cache, and then again: the time is from the request to the text that only the data gives. The
broker's CPU is counted alone (the baseline), with the console that nobody looks at, and with a browser on the first
page.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.apache_programs import cpu_seconds
from bench.compare import free_port, process_tree, resident_mb
from contrailmq import aio
from contrailmq.message import ContrailError

WAIT_S: Final = 120.0
AT_ONCE: Final = 32
LOOK_S: Final = 0.02
PAGES: Final = {"/": "Backlog of all groups", "/topics": "topic-00000", "/groups": "group-00000"}


class NotMeasured(ContrailError):
    """The text says what is missing."""


class Running(NamedTuple):
    """`contrailmq up`, or a console alone."""

    process: subprocess.Popen[bytes]
    ready_s: float

    def resident_mb(self) -> float:
        return resident_mb(process_tree(self.process.pid))


def measure_console(
    *, topics: int, groups: int, visits: int, seconds: float, directory: Path | None
) -> dict[str, object]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise NotMeasured("chromium is not installed: apt-get install chromium")
    figures: dict[str, object] = {"topics; groups": f"{topics}; {groups}"}
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        folder = Path(temporary)
        _measure_up(folder, figures)
        namesrv_port, broker_port, port = free_port(), free_port(), free_port()
        namesrv, url = f"127.0.0.1:{namesrv_port}", f"http://127.0.0.1:{port}"
        filled = [*_up(folder / "filled", namesrv_port, broker_port), "--no-console"]
        with _running(filled, folder / "said") as up:
            asyncio.run(_fill(namesrv, topics, groups))
            broker = up.process.pid
            figures["broker's CPU, % of a core: alone"] = _cpu_percent(broker, seconds)
            console = _contrailmq(["console", "-n", namesrv, "--port", str(port)])
            with _running(console, folder / "said-console") as asking, _browser(chromium) as browser:
                _visit(browser, url, visits, figures)
                figures["with a console that nobody looks at"] = _cpu_percent(broker, seconds)
                page = browser.new_page()
                page.goto(url)
                page.get_by_text(PAGES["/"]).first.wait_for()
                figures["with a browser on the first page"] = _cpu_percent(broker, seconds)
                figures["the console, MB"] = round(asking.resident_mb())
    return figures


def _measure_up(folder: Path, figures: dict[str, object]) -> None:
    """Starting and resting: a broker and a NameServer, without the console and with it."""
    namesrv_port, broker_port, console_port = free_port(), free_port(), free_port()
    without = [*_up(folder / "without", namesrv_port, broker_port), "--no-console"]
    with _running(without, folder / "said") as up:
        figures["up, no console: ready s; MB"] = f"{up.ready_s:.2f}; {up.resident_mb():.0f}"
    inside = [*_up(folder / "with", namesrv_port, broker_port), "--console-port", str(console_port)]
    with _running(inside, folder / "said", partial(_answers, console_port)) as up:
        figures["up with the console: ready s; MB"] = f"{up.ready_s:.2f}; {up.resident_mb():.0f}"


def _contrailmq(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "contrailmq", *words]


def _up(store: Path, namesrv_port: int, broker_port: int) -> list[str]:
    ports = ["--namesrv-port", str(namesrv_port), "--broker-port", str(broker_port)]
    return _contrailmq(["up", "--store", str(store), *ports, "--no-grpc"])


@contextmanager
def _running(command: list[str], said: Path, is_ready: Callable[[], bool] | None = None) -> Iterator[Running]:
    """Ready when it prints so into the file `said`, or when `is_ready`."""
    begin = time.monotonic()
    with said.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
    is_ready = is_ready or partial(_says_so, said)
    try:
        while not is_ready():
            if process.poll() is not None or time.monotonic() - begin > WAIT_S:
                end = "ended" if process.poll() is not None else f"was not ready within {WAIT_S:g} s"
                raise NotMeasured(f"`{' '.join(command)}` {end}: run by hand, it says why")
            time.sleep(LOOK_S)
        yield Running(process, time.monotonic() - begin)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _says_so(said: Path) -> bool:
    return said.read_text().startswith("ready")


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False  # not yet


async def _fill(namesrv: str, topics: int, groups: int) -> None:
    """Topics with four queues; a group has a position in the topic of its number."""
    async with aio.Admin(namesrv=namesrv) as admin:
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with limit:
                topic = f"topic-{number:05}"
                await admin.create_topic(topic, queues=4)
                if number < groups:
                    await admin.create_group(f"group-{number:05}")

        await asyncio.gather(*(one(number) for number in range(max(topics, groups))))
        queues = {number: await admin.queues(f"topic-{number:05}") for number in range(groups)}
        for number, found in queues.items():
            await admin.set_offset(f"group-{number:05}", found[0], 0)


@contextmanager
def _browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        launched = playwright.chromium.launch(executable_path=chromium, args=flags)
        try:
            yield launched
        finally:
            launched.close()


def _visit(browser: Any, url: str, visits: int, figures: dict[str, object]) -> None:
    for path, text in PAGES.items():
        first: list[float] = []
        again: list[float] = []
        for _ in range(visits):
            context = browser.new_context(viewport={"width": 1200, "height": 800})
            context.set_default_timeout(WAIT_S * 1000)
            page = context.new_page()
            for took in (first, again):
                begin = time.monotonic()
                page.goto(url + path)
                page.get_by_text(text).first.wait_for()
                took.append(time.monotonic() - begin)
            context.close()
        for name, took in ((f"{path}, empty cache", first), (f"{path}, opened again", again)):
            figures[f"{name}: median; most, s"] = f"{statistics.median(took):.2f}; {max(took):.2f}"


def _cpu_percent(pid: int, seconds: float) -> float:
    """Of the one process that is broker and NameServer."""
    begin, used = time.monotonic(), cpu_seconds(pid)
    time.sleep(seconds)
    return round(100 * (cpu_seconds(pid) - used) / (time.monotonic() - begin), 2)
