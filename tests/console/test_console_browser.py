"""The console in a real browser: Debian's chromium, driven by Playwright. One cluster and one browser serve all tests.

Every page is opened with real data; what is clicked is checked through a client. Without chromium the tests are skipped
and say so. CONTRAILMQ_SCREENSHOTS=DIR keeps pictures of the main pages (`make screenshots`).
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from contrailmq import (
    Admin,
    ConsumeFromWhere,
    ConsumeResult,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from contrailmq.message import MessageQueue, dlq_topic
from contrailmq.testing import LocalCluster
from waiting_for import LIMIT_S, until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install 'contrailmq[dev]'")
pytest.importorskip("nicegui", reason="nicegui is not installed: pip install 'contrailmq[console]'")
pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]

HOSTILE = "<img src=x onerror=window.hurt=1><script>window.hurt=1</script>{{ 7 * 7 }}"
PASSWORD = "correct horse"
PICTURES = os.environ.get("CONTRAILMQ_SCREENSHOTS")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture(scope="module")
def data(cluster: LocalCluster) -> None:
    """Topics, a group with lag, traced messages, hostile text, and dead letters that a real group gave up."""
    namesrv = cluster.namesrv
    with Admin(namesrv=namesrv) as admin:
        for topic in ("Orders", "Refused", *(f"Many-{number:02}" for number in range(30))):
            admin.create_topic(topic, queues=2)
        admin.create_group("billing")
        with Producer("shop", namesrv=namesrv, trace=True, instance_name=HOSTILE) as producer:
            for number in range(20):
                body = json.dumps({"order": number, "note": HOSTILE}).encode()
                message = Message("Orders", body, tags="paid", keys=[f"o-{number}"], properties={"region": HOSTILE})
                producer.send(message, queue=MessageQueue("Orders", "broker-0", number % 2))
            for number in range(4):
                producer.send(Message("Refused", f"no {number}".encode(), keys=[f"r-{number}"], tags=HOSTILE))
        for queue in admin.queues("Orders"):
            admin.set_offset("billing", queue, 8)
    with TransactionProducer(
        "deciding",
        namesrv=namesrv,
        execute=lambda message, arg: TransactionState.UNKNOWN,
        check=lambda message: TransactionState.UNKNOWN,
    ) as transactions:
        transactions.send_in_transaction(Message("Many-00", b"half"), None)
    refusing = PushConsumer(
        "refusing", namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=0
    )
    refusing.subscribe("Refused")
    refusing.listen(lambda messages: ConsumeResult.RETRY)
    refusing.start()
    try:
        with Admin(namesrv=namesrv) as admin:
            until(lambda: len(admin.dead_letters("refusing")) == 4, "four dead letters")
    finally:
        refusing.shutdown()


def start(cluster: LocalCluster, *flags: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    command = [sys.executable, "-m", "contrailmq", "console", "-n", cluster.namesrv, "--port", "0", *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready console http://127.0.0.1:"), line
    return line.split()[2]


def end(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(LIMIT_S)
    finally:
        process.kill()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture(scope="module")
def consoles(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """One that may do everything, and one that is read-only behind a password. Both start at once."""
    file = tmp_path_factory.mktemp("console") / "password"
    done = subprocess.run(
        [sys.executable, "-m", "contrailmq", "console", "--set-password", str(file)],
        input=f"{PASSWORD}\n",
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    open_one, closed_one = start(cluster), start(cluster, "--read-only", "--password-file", str(file))
    try:
        yield url_of(open_one), url_of(closed_one)
    finally:
        endings = (end(open_one), end(closed_one))
    assert endings == (0, 0), "a console ends cleanly on SIGTERM"


@pytest.fixture(scope="module")
def console(consoles: tuple[str, str], data: None) -> str:
    return consoles[0]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Any, console: str) -> Iterator[Any]:
    """A tab in which nothing may fail, and nothing may be loaded from elsewhere."""
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(LIMIT_S * 1000)
    faults: list[str] = []
    opened = context.new_page()
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    opened.on(
        "request",
        lambda request: None if request.url.startswith((console, "data:", "blob:")) else faults.append(request.url),
    )
    yield opened
    hurt = opened.evaluate("window.hurt")
    context.close()
    assert hurt is None, "text of the cluster ran as a script"
    assert faults == []


def button(page: Any, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


def dialog(page: Any) -> Any:
    return page.locator(".q-dialog:visible").last


PAGES = {
    "/": "Backlog of all groups",
    "/topics": "Many-00",
    "/topic?name=Orders": "Producers connected to its brokers",
    "/groups": "billing",
    "/group?name=billing": "Lag by queue",
    "/messages?topic=Orders": "20 found",
    "/message?topic=Orders&broker=broker-0&queue=0&offset=1": "Where the groups stand",
    "/letters": "refusing",
    "/letters?group=refusing": "r-3",
    "/pending": "deciding",
    "/cluster": "answers, knows 1 brokers",
    "/pipeline": "contrailmq pipeline ask --archive archive",
}


MENU_LEFT = "document.querySelector('aside').getBoundingClientRect().left"  # pushed out of sight where there is no room

# What can be used and has no name for a screen reader. An icon's text is its picture, not a name.
NAMELESS = """() => {
  const words = found => {
    const copy = found.cloneNode(true);
    copy.querySelectorAll('.q-icon').forEach(icon => icon.remove());
    return copy.textContent.trim() || found.getAttribute('aria-label')
      || found.getAttribute('aria-labelledby') || found.title;
  };
  return [...document.querySelectorAll('button, a[href], input, textarea, select, [role=checkbox]')]
    .filter(found => found.offsetParent !== null && found.type !== 'hidden')
    .filter(found => !words(found) && !(found.labels && found.labels.length) && !found.closest('label'))
    .map(found => found.outerHTML.slice(0, 200));
}"""


@pytest.mark.parametrize("path", PAGES)
def test_every_page_shows_real_data_at_any_width_in_light_and_dark_and_all_of_it_has_names(
    page: Any, console: str, path: str
) -> None:
    page.goto(console + path)
    page.get_by_text(PAGES[path]).first.wait_for()
    assert page.get_by_role("heading", level=1).count() == 1
    assert page.evaluate(NAMELESS) == []
    page.locator("aside").get_by_role("link", name="Pipeline").wait_for()
    page.wait_for_function(f"{MENU_LEFT} === 0")
    page.set_viewport_size({"width": 400, "height": 800})
    page.wait_for_function(f"{MENU_LEFT} < 0")
    page.wait_for_function("document.documentElement.scrollWidth <= 400")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.body.classList.contains('body--dark')")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to the content"


def test_the_menu_that_a_narrow_window_hid_does_not_come_back_with_a_late_answer(page: Any, console: str) -> None:
    """The browser shows and hides it; what the server knows of that may be old."""
    late: list[tuple[Any, str | bytes]] = []
    is_held = True

    def hold(browser: Any) -> None:
        def from_server(message: str | bytes) -> None:
            if is_held and "model-value" in str(message):
                late.append((browser, message))
            else:
                browser.send(message)

        server = browser.connect_to_server()
        browser.on_message(server.send)
        server.on_message(from_server)

    page.route_web_socket(re.compile("socket.io"), hold)
    page.goto(f"{console}/groups")
    page.get_by_text("billing").first.wait_for()
    page.wait_for_function(f"{MENU_LEFT} === 0")
    page.set_viewport_size({"width": 400, "height": 800})
    page.wait_for_function(f"{MENU_LEFT} < 0")
    is_held = False
    for browser, message in late:
        browser.send(message)
    page.get_by_label("Show or hide the menu").click()
    page.wait_for_function(f"{MENU_LEFT} === 0")
    page.mouse.click(390, 790)  # beside it
    page.wait_for_function(f"{MENU_LEFT} < 0")


def test_the_first_page_counts_brokers_and_the_backlog(page: Any, console: str) -> None:
    page.goto(console)
    page.get_by_text("broker-0", exact=True).first.wait_for()
    page.locator(".console-figure", has_text="Backlog of all groups").get_by_text(re.compile(r"^\d+$")).wait_for()
    keep(page, "overview")


def test_topics_are_searched_and_paged_by_the_server(page: Any, console: str) -> None:
    page.goto(f"{console}/topics")
    page.get_by_text("Many-00", exact=True).wait_for()
    assert page.locator("tbody tr").count() == 20, "one page of more than thirty"
    page.get_by_text(re.compile(r"^1-20 of 3\d$")).wait_for()
    page.get_by_label("Next page").click()
    page.get_by_text("Many-29", exact=True).wait_for()
    page.get_by_text(re.compile(r"^21-3\d of 3\d$")).wait_for()
    page.get_by_label("Search").fill("many-2")
    page.get_by_text("Many-20", exact=True).wait_for()
    page.get_by_text("1-10 of 10", exact=True).wait_for()
    assert page.locator("tbody tr").count() == 10


def test_a_topic_is_created_sent_to_and_deleted_and_a_consumer_sees_the_message(
    page: Any, console: str, cluster: LocalCluster
) -> None:
    page.goto(f"{console}/topics")
    button(page, "Create topic").click()
    dialog(page).get_by_label("Name").fill("Clicked")
    dialog(page).get_by_label("Queues on each broker").fill("3")
    dialog(page).get_by_role("button", name="Create").click()
    page.get_by_text("topic Clicked is created").wait_for()
    with Admin(namesrv=cluster.namesrv) as admin:
        assert [config.write_queue_nums for config in admin.topic_holders("Clicked").values()] == [3]
    page.goto(f"{console}/topic?name=Clicked")
    button(page, "Send a test message").click()
    dialog(page).get_by_label("Body").fill("from a browser")
    dialog(page).get_by_label("Tag", exact=True).fill("clicks")
    dialog(page).get_by_role("button", name="Send").click()
    page.get_by_text("SEND_OK").wait_for()
    with LitePullConsumer("reader", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as reader:
        reader.subscribe("Clicked")
        got: list[Any] = []
        until(lambda: bool(got.extend(reader.poll(timeout=1.0)) or got), "the message")
        assert [(message.body, message.tags) for message in got] == [(b"from a browser", "clicks")]
    button(page, "Delete").click()
    dialog(page).get_by_text("Delete topic Clicked with 1 messages, everywhere?").wait_for()
    dialog(page).get_by_role("button", name="Delete").click()
    page.wait_for_url("**/topics")
    with Admin(namesrv=cluster.namesrv) as admin:
        assert admin.topic_holders("Clicked") == {}


def test_a_reset_shows_what_it_means_and_then_does_that(page: Any, console: str, cluster: LocalCluster) -> None:
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_group("resetting")
        for queue in admin.queues("Orders"):
            admin.set_offset("resetting", queue, 8)
    page.goto(f"{console}/group?name=resetting")
    button(page, "Reset offsets").click()
    assert button(dialog(page), "Reset").is_disabled(), "not before the preview"
    dialog(page).get_by_text("to an offset").click()
    dialog(page).get_by_label("Offset", exact=True).fill("5")
    button(dialog(page), "Preview").click()
    dialog(page).get_by_text("resetting on Orders: 10 messages will wait, 6 will be consumed again").wait_for()
    keep(page, "reset")
    button(dialog(page), "Reset").click()
    page.get_by_text("lag 10,").wait_for()
    with Admin(namesrv=cluster.namesrv) as admin:
        assert [admin.offset("resetting", queue) for queue in admin.queues("Orders")] == [5, 5]
    button(page, "Skip backlog").click()
    dialog(page).get_by_text("Skip 10 messages").wait_for()
    button(dialog(page), "Skip").click()
    page.get_by_text("lag 0,").wait_for()
    button(page, "Delete").click()
    button(dialog(page), "Delete").click()
    page.wait_for_url("**/groups")
    with Admin(namesrv=cluster.namesrv) as admin:
        assert "resetting" not in admin.groups()


def test_messages_are_found_in_four_ways_and_wrong_input_is_one_sentence(page: Any, console: str) -> None:
    page.goto(f"{console}/messages")
    page.get_by_label("Topic", exact=True).fill("Orders")
    page.get_by_label("From").fill("yesterday")
    button(page, "Search").click()
    page.get_by_text("'yesterday' is not a time: give 2026-01-31T08:00").wait_for()
    page.get_by_label("From").fill("-1h")
    button(page, "Search").click()
    page.get_by_text("20 found").wait_for()
    choose(page, "key")
    page.get_by_label("Key or id").fill("o-7")
    button(page, "Search").click()
    page.get_by_text("1 found").wait_for()
    message_id = page.locator("tbody a").first.inner_text()
    choose(page, "queue offset")
    page.get_by_label("Offset", exact=True).fill("99")
    button(page, "Search").click()
    page.get_by_text("has no offset 99: it has 0 to 9").wait_for()
    choose(page, "id")
    page.get_by_label("Key or id").fill(message_id)
    button(page, "Search").click()
    page.locator("tbody a", has_text=message_id).wait_for()
    page.locator("tbody a").first.click()
    page.wait_for_url("**/message?*")
    page.get_by_role("tab", name="Hex").click()
    page.get_by_text("00000000  7b 22 6f 72 64 65 72").wait_for()
    page.get_by_text("has passed it").first.wait_for()
    page.get_by_text("sent: shop").wait_for()
    keep(page, "message")


def test_a_body_is_shown_by_a_schema_file_that_is_given_in_the_page_and_a_wrong_one_is_said(
    page: Any, console: str, cluster: LocalCluster, tmp_path: Path
) -> None:
    """The text of the schema and of the body are hostile too; the page fixture fails when any of it ran."""
    pytest.importorskip("fastavro")
    note = HOSTILE.encode()
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic("Typed", queues=1)
    with Producer("shop", namesrv=cluster.namesrv) as producer:
        producer.send(Message("Typed", bytes([0x54]) + len(note * 2).to_bytes(1, "big") + b"\x01" + note))
    fields = [{"name": "number", "type": "long"}, {"name": "note", "type": "string"}]
    (right := tmp_path / "orders.avsc").write_text(json.dumps({"type": "record", "name": "O", "fields": fields}))
    (wrong := tmp_path / "<b>wrong.avsc").write_text('"long"')
    (none := tmp_path / "orders.exe").write_text("")
    page.goto(f"{console}/message?topic=Typed&broker=broker-0&queue=0&offset=0")
    give(page, wrong)
    page.get_by_text("<b>wrong.avsc: the body does not fit the schema: ").wait_for()
    assert page.get_by_role("tab", name="Avro").count() == 0
    page.get_by_role("tab", name="Hex").click()
    page.get_by_text("00000000  54").wait_for()
    give(page, none)
    page.get_by_text("a schema is one of .avsc,.proto").wait_for()
    give(page, right)
    page.get_by_text("Avro: orders.avsc", exact=True).wait_for()
    page.get_by_text('"number": 42').wait_for()
    page.reload()
    page.get_by_text("Avro: orders.avsc", exact=True).wait_for()
    assert page.evaluate(NAMELESS) == []


def test_a_message_of_a_protobuf_schema_is_chosen(
    page: Any, console: str, cluster: LocalCluster, tmp_path: Path
) -> None:
    pytest.importorskip("grpc_tools")
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic("Protos", queues=1)
    with Producer("shop", namesrv=cluster.namesrv) as producer:
        producer.send(Message("Protos", b"\x08\x2a"))
    text = 'syntax = "proto3"; message Paid { int64 number = 1; } message Refund { int64 back = 1; }'
    (schema := tmp_path / "orders.proto").write_text(text)
    page.goto(f"{console}/message?topic=Protos&broker=broker-0&queue=0&offset=0")
    give(page, schema)
    page.get_by_text('"number": "42"').wait_for()
    page.get_by_label("Message of orders.proto").click()
    page.get_by_role("option", name="Refund", exact=True).click()
    page.get_by_text('"back": "42"').wait_for()


def give(page: Any, schema: Path) -> None:
    with page.expect_file_chooser() as opened:
        button(page, "Give a schema file").click()
    opened.value.set_files(schema)


def choose(page: Any, way: str) -> None:
    page.get_by_label("Search by").click()
    page.get_by_role("option", name=way, exact=True).click()


def test_hostile_text_is_shown_as_it_is(page: Any, console: str) -> None:
    """The page fixture fails when any of it ran."""
    page.goto(f"{console}/message?topic=Orders&broker=broker-0&queue=0&offset=0")
    page.get_by_text(HOSTILE, exact=True).first.wait_for()
    page.goto(f"{console}/letters?group=refusing")
    page.get_by_text(HOSTILE, exact=True).first.wait_for()
    for path in ("/topic?name=", "/group?name=", "/messages?topic=", "/letters?group="):
        page.goto(console + path + quote(HOSTILE))
        page.get_by_role("heading", level=1).wait_for()


def test_a_message_is_sent_again(page: Any, console: str, cluster: LocalCluster) -> None:
    with Admin(namesrv=cluster.namesrv) as admin:
        before = sum(item.max_offset for item in admin.topic_stats("Refused").values())
        page.goto(f"{console}/message?topic=Refused&broker=broker-0&queue=0&offset=0")
        button(page, "Send again").click()
        button(dialog(page), "Send").click()
        page.get_by_text("SEND_OK").wait_for()
        assert sum(item.max_offset for item in admin.topic_stats("Refused").values()) == before + 1


def test_dead_letters_are_resent_by_choice_and_then_all_of_the_rest_once(
    page: Any, console: str, cluster: LocalCluster
) -> None:
    seen: list[bytes] = []
    consumer = PushConsumer("refusing", namesrv=cluster.namesrv)
    consumer.subscribe("Refused")
    consumer.listen(lambda messages: seen.extend(m.body for m in messages if "DLQ_RESENT_FROM" in m.properties))
    consumer.start()
    try:
        page.goto(f"{console}/letters?group=refusing")
        page.get_by_text("r-3").first.wait_for()
        keep(page, "letters")
        button(page, "Resend selected").click()
        page.get_by_text("select letters first").wait_for()
        page.get_by_label("Select row 1", exact=True).click()
        button(page, "Resend selected").click()
        page.get_by_text("1 sent to refusing again, 0 had gone back before").wait_for()
        until(lambda: len(seen) == 1, "one letter")
        button(page, "Resend all").click()
        button(dialog(page), "Resend all").click()
        page.get_by_text("3 sent to refusing again, 1 had gone back before").wait_for()
        until(lambda: len(seen) == 4, "every letter")
        assert sorted(seen) == [b"no 0", b"no 1", b"no 2", b"no 3"]
    finally:
        consumer.shutdown()


def test_dead_letters_are_exported_as_json_lines_and_as_parquet(console: str, cluster: LocalCluster) -> None:
    with urllib.request.urlopen(f"{console}/export/letters?group=refusing") as answer:
        assert answer.headers["content-disposition"] == 'attachment; filename="dead-letters-refusing.jsonl"'
        letters = [json.loads(line) for line in answer.read().splitlines()]
    assert sorted(letter["body"] for letter in letters) == ["no 0", "no 1", "no 2", "no 3"]
    assert {letter["tags"] for letter in letters} == {HOSTILE}
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    with urllib.request.urlopen(f"{console}/export/letters?group=refusing&form=parquet") as answer:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(answer.read()))
    assert sorted(table.column("body").to_pylist()) == [b"no 0", b"no 1", b"no 2", b"no 3"]
    with Admin(namesrv=cluster.namesrv) as admin:
        assert len(admin.dead_letters("refusing")) == table.num_rows
        assert dlq_topic("refusing") in admin.topics()


def test_letters_say_which_topic_they_were_sent_to(page: Any, console: str) -> None:
    page.goto(f"{console}/letters?group=refusing")
    page.get_by_role("row").filter(has_text="r-3").get_by_text("Refused", exact=True).wait_for()


def test_the_address_of_a_page_that_makes_no_sense_is_answered_with_a_sentence(page: Any, console: str) -> None:
    connection = http.client.HTTPConnection(console.removeprefix("http://"))
    connection.request("GET", "/message?topic=Orders&broker=broker-0&queue=abc&offset=1")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (400, b"queue: 'abc' is not a whole number")
    connection.close()


def test_a_setting_is_changed_and_what_the_broker_refuses_is_said(
    page: Any, console: str, cluster: LocalCluster
) -> None:
    page.goto(f"{console}/cluster")
    page.get_by_label("Search settings").fill("given up")
    page.get_by_text("transactionCheckMax", exact=True).wait_for()
    button(page, "Change a setting").click()
    dialog(page).get_by_label("Setting", exact=True).fill("fileReservedTime")
    dialog(page).get_by_label("Value", exact=True).fill("71")
    button(dialog(page), "Change").click()
    page.get_by_text("fileReservedTime: not changed over the network").wait_for()
    dialog(page).get_by_label("Setting", exact=True).fill("transactionCheckMax")
    dialog(page).get_by_label("Value", exact=True).fill("9")
    button(dialog(page), "Change").click()
    page.get_by_text("transactionCheckMax=9 on broker-0").wait_for()
    with Admin(namesrv=cluster.namesrv) as admin:
        assert admin.broker_config(cluster.broker_addresses[0])["transactionCheckMax"] == "9"


def test_commands_are_written_for_the_chosen_topics(page: Any, console: str, cluster: LocalCluster) -> None:
    page.goto(f"{console}/pipeline")
    page.get_by_label("Topics, with commas between").fill("Orders, Refused")
    page.get_by_label("Group with dead letters").fill("refusing")
    button(page, "Write commands").click()
    archive = f"contrailmq pipeline archive -n {cluster.namesrv} --topics Orders,Refused --to archive"
    page.get_by_text(archive, exact=True).wait_for()
    page.get_by_text(f"contrailmq pipeline redrive --group refusing -n {cluster.namesrv}", exact=True).wait_for()


def test_requests_of_other_sites_and_names_are_refused(page: Any, console: str) -> None:
    host = console.removeprefix("http://")
    key = {"sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==", "sec-websocket-version": "13"}
    upgrade = {"connection": "Upgrade", "upgrade": "websocket"} | key
    for headers, path in (
        ({"host": "rebound.example"}, "/"),
        ({"host": host, "origin": "http://evil.example"}, "/topics"),
        (
            {"host": host, "origin": "http://evil.example"} | upgrade,
            "/_nicegui_ws/socket.io/?EIO=4&transport=websocket",
        ),
        ({"host": "rebound.example", "origin": "http://rebound.example"} | upgrade, "/_nicegui_ws/socket.io/?EIO=4"),
    ):
        connection = http.client.HTTPConnection(host)
        connection.request("GET", path, headers=headers)
        assert connection.getresponse().status == 403, headers
        connection.close()
    page.goto(console)  # a page of our own comes through, websocket and all
    page.get_by_text("broker-0", exact=True).first.wait_for()


def test_a_read_only_console_behind_a_password_shows_everything_and_offers_nothing(
    browser: Any, consoles: tuple[str, str], data: None
) -> None:
    console = consoles[1]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{console}/export/letters?group=refusing")
    context = browser.new_context()
    context.set_default_timeout(LIMIT_S * 1000)
    page = context.new_page()
    page.goto(f"{console}/topics")
    page.wait_for_url("**/login")
    page.get_by_label("Password").fill("wrong horse")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("alert").get_by_text("That is not the password.").wait_for()
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    page.get_by_text("read-only").wait_for()
    paths = ("/topics", "/topic?name=Orders", "/groups", "/group?name=billing", "/letters?group=refusing", "/cluster")
    for path in paths:
        page.goto(console + path)
        page.get_by_role("heading", level=1).wait_for()
        for name in ("Create", "Change", "Delete", "Send", "Reset", "Skip", "Resend"):
            assert page.get_by_role("button", name=name).count() == 0, (path, name)
    page.get_by_label("Log out").click()
    page.wait_for_url("**/login")
    context.close()


def test_a_cluster_that_is_away_is_said_with_its_address(browser: Any, cluster: LocalCluster) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "contrailmq", "console", "-n", "127.0.0.1:1", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
    )
    try:
        console = url_of(process)
        page = browser.new_page()
        for path in ("/", "/topics", "/group?name=billing", "/letters"):
            page.goto(console + path)
            page.get_by_role("alert").get_by_text("127.0.0.1:1").first.wait_for(timeout=LIMIT_S * 1000)
            assert "Traceback" not in page.content()
        page.close()
    finally:
        assert end(process) == 0


def test_every_page_says_that_a_broker_is_gone_and_takes_it_back_when_it_is_here_again(browser: Any) -> None:
    """Its topics and groups are in no list then: without a note they look deleted."""
    with LocalCluster() as running:
        with Admin(namesrv=running.namesrv) as admin:
            admin.create_topic("Orders", queues=1)
        process = start(running)
        try:
            console = url_of(process)
            pages = {path: browser.new_page() for path in ("/", "/topics", "/topic?name=Orders", "/letters")}
            for path, page in pages.items():
                page.goto(console + path)
                page.get_by_role("heading", level=1).wait_for(timeout=LIMIT_S * 1000)
            running.kill_broker()
            said = f"broker-0 at {running.broker_addresses[0]} is no longer registered"
            for path, page in pages.items():
                page.get_by_role("status").get_by_text(said).wait_for(timeout=LIMIT_S * 1000)
                page.goto(console + path)
                page.get_by_role("status").get_by_text(said).wait_for(timeout=LIMIT_S * 1000)
            running.restart_broker()
            for page in pages.values():
                page.get_by_role("status").get_by_text(said).wait_for(state="hidden", timeout=LIMIT_S * 1000)
                page.close()
        finally:
            assert end(process) == 0


def keep(page: Any, name: str) -> None:
    if PICTURES:
        Path(PICTURES).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(PICTURES) / f"console-{name}.png"))
