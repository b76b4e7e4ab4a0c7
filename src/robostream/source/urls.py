"""URLs taken apart, so that credentials in them go where they belong and never into a message."""

from __future__ import annotations

import base64
import re
import time
from calendar import timegm
from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote, unquote, urlsplit, urlunsplit


@dataclass(frozen=True)
class Url:
    """A root URL. clean: without userinfo, query and fragment, and without a slash at the end.

    query: kept for every request, since it may be a signature. user: "name:password", or "".
    """

    clean: str
    query: str = field(default="", repr=False)
    user: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str) -> Url:
        parts = urlsplit(text)
        user, _, host = parts.netloc.rpartition("@")
        return cls(urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", "")), parts.query, unquote(user))

    def join(self, path: str) -> str:
        """The URL to ask for a file."""
        return f"{self.clean}/{quote(path)}" + (f"?{self.query}" if self.query else "")

    @property
    def authorization(self) -> str | None:
        """The header that carries name and password."""
        return f"Basic {base64.b64encode(self.user.encode()).decode()}" if self.user else None


def without_secrets(url: str) -> str:
    """A URL for messages: no userinfo, no query, no fragment."""
    return Url.parse(url).clean


def origin(url: str) -> tuple[str, str]:
    """(scheme, host and port): credentials are for one of these."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2].lower()


def scheme_of(text: str) -> str:
    """The scheme of a URL in lower case; "" for a path."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+)(://|::)", text)
    return match[1].lower() if match else ""


def expiry(url: str) -> float:
    """When a signed URL ends, in seconds since 1970; infinite where it does not tell."""
    query = {name.lower(): values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    try:
        for scheme in ("amz", "goog"):
            if f"x-{scheme}-date" in query:
                begin = timegm(time.strptime(query[f"x-{scheme}-date"], "%Y%m%dT%H%M%SZ"))
                return begin + float(query[f"x-{scheme}-expires"])
        if "se" in query:  # Azure
            return timegm(time.strptime(query["se"], "%Y-%m-%dT%H:%M:%SZ"))
        return float(query["expires"])
    except (KeyError, ValueError):
        return float("inf")
