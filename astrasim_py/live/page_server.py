"""A small HTTP server on this machine alone: the page of a point, and runs of its changes.

Only a client with the random token of its address may use it, so other users of the machine and other web pages in the
same browser may not. It reads no file for a request. It holds at most `_CONNECTIONS` connections, each for `_SECONDS`
until its request is read.
"""

import contextlib
import hmac
import io
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any

from astrasim_py.core.errors import AstraError, UsageError

HOST = "127.0.0.1"
#: Bytes of a change.
MOST_BYTES = 64 * 1024
_CONNECTIONS = 32
_SECONDS = 5.0
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

#: From a change to its answer, both plain values.
Answer = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class PageServer(ThreadingMixIn, HTTPServer):
    """Serves one page, and answers to changes. Set `page` before `serve_forever`. Raises UsageError: a port that
    cannot be used; 0 is any free one.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, answer: Answer) -> None:
        self.page, self.answer = b"", answer
        self.path = f"/{secrets.token_urlsafe(24)}/"
        self._places = threading.BoundedSemaphore(_CONNECTIONS)
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or "is no port"
            remedy = "name another one, or leave it out"
            raise UsageError(f"--port {port}", f"cannot be used: {reason}", remedy) from None
        self.hosts = tuple(f"{name}:{self.server_port}" for name in (HOST, "localhost"))

    def server_bind(self) -> None:
        """Bind without asking the name service for a name of this machine."""
        if os.name == "posix":  # elsewhere it would let two programs have one port
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        host, port = self.socket.getsockname()
        self.server_address, self.server_name, self.server_port = (host, port), host, port

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}{self.path}"

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        """Give a connection a thread if there is place for it."""
        if self._places.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except RuntimeError:  # no thread can be started
                self._places.release()
                raise
            return
        connection = request if isinstance(request, socket.socket) else request[1]
        with contextlib.suppress(OSError):
            connection.setblocking(False)
            connection.send(_BUSY)
            connection.recv(2**16)  # see `_Handler._take_rest`
        self.shutdown_request(request)

    def process_request_thread(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news."""


class _Until(io.RawIOBase):
    """What a socket receives until a moment; later reads raise TimeoutError, however slowly it trickles."""

    def __init__(self, source: socket.socket, moment: float) -> None:
        self._source, self._moment = source, moment

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        seconds = self._moment - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        self._source.settimeout(seconds)
        return self._source.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Until(self.connection, time.monotonic() + _SECONDS))

    def do_GET(self) -> None:
        if self.path == "/favicon.ico" and self._is_ours():
            self._send(204, "")
        elif self._may_use(self.server.path):
            self._send(200, self.server.page, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        if not self._may_use(f"{self.server.path}run"):
            return
        length = self.headers.get("Content-Length", "")
        if self.headers.get_content_type() != "application/json":
            self._send(415, "a change is application/json")
        elif "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdecimal()):
            self._send(411, "say the Content-Length")
        elif len(length) > 9 or int(length) > MOST_BYTES:
            self._send(413, f"a change has {MOST_BYTES:,} bytes at most")
        else:
            self._answer(self.rfile.read(int(length)), int(length))

    def _answer(self, body: bytes, length: int) -> None:
        if len(body) < length:
            return
        try:
            change = json.loads(body)
        except (ValueError, RecursionError):
            change = None
        if not isinstance(change, dict):
            self._send(400, "a change is a JSON object")
            return
        try:
            answer = self.server.answer(change)
        except AstraError as error:
            answer = {"error": error.lines()[0]}
        except RecursionError:
            answer = {"error": "the change is nested too deeply"}
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            answer = {"error": f"this is a defect of astrasim_py, please report it: {text}"[:2000]}
        self._send(200, json.dumps(answer), "application/json")

    def _is_ours(self) -> bool:
        """Whether the request comes from a page of this server, or from none at all, and knows where it is."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if host not in self.server.hosts:
            self._send(403, "wrong Host")
        elif origin is None and self.command == "POST":
            self._send(403, "no Origin")
        elif origin is not None and origin != f"http://{host}":
            self._send(403, "wrong Origin")
        else:
            return True
        return False

    def _may_use(self, path: str) -> bool:
        if not self._is_ours():
            return False
        if not hmac.compare_digest(self.path.encode(), path.encode()):
            self._send(403, "wrong address: open the one that the program printed")
            return False
        return True

    def _send(self, code: int, body: str | bytes, kind: str = "text/plain; charset=utf-8") -> None:
        data = body.encode() if isinstance(body, str) else body
        self.connection.settimeout(_SECONDS)
        self.send_response(code)
        for name, value in (_HEADERS | {"Content-Type": kind, "Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True
        if code >= 400:
            self._take_rest()

    def _take_rest(self) -> None:
        """What is left unread when a connection is closed would take back the answer: take a little of it."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(0.2)
            self.connection.recv(MOST_BYTES)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer to what is no request that we know, in one line."""
        self._send(code, message or "no")

    def version_string(self) -> str:
        return "astrasim_py"

    def log_message(self, format: str, *args: Any) -> None:
        """Be quiet: the page shows what a person should know."""
