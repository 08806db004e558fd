"""Pauses between tries, and when patience ends."""

from __future__ import annotations

import pytest

from moorage.api.errors import Unavailable
from moorage.client.retry import FIRST_S, LARGEST_S, Retry


def test_pauses_double_and_stay_bounded() -> None:
    retry = Retry("http://b", retry_for=1000, timeout=10)
    now = 0.0
    for number in range(12):
        pause = retry.pause(now, now, "x")
        longest = min(LARGEST_S, FIRST_S * 2**number)
        assert longest / 4 <= pause <= longest
        now += pause


def test_the_last_pause_ends_with_patience() -> None:
    retry = Retry("http://b", retry_for=1.0, timeout=10)
    retry.pause(0.0, 0.0, "x")
    assert retry.pause(0.99, 0.99, "x") <= 0.0101
    with pytest.raises(Unavailable, match="no answer from http://b after 1 s: connection refused"):
        retry.pause(1.0, 1.0, "connection refused")


@pytest.mark.parametrize(
    ("started", "failed", "since"),
    [
        # A call that hung counts from its start ...
        (0.0, 9.0, 0.0),
        # ... but a long poll waited quietly, as it was asked to.
        (0.0, 300.0, 290.0),
    ],
)
def test_patience_counts_from_the_last_sign_of_life(started: float, failed: float, since: float) -> None:
    retry = Retry("http://b", retry_for=30, timeout=10)
    retry.pause(started, failed, "x")
    assert retry.since == since
