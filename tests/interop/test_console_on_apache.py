"""Every page of the console over Apache's NameServer and broker, in a real browser, and what is clicked there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from apache import Apache

from contrailmq import Admin, ConsumeFromWhere, ConsumeResult, LitePullConsumer, Message, Producer, PushConsumer
from waiting_for import until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install 'contrailmq[dev]'")
pytest.importorskip("nicegui", reason="nicegui is not installed: pip install 'contrailmq[console]'")
pytestmark = [
    pytest.mark.program("Apache's broker under our console", "5.5.0"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]

WAIT_S = 120.0  # a bound for a machine that is busy, not a duration


@pytest.fixture(scope="module")
def namesrv(rocketmq: Apache) -> Iterator[str]:
    """A topic that a group has consumed in part, and the dead letters of another group."""
    with rocketmq.cluster(autoCreateTopicEnable="true") as (address, _):
        with Admin(namesrv=address) as admin:
            until(lambda: "TBW102" in admin.topics())
            for topic in ("Orders", "Refused"):
                admin.create_topic(topic, queues=1)
            admin.create_group("billing")
            with Producer("shop", namesrv=address) as producer:
                for number in range(4):
                    producer.send(Message("Orders", b'{"order": %d}' % number, keys=[f"o-{number}"]))
                    producer.send(Message("Refused", b"no %d" % number, keys=[f"r-{number}"]))
            admin.set_offset("billing", admin.queues("Orders")[0], 1)
            refusing = PushConsumer(
                "refusing", namesrv=address, from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=0
            )
            refusing.subscribe("Refused")
            refusing.listen(lambda messages: ConsumeResult.RETRY)
            refusing.start()
            try:
                until(lambda: len(admin.dead_letters("refusing")) == 4)
            finally:
                refusing.shutdown()
        yield address


@pytest.fixture(scope="module")
def console(namesrv: str) -> Iterator[str]:
    command = [sys.executable, "-m", "contrailmq", "console", "-n", namesrv, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready console http://127.0.0.1:"), line
        yield line.split()[2]
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture
def page(console: str) -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        opened = browser.new_page()
        opened.set_default_timeout(WAIT_S * 1000)
        faults: list[str] = []
        opened.on("pageerror", lambda error: faults.append(str(error)))
        opened.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        yield opened
        browser.close()
        assert faults == []


def test_every_page_shows_what_apaches_broker_has(page: Any, console: str, namesrv: str) -> None:
    with Admin(namesrv=namesrv) as admin:
        broker = admin.queues("Orders")[0].broker_name
    pages = {
        "/": broker,
        "/topics": "Refused",
        "/topic?name=Orders": "billing",
        "/groups": "billing",
        "/group?name=billing": "lag 3,",
        "/messages?topic=Orders": "4 found",
        f"/message?topic=Orders&broker={broker}&queue=0&offset=1": '"order": 1',
        "/letters": "refusing",
        "/letters?group=refusing": "r-3",
        "/pending": "Half messages",
        "/cluster": "answers, knows 1 brokers",
        "/pipeline": f"-n {namesrv}",
    }
    shown = {}
    for path, text in pages.items():
        page.goto(console + path)
        page.get_by_text(text).first.wait_for()
        shown[path] = page.get_by_role("heading", level=1).count()
    assert shown == dict.fromkeys(pages, 1)
    page.goto(f"{console}/cluster")
    page.get_by_label("Search settings").fill("flushDiskType")
    page.get_by_role("row", name="flushDiskType").get_by_role("cell", name="ASYNC_FLUSH", exact=True).wait_for()


def test_a_message_is_sent_and_letters_are_resent_from_the_console(page: Any, console: str, namesrv: str) -> None:
    page.goto(f"{console}/topic?name=Orders")
    page.get_by_role("button", name="Send a test message", exact=True).click()
    dialog = page.locator(".q-dialog:visible").last
    dialog.get_by_label("Body").fill("from a browser")
    dialog.get_by_role("button", name="Send").click()
    page.get_by_text("SEND_OK").wait_for()
    with LitePullConsumer("reader", namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as reader:
        reader.subscribe("Orders")
        got: list[bytes] = []
        until(lambda: bool(got.extend(one.body for one in reader.poll(timeout=1.0)) or len(got) == 5))
    assert got == [*(b'{"order": %d}' % number for number in range(4)), b"from a browser"]
    page.goto(f"{console}/letters?group=refusing")
    page.get_by_text("r-3").first.wait_for()
    page.get_by_role("button", name="Resend all", exact=True).click()
    page.locator(".q-dialog:visible").last.get_by_role("button", name="Resend all", exact=True).click()
    page.get_by_text("4 sent to refusing again, 0 had gone back before").wait_for()
    seen: list[bytes] = []
    consumer = PushConsumer("refusing", namesrv=namesrv)
    consumer.subscribe("Refused")
    consumer.listen(lambda messages: seen.extend(one.body for one in messages if "DLQ_RESENT_FROM" in one.properties))
    consumer.start()
    try:
        until(lambda: len(seen) == 4)
    finally:
        consumer.shutdown()
    assert sorted(seen) == [b"no 0", b"no 1", b"no 2", b"no 3"]
