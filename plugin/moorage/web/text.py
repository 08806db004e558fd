"""How the pages say numbers, times, money and owners. Pure; the browser only places these strings."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal

from moorage.core.request import Request

#: Hues that leases are told apart by; each has a class in moorage.css.
HUES = 12
#: Without those that look like digits.
LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
TIMES = "\u00d7"
DASH = "\u2013"
#: Shown for what nobody knows.
UNKNOWN = DASH


def usd(amount: Decimal) -> str:
    """``$1,234.56``; four places below a dollar, where they tell something."""
    if amount == 0:
        return "$0.00"
    return f"${amount:,.2f}" if abs(amount) >= 1 else f"${amount:.4f}"


#: Digits that dollars have at least.
CENTS = 2


def price(amount: Decimal) -> str:
    """USD per GPU-hour; a pool without a price has none, rather than a price of zero."""
    if not amount:
        return "no price"
    exact = f"{amount.normalize():f}"
    return f"${exact}" if len(exact.partition(".")[2]) > CENTS else f"${amount:.{CENTS}f}"


def span(seconds: float) -> str:
    """A length of time in one unit: ``94 s``, ``3 min``, ``5 h``, ``2 d``; each unit from twice its size on."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def since(at: datetime | None, now: datetime) -> str:
    """How long ago."""
    return UNKNOWN if at is None else span((now - at).total_seconds())


def stamp(at: datetime | None) -> str:
    """A whole time, for titles."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def count(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def loss(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"


def gib(size: int | None) -> str:
    """Bytes as GiB."""
    return "" if size is None else f"{size / 2**30:.0f} GiB"


def many(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def owner(labels: Mapping[str, str]) -> str:
    """Who asked, in a few words: the Airflow task if there is one, else what the labels say."""
    task = [labels[key] for key in ("airflow.dag_id", "airflow.task_id") if labels.get(key)]
    if task:
        mapped = labels.get("airflow.map_index", "-1")
        return " · ".join(task) + (f" [{mapped}]" if mapped.isdigit() else "")
    return " · ".join(value for value in labels.values() if value) or "no owner labels"


def owner_lines(labels: Mapping[str, str]) -> str:
    """All labels, one a line."""
    return "\n".join(f"{key}: {value}" for key, value in labels.items())


def hue(lease: str) -> int:
    """A lease's colour; the same wherever and whenever it is drawn."""
    return zlib.crc32(lease.encode()) % HUES


def letter(lease: str) -> str:
    """A lease's letter: two leases of one colour still differ for those who cannot see it."""
    return LETTERS[zlib.crc32(lease.encode()) // HUES % len(LETTERS)]


def short(lease: str) -> str:
    """The part of an id that people type: the time of a UUIDv7."""
    return lease[:13]


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key in which ``r2`` comes before ``r10``."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)


def asks(request: Request) -> str:
    """What a request wants: ``1-4 workers x 2 GPUs, spot, one rack preferred``."""
    low, high = request.workers
    bounds = str(low) if low == high else f"{low}{DASH}{high}"
    models = f" {' or '.join(request.models)}" if request.models else ""
    gpus = f"{request.gpus_per_worker}{models} GPU{'' if request.gpus_per_worker == 1 else 's'}"
    words = [f"{bounds} worker{'' if high == 1 else 's'} {TIMES} {gpus}", str(request.capacity)]
    if request.topology.required:
        words.append(f"one {request.topology.required}")
    elif request.topology.preferred:
        words.append(f"one {request.topology.preferred} preferred")
    if request.priority:
        words.append(f"priority {request.priority}")
    return ", ".join(words)
