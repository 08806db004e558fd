"""A broker that is down is tried again for a while; then its address is named."""

from __future__ import annotations

from cli_terminal import HangsUp


def test_pauses_grow_for_ten_seconds_and_the_address_is_named(hangs_up: HangsUp) -> None:
    out, err = hangs_up.command.communicate(timeout=30)
    assert (hangs_up.command.returncode, out) == (3, "")
    assert err.startswith(f"moorage: no answer from {hangs_up.url} after 10 s: "), err
    assert err.count("\n") == 1
    assert 5 <= hangs_up.calls <= 60
