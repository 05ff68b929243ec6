"""Who may ask the console: names, origins, sessions. Plain ASGI, without pages and sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from contrailmq.console import guard as guarding
from contrailmq.console.guard import COOKIE, Guard
from contrailmq.console.passwords import make_hash

HASH = make_hash("correct horse")


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"inside"})


def ask(
    guard: Guard,
    headers: dict[str, str],
    *,
    method: str = "GET",
    path: str = "/",
    kind: str = "http",
    body: bytes = b"",
) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(guard(scope, receive, send))
    return sent


def header(answer: list[dict[str, Any]], name: str) -> str:
    return next((value.decode() for key, value in answer[0]["headers"] if key == name.encode()), "")


@pytest.mark.parametrize(
    "host",
    ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "10.0.0.7", "LOCALHOST", "console.example:80", "localhost."],
)
def test_numbers_localhost_and_given_names_pass(host: str) -> None:
    answer = ask(Guard(app, names=["Console.example"]), {"host": host})
    assert answer[0]["status"] == 200
    assert "frame-ancestors 'none'" in header(answer, "content-security-policy")


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8080", "", "[", "1.2.3"]
)
def test_any_other_name_is_refused_since_it_may_be_rebound(host: str) -> None:
    answer = ask(Guard(app), {"host": host})
    assert answer[0]["status"] == 403
    assert b"inside" not in answer[1]["body"]


OURS = {"host": "127.0.0.1:8080"}


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
    ],
)
@pytest.mark.parametrize(("kind", "method"), [("http", "GET"), ("http", "POST"), ("websocket", "GET")])
def test_requests_of_other_sites_are_refused(headers: dict[str, str], kind: str, method: str) -> None:
    answer = ask(Guard(app), OURS | headers, kind=kind, method=method)
    assert answer[0] == {"type": "websocket.close", "code": 1008} if kind == "websocket" else answer[0]["status"] == 403


def test_links_from_elsewhere_and_our_own_requests_pass() -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert ask(Guard(app), OURS | link)[0]["status"] == 200
    assert ask(Guard(app), OURS | link, method="POST")[0]["status"] == 403
    own = {"origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-origin"}
    assert ask(Guard(app), OURS | own, method="POST")[0]["status"] == 200
    assert ask(Guard(app), OURS | own, kind="websocket")[0]["type"] == "websocket.accept"


def test_with_a_password_nothing_is_answered_before_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "WRONG_PAUSE_S", 0.0)
    guard = Guard(app, password=HASH)
    page = ask(guard, OURS | {"accept": "text/html"})
    assert (page[0]["status"], header(page, "location")) == (303, "/login")
    assert ask(guard, OURS, path="/export/letters")[0]["status"] == 401
    assert ask(guard, OURS, kind="websocket")[0] == {"type": "websocket.close", "code": 1008}
    form = ask(guard, OURS, path="/login")
    assert b'<label for="password">' in form[1]["body"]
    wrong = ask(guard, OURS, path="/login", method="POST", body=b"password=%3Cscript%3E")
    assert wrong[0]["status"] == 401
    assert b"<script>" not in wrong[1]["body"]
    assert header(wrong, "set-cookie") == ""
    foreign = ask(
        guard, OURS | {"origin": "http://evil.example"}, path="/login", method="POST", body=b"password=correct+horse"
    )
    assert foreign[0]["status"] == 403
    right = ask(guard, OURS, path="/login", method="POST", body=b"password=correct+horse")
    cookie = header(right, "set-cookie")
    assert right[0]["status"] == 303
    assert "HttpOnly; SameSite=Strict" in cookie
    known = OURS | {"cookie": cookie.partition(";")[0]}
    assert ask(guard, known)[1]["body"] == b"inside"
    assert ask(guard, known, kind="websocket")[0]["type"] == "websocket.accept"
    assert ask(guard, OURS | {"cookie": f"{COOKIE}=guess"})[0]["status"] == 401
    ask(guard, known, path="/logout", method="POST")
    assert ask(guard, known)[0]["status"] == 401


def test_a_form_of_any_size_is_no_reason_to_fail() -> None:
    guard = Guard(app, password=HASH)
    guarding_pause, guarding.WRONG_PAUSE_S = guarding.WRONG_PAUSE_S, 0.0
    try:
        assert ask(guard, OURS, path="/login", method="POST", body=b"password=" + b"x" * 100_000)[0]["status"] == 401
        assert ask(guard, OURS, path="/login", method="POST", body=b"\xff=&&&")[0]["status"] == 401
    finally:
        guarding.WRONG_PAUSE_S = guarding_pause
