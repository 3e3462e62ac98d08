"""The dashboard's server: pages and JSON by HTTP, from the standard library. It answers GET and writes nothing."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hmac
import ipaddress
import logging
import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from functools import cached_property, partial
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from maggy_like.argument_checks import whole
from maggy_like.dashboard import views
from maggy_like.dashboard.catalog import Catalog
from maggy_like.dashboard.followed_run import Answer, FollowedRun, NotFoundError, pack
from maggy_like.display.dashboard_link import Dashboard
from maggy_like.errors import MaggyError, UserError
from maggy_like.results.files import TrialFiles
from maggy_like.results.report import library, templates
from maggy_like.storage.file_systems import open_url
from maggy_like.version import __version__

_log = logging.getLogger(__name__)

LOCAL = "127.0.0.1"

PORT = 8240
"""The port that the command takes if it is free."""

_MOST_PORT = 65535

CLOSE_POLL = 0.05
"""Seconds between two checks whether a dashboard is to be closed."""

_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
    "/dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
}
"""Files of the page, by path."""

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"

_SHOWN = dict.fromkeys((".txt", ".log", ".csv", ".json", ".md", ".yaml", ".yml"), _TEXT) | {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
"""Types of the files that a browser shows. None of them can contain a script."""

_BLOCK = 1 << 18
"""Bytes of a file that are read at once."""

_HEADERS = {
    # plotly compiles functions for its WebGL plots, and adds rules of its own to the page's style.
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""Of every answer. The page can load and send nothing from or to anywhere else."""

_FORBIDDEN = "403: this dashboard needs its token; open the whole link that `maggy-like dashboard` has printed\n"
_FOREIGN = "403: this dashboard answers only to this machine's own address; use --host for others, with a token\n"

_OF_RUN: dict[str, tuple[Callable[..., Any], bool]] = {
    "": (views.summary, False),
    "details": (views.details, True),
    "decisions": (views.decisions, True),
    "log": (views.newest_lines, False),
}
"""What there is of a run without a query: how it is made, and whether it depends only on the journal."""


