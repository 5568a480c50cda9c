"""The server of the page: on this machine's own address only, and only what the named runs have (E7)."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from io import BufferedReader
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from flowrl.errors import ConfigError
from flowrl.storage.files import opened
from flowrl.tools.ui.run_view import RunList, RunView

#: The address that it listens on, and the names by which a browser may ask for it: a page of somebody else's, whose
#: name was made to lead here (DNS rebinding), asks by another one.
ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost")
#: Seconds for a browser to send its request.
PATIENCE = 30.0
#: Most runs whose curves are drawn at a time.
MOST_CURVES = 50

#: The page's own files.
PAGE = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
#: What the page may do: nothing from elsewhere, no script but its own.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; media-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def serve(paths: Sequence[Path], port: int, said: Callable[[str], None]) -> None:
    """Serve the page on the runs in `paths` until Ctrl-C; `said` is told its address.

    Raises: ConfigError: no such run, or the port cannot be had.
    """
    with Server(paths, port) as server:
        said(f"http://{ADDRESS}:{server.server_port}/ shows {len(server.runs.views)} runs; Ctrl-C ends it")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


class Server(ThreadingHTTPServer):
    """Serves the page, and what it asks for. Port 0 is any that is free.

    Raises: ConfigError: no such run, or the port cannot be had.
    """

    daemon_threads = False
    allow_reuse_address = os.name == "posix"  # elsewhere two could have one port

    def __init__(self, paths: Sequence[Path], port: int) -> None:
        self.runs = RunList(paths)
        self.lock = threading.Lock()
        try:
            super().__init__((ADDRESS, port), Handler)
        except OSError as error:
            way_out = "give another one by --port, or --port 0 for any that is free"
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({error.strerror})"
            raise ConfigError(f"port {port} {why}: {way_out}") from error


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    timeout = PATIENCE
    server_version = "flowrl"
    sys_version = ""

    def do_GET(self) -> None:
        try:
            host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
            url = urlsplit(self.path)
            asked = parse_qs(url.query)
        except ValueError:
            self._say(HTTPStatus.BAD_REQUEST, "there is no such address")
            return
        if host not in NAMES:
            self._say(HTTPStatus.FORBIDDEN, f"this page is asked for by another name than {' or '.join(NAMES)}")
            return
        try:
            if url.path in PAGE:
                name, kind = PAGE[url.path]
                self._send((files("flowrl.tools.ui") / name).read_bytes(), f"{kind}; charset=utf-8")
            elif url.path in self.ANSWERS:
                self.ANSWERS[url.path](self, asked)
            else:
                self._say(HTTPStatus.NOT_FOUND, "there is nothing here")
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True  # the browser has left
        except (KeyError, OSError):
            self._say(HTTPStatus.NOT_FOUND, "there is no such run, or it has no such thing")
        except Exception as error:  # what a stranger's file makes its reader stumble over
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, f"it cannot be shown: {type(error).__name__}")

    do_HEAD = do_GET

    # -- what the page asks for

    def _runs(self, _: dict[str, list[str]]) -> None:
        with self.server.lock:
            views = self.server.runs.current()
            lines = [view.list_line() for view in views.values()]
            keys = sorted({key for view in views.values() for key in view.results.columns})
        self._send_json({"runs": lines, "keys": keys})

    def _curves(self, asked: dict[str, list[str]]) -> None:
        with self.server.lock:
            views = self.server.runs.current()
            chosen = {name: views[name] for name in asked.get("run", ())[:MOST_CURVES] if name in views}
            x, ys = asked["x"][0], asked["y"]
            curves = [{name: view.curve(x, y) for name, view in chosen.items()} for y in ys]
        self._send_json({"x": x, "y": ys, "curves": curves})

    def _run(self, asked: dict[str, list[str]]) -> None:
        with self.server.lock:
            details = self._view(asked).details()
        self._send_json(details)

    def _plan(self, asked: dict[str, list[str]]) -> None:
        # As text: the page takes from it what a drawn plan has, and nothing else.
        self._send(self._view(asked).picture(), "text/plain; charset=utf-8")

    def _film(self, asked: dict[str, list[str]]) -> None:
        with opened(self._view(asked).films()[asked["film"][0]]) as file:
            size = os.fstat(file.fileno()).st_size
            start, end = _part(self.headers.get("Range", ""), size) or (0, size)
            partial = (start, end) != (0, size)
            self.send_response(HTTPStatus.PARTIAL_CONTENT if partial else HTTPStatus.OK)
            if partial:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.send_header("Accept-Ranges", "bytes")
            self._head("video/mp4", end - start)
            if self.command != "HEAD":
                file.seek(start)
                for chunk in _chunks(file, end - start):
                    self.wfile.write(chunk)

    ANSWERS: ClassVar[dict[str, Callable[[Any, dict[str, list[str]]], None]]] = {
        "/runs": _runs,
        "/curves": _curves,
        "/run": _run,
        "/plan": _plan,
        "/film": _film,
    }

    def _view(self, asked: dict[str, list[str]]) -> RunView:
        """The run that is asked for. Raises: KeyError."""
        return self.server.runs.current()[asked["run"][0]]

    # -- answers

    def _send_json(self, values: Any) -> None:
        self._send(json.dumps(values, allow_nan=False).encode(), "application/json")

    def _send(self, body: bytes, kind: str) -> None:
        """Send a body, unless the browser has it already."""
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if self.headers.get("If-None-Match") == tag:
            self.send_response(HTTPStatus.NOT_MODIFIED)
            self.send_header("ETag", tag)
            self.end_headers()
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("ETag", tag)
        self._head(kind, len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _say(self, status: HTTPStatus, words: str) -> None:
        """Send why there is no answer."""
        body = words.encode()
        self.send_response(status)
        self._head("text/plain; charset=utf-8", len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, kind: str, length: int) -> None:
        for name, value in {"Content-Type": kind, "Content-Length": str(length), **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing: the page asks every few seconds."""


def _chunks(file: BufferedReader, count: int) -> Iterator[bytes]:
    """The next bytes of a file, so many."""
    while chunk := file.read(min(count, 2**16)):
        yield chunk
        count -= len(chunk)


def _part(asked: str, size: int) -> tuple[int, int] | None:
    """The bytes that a Range asks for, from and up to; None: the whole.

    >>> _part("bytes=2-5", 10), _part("bytes=7-", 10), _part("bytes=-3", 10), _part("bytes=20-", 10)
    ((2, 6), (7, 10), (7, 10), None)
    """
    found = re.fullmatch(r"bytes=([0-9]{0,18})-([0-9]{0,18})", asked)
    if found is None or found[0] == "bytes=-":
        return None
    first, last = found[1], found[2]
    start, end = (int(first), int(last or size - 1) + 1) if first else (size - int(last), size)
    start, end = max(0, start), min(end, size)
    return (start, end) if start < end else None
