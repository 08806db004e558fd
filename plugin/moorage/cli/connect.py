"""The options that say where the broker is, and the client made from them; files that options name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moorage import settings
from moorage.api.errors import Invalid

if TYPE_CHECKING:
    from moorage.client import Client

Url = Annotated[str | None, typer.Option("--url", help="Broker; else MOORAGE_URL, else http://127.0.0.1:8740.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="File with the token; else MOORAGE_TOKEN or MOORAGE_TOKEN_FILE.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def read_text(field: str, path: Path) -> str:
    """The text of a file that an option or argument names. Raises `Invalid`."""
    try:
        return path.read_text()
    except OSError as error:
        raise Invalid(field, str(path), f"name a file that can be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise Invalid(field, str(path), "name a text file; this one is not UTF-8") from error


def read_token(path: Path | None) -> str | None:
    """The token of a file, or None for no file. Raises `Invalid` for one that cannot be read, or is empty."""
    if path is None:
        return None
    token = read_text("token-file", path).strip()
    if not token:
        raise Invalid("token-file", str(path), "it is empty; write a token into it (`moorage token create`)")
    return token


def connection(url: str | None, token_file: Path | None) -> settings.Connection:
    """Where the broker is, and a token. Raises `Invalid` if there is no token anywhere."""
    where = settings.connection(url, read_token(token_file))
    if where.token is None:
        fix = "name a file with --token-file, or set MOORAGE_TOKEN or MOORAGE_TOKEN_FILE; operators make tokens"
        raise Invalid("token", None, fix)
    return where


def connect(url: str | None, token_file: Path | None, *, timeout: float = 10.0, retry_for: float = 10.0) -> Client:
    """A client for these options and the environment."""
    from moorage.client import Client

    where = connection(url, token_file)
    return Client(where.url, where.token, timeout=timeout, retry_for=retry_for)
