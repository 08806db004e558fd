"""Settings from the environment. Only `cli` and the integrations (airflow, ray, agent) read them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from moorage.core.invalid import Invalid

URL = "MOORAGE_URL"
TOKEN = "MOORAGE_TOKEN"
TOKEN_FILE = "MOORAGE_TOKEN_FILE"
LEASE = "MOORAGE_LEASE"
EPOCH = "MOORAGE_EPOCH"
STORAGE = "MOORAGE_STORAGE"
#: Checkpoints of the ended lease that this one continues.
RESUME_FROM = "MOORAGE_RESUME_FROM"
ALLOCATION = "MOORAGE_ALLOCATION"
#: Where a job writes its completion marker (JSON, at most 64 KiB).
MARKER = "MOORAGE_MARKER"
#: Device seconds that a fake GPU takes for one local sample.
FAKE_SAMPLE_SECONDS = "MOORAGE_FAKE_SAMPLE_SECONDS"

DEFAULT_URL = "http://127.0.0.1:8740"


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the broker is, and the token to show it."""

    url: str
    token: str | None


def connection(url: str | None = None, token: str | None = None) -> Connection:
    """Arguments first, then MOORAGE_URL, MOORAGE_TOKEN, MOORAGE_TOKEN_FILE.

    Raises:
        Invalid: MOORAGE_TOKEN_FILE names a file that cannot be read, or is empty.
    """
    return Connection(url or os.environ.get(URL) or DEFAULT_URL, token or os.environ.get(TOKEN) or _token_from_file())


def _token_from_file() -> str | None:
    path = os.environ.get(TOKEN_FILE)
    if not path:
        return None
    try:
        token = Path(path).read_text().strip()
    except OSError as error:
        raise Invalid(TOKEN_FILE, path, f"name a file that can be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise Invalid(TOKEN_FILE, path, "name a text file; this one is not UTF-8") from error
    if not token:
        raise Invalid(TOKEN_FILE, path, "it is empty; write a token into it")
    return token
