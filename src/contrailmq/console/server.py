"""The console's process: model, pages and guard on one event loop behind one port.

NiceGUI keeps one application per process, so there is one console per process. It is given no storage secret, so it
sets no cookies and writes no files; what a browser remembers (light or dark) stays in the browser.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from contrailmq.console import light_imports  # noqa: F401  first: it says what the next ones leave out

# isort: split
import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from nicegui import app, ui

from contrailmq.console.exporting import file_name, has_parquet, json_lines, parquet
from contrailmq.console.guard import Guard
from contrailmq.console.model.console_model import ConsoleModel
from contrailmq.console.model.pipeline import ReadArchives
from contrailmq.console.pages.cluster import ClusterPage
from contrailmq.console.pages.frame import frame
from contrailmq.console.pages.groups import GroupPage, GroupsPage
from contrailmq.console.pages.letters import LetterGroupsPage, LettersPage
from contrailmq.console.pages.messages import MessagePage, MessagesPage
from contrailmq.console.pages.overview import OverviewPage
from contrailmq.console.pages.pending import PendingPage
from contrailmq.console.pages.pipeline import PipelinePage
from contrailmq.console.pages.topics import TopicPage, TopicsPage
from contrailmq.console.passwords import PasswordHash
from contrailmq.message import ContrailError, MessageQueue

ANSWER_S: Final = 30.0  # a page of a cluster that hangs says so after three seconds, and some after each other
FIRST_SAMPLE_S: Final = 0.5  # the first page waits so long for the first figures


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    namesrv: str
    host: str = "127.0.0.1"
    port: int = 8080
    is_read_only: bool = False
    password: PasswordHash | None = None
    names: tuple[str, ...] = ()  # by which browsers may call it, besides numbers and localhost
    client: dict[str, Any] = field(default_factory=dict)  # TLS and credentials
    read_archives: ReadArchives | None = None
    schemas: Path | None = None  # a directory of them


class ConsoleServer:
    """Bind, serve, stop. `address` is known once it is made; making it raises OSError when the port is taken."""

    def __init__(self, options: ConsoleOptions) -> None:
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it tells of every connection
        self._options = options
        self._socket = bound_socket(options.host, options.port)
        self.port: int = self._socket.getsockname()[1]
        self.model = ConsoleModel(
            options.namesrv,
            is_read_only=options.is_read_only,
            read_archives=options.read_archives,
            schemas=options.schemas,
            **options.client,
        )
        application = FastAPI(lifespan=self._life, docs_url=None, redoc_url=None, openapi_url=None)
        application.add_api_route("/export/letters", export_of(self.model), response_model=None)
        register_pages(self.model, has_login=options.password is not None)
        app.add_exception_handler(RequestValidationError, _unreadable)
        ui.run_with(
            application,
            title="ContrailMQ",
            dark=None,
            language="en-US",
            binding_refresh_interval=None,
            reconnect_timeout=10.0,
            tailwind=False,
            show_welcome_message=False,
        )
        guard = Guard(application, names=options.names, password=options.password)
        self._server = _Server(
            uvicorn.Config(
                guard,
                log_config=None,
                access_log=False,
                lifespan="on",
                loop="none",
                timeout_graceful_shutdown=1,
                server_header=False,
            )
        )

    @property
    def url(self) -> str:
        host = f"[{self._options.host}]" if ":" in self._options.host else self._options.host
        return f"http://{host}:{self.port}"

    async def serve(self, stopped: asyncio.Event, *, on_ready: Any) -> None:
        """Until `stopped`. `on_ready()` is called once it accepts."""
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
        waiting = asyncio.ensure_future(stopped.wait())
        while not self._server.started and not serving.done():  # noqa: ASYNC110  uvicorn has no event for it
            await asyncio.sleep(0.01)
        if not serving.done():
            on_ready()
        await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        self._server.should_exit = True
        await serving

    @contextlib.asynccontextmanager
    async def _life(self, _: FastAPI) -> AsyncIterator[None]:
        await self.model.start()
        yield
        await self.model.stop()


class _Server(uvicorn.Server):  # type: ignore[misc]
    """Leaves signals to the command, which has its own way to end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bound_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(128)
    except OSError:
        made.close()
        raise
    return made


def register_pages(model: ConsoleModel, *, has_login: bool) -> None:
    """Every page is made anew for each browser: header and menu, then what it shows."""

    def framed(title: str, path: str) -> Any:
        return frame(model, title, path, has_login=has_login)

    async def overview() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(model.sampler.first.wait(), FIRST_SAMPLE_S)
        with framed("Overview", "/"):
            OverviewPage(model)

    async def topics() -> None:
        with framed("Topics", "/topics"):
            await TopicsPage(model).build()

    async def topic(name: str = "") -> None:
        with framed(f"Topic {name}", "/topics"):
            await TopicPage(model, name).build()

    async def groups() -> None:
        with framed("Groups", "/groups"):
            await GroupsPage(model).build()

    async def group(name: str = "") -> None:
        with framed(f"Group {name}", "/groups"):
            await GroupPage(model, name).build()

    async def messages(topic: str = "") -> None:
        with framed("Messages", "/messages"):
            await MessagesPage(model).build(topic)

    async def message(topic: str = "", broker: str = "", queue: int = 0, offset: int = 0) -> None:
        with framed("Message", "/messages"):
            await MessagePage(model, MessageQueue(topic, broker, queue), offset).build()

    async def letters(group: str = "") -> None:
        with framed(f"Dead letters of {group}" if group else "Dead letters", "/letters"):
            if group:
                await LettersPage(model, group, has_parquet=has_parquet()).build()
            else:
                await LetterGroupsPage(model).build()

    async def pending() -> None:
        with framed("Timers and transactions", "/pending"):
            await PendingPage(model).build()

    async def cluster() -> None:
        with framed("Cluster", "/cluster"):
            await ClusterPage(model).build()

    async def pipeline() -> None:
        with framed("Pipeline", "/pipeline"):
            await PipelinePage(model).build()

    shows = {"/": overview, "/topics": topics, "/topic": topic, "/groups": groups, "/group": group}
    shows |= {"/messages": messages, "/message": message, "/letters": letters}
    shows |= {"/pending": pending, "/cluster": cluster, "/pipeline": pipeline}
    for path, show in shows.items():
        ui.page(path, response_timeout=ANSWER_S)(show)


async def _unreadable(_: object, exc: Exception) -> Response:
    """A page's address that somebody wrote by hand. Its numbers are all that can be wrong."""
    assert isinstance(exc, RequestValidationError)
    faults = [f"{fault['loc'][-1]}: {fault.get('input')!r} is not a whole number" for fault in exc.errors()]
    return Response("\n".join(faults), 400, media_type="text/plain")


def export_of(model: ConsoleModel) -> Any:
    """Answers GET /export/letters?group=G&form=jsonl|parquet."""

    async def export(group: str, form: str = "jsonl") -> Any:
        if form not in ("jsonl", "parquet") or (form == "parquet" and not has_parquet()):
            return Response(f"there is no form {form!r}: jsonl, or parquet where pyarrow is installed", 400)
        chunks = (json_lines if form == "jsonl" else parquet)(model.letters, group)
        try:
            first = await anext(chunks, b"")
        except ContrailError as exc:  # after the first part an error can only end the download
            return Response(str(exc), 503, media_type="text/plain")

        async def whole() -> AsyncIterator[bytes]:
            yield first
            async for chunk in chunks:
                yield chunk

        head = {"content-disposition": f'attachment; filename="{file_name(group, form)}"'}
        return StreamingResponse(whole(), media_type="application/octet-stream", headers=head)

    return export
