"""Who may ask the console at all: an ASGI layer before every page, file and websocket.

Three things are refused here, before any other code sees the request:
- A foreign name in `Host`. A page on the internet can let its own name point to 127.0.0.1 (DNS rebinding) and then
  read answers as its own. A number cannot be made to point elsewhere, so numbers and `localhost` pass, and names only
  if they were given at the start.
- A foreign `Origin`, or a request that the browser marks as cross-site: another page must not act through the browser
  of somebody who may. Links from elsewhere to a page are fine: looking changes nothing.
- With a password, everybody without a session. A session is a random cookie, kept in memory: a restart ends it.

Every answer carries headers that keep the console out of frames and its pages from loading anything from elsewhere.
"""

from __future__ import annotations

import asyncio
import html
import ipaddress
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from contrailmq.console.passwords import PasswordHash

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE: Final = "contrailmq_console"
SESSION_S: Final = 12 * 3600.0
SESSIONS_MAX: Final = 1000
FORM_BYTES_MAX: Final = 8192
WRONG_PAUSE_S: Final = 1.0  # after a wrong password; one password is checked at a time
LOGIN, LOGOUT = "/login", "/logout"
# NiceGUI compiles its templates in the browser, which is what 'unsafe-eval' allows. Nothing is loaded from elsewhere.
POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Guard:
    """Wraps the application. `names` are those, besides numbers and localhost, by which browsers may call it."""

    def __init__(self, app: App, *, names: Iterable[str] = (), password: PasswordHash | None = None) -> None:
        self.app = app
        self._names = {"localhost", *(name.lower().rstrip(".") for name in names)}
        self._password = password
        self._sessions: dict[str, float] = {}  # token -> when it ends
        self._checking = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self.refusal(headers, is_page=scope["type"] == "http" and scope.get("method") in ("GET", "HEAD"))
        if refusal:
            await _refuse(scope, send, 403, refusal)
        elif self._password is None:
            await self.app(scope, receive, _with_headers(send))
        elif scope["type"] == "http" and scope["path"] == LOGIN:
            await self._login(scope, receive, send, headers)
        elif scope["type"] == "http" and scope["path"] == LOGOUT and scope["method"] == "POST":
            self._sessions.pop(_token(headers), None)
            await _answer(send, 303, "", [(b"location", LOGIN.encode()), (b"set-cookie", _cookie("", 0, scope))])
        elif self._is_known(headers):
            await self.app(scope, receive, _with_headers(send))
        elif scope["type"] == "http" and scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
            await _answer(send, 303, "", [(b"location", LOGIN.encode())])
        else:
            await _refuse(scope, send, 401, "log in first")

    def refusal(self, headers: dict[str, str], *, is_page: bool) -> str:
        """Why this request is not answered; empty when it is."""
        host = headers.get("host", "")
        if not self._is_ours(host):
            return (
                f"this console is not called {host[:200]!r}: open it by its number or as localhost, or start it with "
                "--name for the name that browsers use"
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return "the request comes from another site"
        site = headers.get("sec-fetch-site", "none")
        is_link = (
            is_page and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        )
        if site not in ("same-origin", "none") and not is_link:
            return "the request comes from another site"
        return ""

    def _is_ours(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        try:
            ipaddress.ip_address(name)
            return True
        except ValueError:
            return name in self._names

    # --- sessions

    def _is_known(self, headers: dict[str, str]) -> bool:
        return self._sessions.get(_token(headers), 0.0) > time.monotonic()

    async def _login(self, scope: Scope, receive: Receive, send: Send, headers: dict[str, str]) -> None:
        if scope["method"] != "POST":
            await _answer(send, 200, _form(""), [])
            return
        form = parse_qs((await _body(receive)).decode("utf-8", "replace"), keep_blank_values=True)
        assert self._password is not None
        async with self._checking:
            given = form.get("password", [""])[0]
            is_right = await asyncio.to_thread(self._password.fits, given)
            if not is_right:
                await asyncio.sleep(WRONG_PAUSE_S)
        if not is_right:
            await _answer(send, 401, _form("That is not the password."), [])
            return
        cookie = _cookie(self._new_session(), int(SESSION_S), scope)
        await _answer(send, 303, "", [(b"location", b"/"), (b"set-cookie", cookie)])

    def _new_session(self) -> str:
        now_s = time.monotonic()
        self._sessions = {token: end_s for token, end_s in self._sessions.items() if end_s > now_s}
        while len(self._sessions) >= SESSIONS_MAX:
            self._sessions.pop(next(iter(self._sessions)))
        token = secrets.token_urlsafe(32)
        self._sessions[token] = now_s + SESSION_S
        return token


def _token(headers: dict[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _cookie(token: str, age_s: int, scope: Scope) -> bytes:
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    return f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age_s}{secure}".encode()


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        await send(message)

    return sending


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    while len(body) <= FORM_BYTES_MAX:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body"):
            return bytes(body)
    return b""  # nobody has such a password


async def _refuse(scope: Scope, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await _answer(send, status, f"<!doctype html><title>{status}</title><p>{html.escape(text)}</p>", [])


async def _answer(send: Send, status: int, page: str, headers: list[tuple[bytes, bytes]]) -> None:
    kind = [(b"content-type", b"text/html; charset=utf-8"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": [*kind, *HEADERS, *headers]})
    await send({"type": "http.response.body", "body": page.encode()})


def _form(fault: str) -> str:
    """The one page that is no NiceGUI: it must not open a websocket before somebody has logged in."""
    alert = f'<p role="alert">{html.escape(fault)}</p>' if fault else ""
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>ContrailMQ console: log in</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>:root{{color-scheme:light dark}}
body{{font:16px system-ui,sans-serif;display:grid;place-items:center;min-height:90vh}}
form{{display:grid;gap:.75rem;min-width:16rem}}input,button{{font:inherit;padding:.5rem}}</style></head>
<body><main><form method="post" action="{LOGIN}"><h1>ContrailMQ</h1>{alert}
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required autofocus>
<button type="submit">Log in</button></form></main></body></html>"""