class Server(ThreadingHTTPServer):
    """Serves the dashboard of one directory or run.

    Args:
        where: Path or URL of a directory of runs, or of a run.
        host: Address to bind to. Any other than this machine's own needs a token, which is made here.
        port: Port. 0 for any free one.
    """

    daemon_threads = True

    def __init__(self, where: str, host: str, port: int) -> None:
        self.catalog = Catalog(where)
        self.token = "" if _is_local(host) else secrets.token_urlsafe(24)
        self.host = host
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    @property
    def port(self) -> int:
        """The port that it is bound to."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """The link to its page, with the token if it needs one."""
        name = socket.gethostname() if self.host in ("", "0.0.0.0", "::") else self.host
        name = f"[{name}]" if ":" in name else name
        return f"http://{name}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    @cached_property
    def plotly(self) -> Answer:
        """The library that draws plots."""
        return pack(library())

    @cached_property
    def templates(self) -> Answer:
        """The layouts of light and dark plots."""
        return pack(templates())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of a connection, which may simply have been closed."""
        _log.debug("a connection of the dashboard failed", exc_info=True)

    def server_bind(self) -> None:
        """Bind without asking a name server for the name of the host, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.host, self.port


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"
    server_version = f"maggy_like/{__version__}"
    timeout = 60  # seconds that an idle connection is kept
    server: Server

    def do_GET(self) -> None:
        try:
            self._route()
        except NotFoundError as error:
            self._fail(HTTPStatus.NOT_FOUND, error)
        except UserError as error:
            self._fail(HTTPStatus.BAD_REQUEST, error)
        except MaggyError as error:
            self._fail(HTTPStatus.BAD_GATEWAY, error)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        except Exception as error:
            _log.exception("the dashboard cannot answer %s", urlsplit(self.path).path)
            self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, error)

    do_HEAD = do_GET

    def _route(self) -> None:
        address = urlsplit(self.path)
        query = dict(parse_qsl(address.query, keep_blank_values=True))
        if (refusal := self._refusal(query)) is not None:
            self._send(pack(refusal), _TEXT, HTTPStatus.FORBIDDEN)
            return
        if self.server.token and address.path == "/" and "token" in query:
            del query["token"]
            self._keep_token(query)
            return
        parts = [unquote(part) for part in address.path.split("/")[1:]]
        if address.path in _PAGE:
            name, kind = _PAGE[address.path]
            self._send(pack((files("maggy_like.dashboard") / "page" / name).read_bytes()), kind)
        elif address.path == "/plotly.js":
            self._send(self.server.plotly, "text/javascript; charset=utf-8")
        elif parts[:1] != ["api"]:
            raise NotFoundError(f"there is no page {address.path!r}")
        elif parts[1:] == ["templates"]:
            self._send(self.server.templates, _JSON)
        elif parts[1:] == ["runs"]:
            self._send(self.server.catalog.listed(), _JSON)
        elif len(parts) > 2 and parts[1] == "runs":
            self._send_part(parts[2], parts[3:], query)
        else:
            raise NotFoundError(f"there is no {address.path!r}; see the docs for the addresses")

    def _send_part(self, name: str, place: list[str], query: views.Query) -> None:
        """Answer a request about a run: ``place`` is the rest of its path."""
        run = self.server.catalog.run(name)
        key = f"{'/'.join(place)}?{urlencode(sorted(query.items()))}"
        match place:
            case [] | ["details" | "decisions" | "log"]:
                make, is_of_run = _OF_RUN[place[0] if place else ""]
                self._send(run.answer(place[0] if place else "", make, is_of_run=is_of_run), _JSON)
            case ["curve"]:
                self._send(pack(self.server.catalog.curve(name)), _JSON)
            case ["trials"]:
                self._send(run.answer(key, lambda it: views.trials(it, query)), _JSON)
            case ["figures", figure]:
                make = partial(_figure, name=figure, query=query)
                self._send(run.answer(key, make, rests_long=True), _JSON)
            case ["trials", number]:
                make = partial(_page_of, number=number)
                self._send(run.answer(key, make, is_of_run=False), _JSON)
            case ["trials", number, "curves"]:
                self._send(run.answer(key, lambda it: views.curves(views.find_trial(it, number))), _JSON)
            case ["trials", number, "log"]:
                make = partial(_log_of, number=number, query=query)
                self._send(run.answer(key, make, is_of_run=False), _TEXT)
            case ["trials", number, "files"]:
                make = partial(_files_of, number=number)
                self._send(run.answer(key, make, is_of_run=False), _JSON)
            case ["trials", number, "files", *path]:
                with run.lock:
                    run.look()
                    kept = views.kept_files(run, views.find_trial(run, number))
                self._send_file(kept, "/".join(path))
            case _:
                raise NotFoundError(f"there is no {'/'.join(place)!r} of a run; see the docs for the addresses")

    def _refusal(self, query: dict[str, str]) -> str | None:
        """Return why this request is not answered. None if it is."""
        if not self.server.token:  # another page's name that leads here would let that page read everything
            name = ""
            with contextlib.suppress(ValueError):  # it is none
                name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
            return None if _is_local(name) or name == self.server.host else _FOREIGN
        cookies = SimpleCookie()
        with contextlib.suppress(CookieError):
            cookies.load(self.headers.get("Cookie", ""))
        cookie = cookies.get(self._cookie)
        given = (
            query.get("token", ""),
            cookie.value if cookie is not None else "",
            self.headers.get("Authorization", "").removeprefix("Bearer "),
        )
        is_known = [hmac.compare_digest(each.encode(), self.server.token.encode()) for each in given]
        return None if any(is_known) else _FORBIDDEN

    @property
    def _cookie(self) -> str:
        return f"maggy_like_{self.server.port}"  # browsers share cookies between the ports of a host

    def _keep_token(self, query: dict[str, str]) -> None:
        """Keep the token in a cookie, so that it is not in the address, which people copy and servers log."""
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", f"./?{urlencode(query)}" if query else "./")
        self.send_header("Set-Cookie", f"{self._cookie}={self.server.token}; HttpOnly; SameSite=Strict; Path=/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, answer: Answer, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        is_known = status is HTTPStatus.OK and self.headers.get("If-None-Match") == answer.tag
        self.send_response(HTTPStatus.NOT_MODIFIED if is_known else status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("ETag", answer.tag)
        if is_known:
            self.end_headers()
            return
        body = answer.body
        if answer.is_compressed and "gzip" in self.headers.get("Accept-Encoding", ""):
            self.send_header("Content-Encoding", "gzip")
        elif answer.is_compressed:
            body = gzip.decompress(body)
        self.send_header("Vary", "Accept-Encoding")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_file(self, kept: TrialFiles, name: str) -> None:
        """Send a trial's file: pictures and text are shown, anything else is saved by the browser."""
        try:
            url = kept[name]
        except KeyError as error:
            raise NotFoundError(error.args[0]) from error
        views.check_place(os.path.dirname(url.removesuffix(f"/{name}")), url)
        fs, path = open_url(url)
        suffix = os.path.splitext(name)[1].lower()
        with fs.open(path, "rb") as file:
            self.send_response(HTTPStatus.OK)
            for header, value in _HEADERS.items():
                self.send_header(header, value)
            self.send_header("Content-Type", _SHOWN.get(suffix, "application/octet-stream"))
            if suffix not in _SHOWN:
                saved_as = quote(os.path.basename(name), safe="")
                self.send_header("Content-Disposition", f"attachment; filename*=UTF-8''{saved_as}")
            self.send_header("Content-Length", str(kept.size(name)))
            self.end_headers()
            if self.command == "HEAD":
                return
            left = kept.size(name)
            while left and (block := file.read(min(left, _BLOCK))):
                self.wfile.write(block)
                left -= len(block)
            self.close_connection |= left > 0  # the file was replaced by a shorter one

    def _fail(self, status: HTTPStatus, error: Exception) -> None:
        with contextlib.suppress(OSError):
            self._send(pack({"error": str(error) or type(error).__name__}), _JSON, status)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)


