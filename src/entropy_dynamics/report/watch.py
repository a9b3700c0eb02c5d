"""`entropy-dynamics watch`: report.html over HTTP, on this machine only, rewritten while it is being viewed."""

import io
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.errors import UserError
from entropy_dynamics.report.page import write_report

HOST = "127.0.0.1"
EVERY_SECONDS = 20.0  # reload interval of the page; a request rewrites it if the last time is longer ago than this

Answer = Callable[[dict[str, str]], list[dict[str, Any]]]
"""From the query of `/answer`, with model, method, seed and problem, to responses as in `live.responses`."""


def open_server(results: Results, port: int, answer: Answer) -> ThreadingHTTPServer:
    """Create the server of results/<scale>; port 0 selects a free one.

    Raises UserError if there are no results, or the port is taken.
    """
    write_report(results)
    try:
        return ThreadingHTTPServer((HOST, port), partial(_Handler, results, answer, Lock()))
    except OSError as error:
        raise UserError(f"port {port} of {HOST} cannot be opened ({error}); choose another with --port") from None


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, results: Results, answer: Answer, lock: Lock, *connection: object):
        self.results, self.answer, self.lock = results, answer, lock
        super().__init__(*connection, directory=str(results.layout.root))

    def send_head(self) -> object:
        """Answer GET and HEAD, except for foreign host names that resolve to this machine (DNS rebinding)."""
        if self.headers.get("Host", "").partition(":")[0].lower() not in (HOST, "localhost"):
            self.send_error(403)
            return None
        if self.path in ("/", page := f"/{self.results.layout.report.name}"):
            self.path = page
            with self.lock:
                self._rewrite()
        elif self.command == "GET" and (url := urlsplit(self.path)).path == "/answer":
            with self.lock:
                return self._answered(dict(parse_qsl(url.query)))
        return super().send_head()

    def _answered(self, query: dict[str, str]) -> io.BytesIO:
        try:
            status, content = 200, self.answer(query)
        except UserError as error:
            status, content = 400, {"error": str(error)}
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return io.BytesIO(body)

    def _rewrite(self) -> None:
        report = self.results.layout.report
        if report.is_file() and time.time() - report.stat().st_mtime < EVERY_SECONDS:
            return
        try:  # with a new object, as Results caches the files it has read
            write_report(replace(self.results))
        except (UserError, OSError) as error:  # e.g. a rule is just replacing a file: keep the last page
            print(f"the page stays as it was: {error}", file=sys.stderr)

    def log_message(self, *_: object) -> None:
        """Do not log requests."""
