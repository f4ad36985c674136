"""A schema registry of the tests' own: the part of Confluent's protocol that writers and readers of
messages use, over HTTP, in this process."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USER, PASSWORD = "reader", "hush-hush"


class Registry:
    """Keeps schemas by number; asks for user and password, unless it is open to all."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.asked: list[int] = []
        """Every number that was asked for."""
        self.failures = 0
        """Number of requests that are answered with 500 first."""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                given = self.headers.get("Authorization", "")
                wanted = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
                number = int(self.path.removeprefix("/schemas/ids/"))
                registry.asked.append(number)
                if not is_open and given != f"Basic {wanted}":
                    self._answer(401, {"error_code": 401})
                elif registry.failures > 0:
                    registry.failures -= 1
                    self._answer(500, {"error_code": 50001})
                elif number not in registry.schemas:
                    self._answer(404, {"error_code": 40403})
                else:
                    self._answer(200, registry.schemas[number])

            def _answer(self, status: int, content: dict[str, Any]) -> None:
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def url(self, password: str = PASSWORD) -> str:
        return f"http://{USER}:{password}@{self.place}"

    def register(self, schema: dict[str, Any]) -> int:
        number = len(self.schemas) + 1
        self.schemas[number] = {"schema": json.dumps(schema)}
        return number

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