def _figure(run: FollowedRun, name: str, query: views.Query) -> dict[str, Any]:
    return views.figure(run, name, query)


def _page_of(run: FollowedRun, number: str) -> dict[str, Any]:
    return views.trial_page(run, views.find_trial(run, number))


def _log_of(run: FollowedRun, number: str, query: views.Query) -> str:
    return views.log(run, views.find_trial(run, number), query)


def _files_of(run: FollowedRun, number: str) -> dict[str, Any]:
    return views.files(run, views.find_trial(run, number))


def _is_local(host: str) -> bool:
    """Return whether a host's name or address is that of this machine for itself."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def make_server(where: str, host: str = LOCAL, port: int = 0) -> Server:
    """Return a server that is bound to its port."""
    whole("port", port, least=0, most=_MOST_PORT)
    try:
        return Server(where, host, port)
    except (OSError, UnicodeError) as error:
        if isinstance(error, socket.gaierror | UnicodeError) or error.errno == errno.EADDRNOTAVAIL:
            raise UserError(
                f"the dashboard cannot use the host {host!r} ({error}); use a name or address of this machine"
            ) from error
        raise UserError(
            f"the dashboard cannot use port {port} of {host} ({error}); use another port, or 0 for any free one"
        ) from error


def serve(where: str, host: str, port: int | None, *, opens_browser: bool) -> None:
    """See :func:`maggy_like.dashboard.serve`."""
    try:
        server = make_server(where, host, PORT if port is None else port)
    except UserError:
        if port is not None:
            raise
        server = make_server(where, host)
    try:
        print(f"the dashboard of {server.catalog.where} is at {server.url}", flush=True)
        if server.token:
            print("anyone with this link can read these runs; Ctrl-C ends the dashboard", flush=True)
        if opens_browser and _has_screen():
            threading.Thread(target=webbrowser.open, args=[server.url], daemon=True).start()
        server.serve_forever()
    finally:
        server.server_close()


def _has_screen() -> bool:
    """Return whether a browser would open in a window here, not in this terminal or on another machine's screen."""
    if "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_dashboard(where: str, port: int = 0) -> Dashboard:
    """See :func:`maggy_like.dashboard.open_dashboard`."""
    server = make_server(where, port=port)
    thread = threading.Thread(target=server.serve_forever, args=[CLOSE_POLL], name="maggy-dashboard", daemon=True)
    thread.start()

    def close() -> None:
        if thread.is_alive():
            server.shutdown()
            thread.join()
        server.server_close()

    return Dashboard(server.url, close)
