"""A schema registry for tests: Confluent's endpoints over HTTP, with what is registered kept in a file.

A real one is in tests/interop/test_schema_registry.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from urllib.request import Request, urlopen


@contextmanager
def file_registry(path: Path, port: int = 0) -> Iterator[str]:
    """Serve a registry; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            words = [unquote(word) for word in self.path.strip("/").split("/")]
            held = _load(path)
            self.server.asked.append(self.path)  # type: ignore[attr-defined]
            if words[:2] == ["schemas", "ids"]:
                self._answer(next((row["answer"] for row in held if row["id"] == int(words[2])), None), 40403)
            else:
                rows = [row for row in held if row["subject"] == words[1]]
                number = len(rows) if words[3] == "latest" else int(words[3])
                found = rows[number - 1] if 0 < number <= len(rows) else None
                answer = found and {**found["answer"], "id": found["id"], "version": number, "subject": words[1]}
                self._answer(answer, 40401)

        def do_POST(self) -> None:
            subject = unquote(self.path.strip("/").split("/")[1])
            given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            held = _load(path)
            held.append({"id": len(held) + 1, "subject": subject, "answer": given})
            path.write_text(json.dumps(held))
            self._answer({"id": len(held)}, 0)

        def _answer(self, found: Any, error_code: int) -> None:
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.end_headers()
            self.wfile.write(json.dumps(found or {"error_code": error_code, "message": "not found"}).encode())

        def log_message(self, *_: object) -> None:
            """Nobody wants to know."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _load(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return found


def register(address: str, subject: str, schema: str, kind: str = "AVRO", references: Any = ()) -> int:
    """Register a schema as a producer does; gives its id."""
    given = {"schema": schema, **({} if kind == "AVRO" else {"schemaType": kind}), "references": list(references)}
    place, kinds = f"{address}/subjects/{subject}/versions", {"Content-Type": "application/json"}
    request = Request(place, json.dumps(given).encode(), kinds, method="POST")
    with urlopen(request) as answer:
        return int(json.loads(answer.read())["id"])


def framed(schema_id: int, payload: bytes) -> bytes:
    """A body as Confluent's serializers write it."""
    return b"\0" + schema_id.to_bytes(4, "big") + payload
