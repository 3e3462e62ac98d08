"""A dashboard that a test has opened, and its answers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from maggy_like.dashboard.server import Server


@dataclass
class Served:
    """A dashboard of this process."""

    server: Server

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of an answer."""
        address = f"http://127.0.0.1:{self.server.port}/{path}"
        request = urllib.request.Request(address, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()

    def json(self, path: str) -> Any:
        """Return what an address has, which must be found."""
        status, _, body = self.get(path)
        assert status == 200, body
        return json.loads(body)
