"""Notices of the three clouds, from faithful metadata servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from moorage.agent import AgentConfig, notices
from moorage.agent.clouds import Absent, Aws, Azure, Gcp, Source
from moorage.agent.notices import Watched
from moorage.api.values import Notice
from moorage.testing.metadata import MetadataServer

CLOUDS = [(Aws, "aws terminate"), (Gcp, "gcp preempted"), (Azure, "azure preempt")]


@pytest.fixture
def metadata() -> Iterator[MetadataServer]:
    with MetadataServer() as server:
        yield server


@pytest.mark.parametrize(("cloud", "source"), CLOUDS)
def test_a_notice_comes_and_is_cancelled(metadata: MetadataServer, cloud: Callable[[str], Source], source: str) -> None:
    watched = Watched(cloud(metadata.url()))
    assert watched.poll() is None
    deadline = metadata.notice(seconds=30)
    first = watched.poll()
    assert first is not None
    assert first.deadline is not None
    assert first.source == source
    # GCP says no time: it is 30 s from when it was seen.
    assert abs(first.deadline - deadline) <= timedelta(seconds=0 if cloud is not Gcp else 3)
    # One event, not one a second.
    assert watched.poll() == first
    metadata.cancel()
    assert watched.poll() is None
    watched.source.close()


def test_a_recommendation_has_no_deadline(metadata: MetadataServer) -> None:
    watched = Watched(Aws(metadata.url()))
    metadata.recommend()
    notice = watched.poll()
    assert notice is not None
    assert (notice.deadline, notice.source) == (None, "aws rebalance")
    firm = metadata.notice(seconds=60)
    notice = watched.poll()
    assert notice is not None
    assert notice.deadline == firm
    watched.source.close()


def test_an_expired_token_is_replaced(metadata: MetadataServer) -> None:
    source = Aws(metadata.url())
    assert source.poll() is None
    metadata.machines[""].tokens.clear()
    metadata.notice(seconds=60)
    assert source.poll() is not None
    source.close()


@pytest.mark.parametrize("cloud", [Aws, Gcp, Azure])
def test_an_endpoint_that_is_not_there(cloud: Callable[[str], Source]) -> None:
    source = cloud("http://127.0.0.1:9")
    with pytest.raises(Absent, match=r"127\.0\.0\.1:9"):
        source.poll()
    watched = Watched(source)
    assert watched.poll() is None
    # Backed off: the second poll does not even ask.
    source.close()
    assert watched.poll() is None


def test_what_cannot_be_asked_leaves_the_last_word() -> None:
    with MetadataServer() as server:
        watched = Watched(Aws(server.url()))
        server.notice(seconds=60)
        before = watched.poll()
        assert before is not None
        watched.source.close()
        watched.source = Aws("http://127.0.0.1:9")
    assert watched.poll() == before


def test_azure_ignores_other_machines() -> None:
    with MetadataServer(["vm0", "vm1"]) as server:
        server.notice(seconds=60, node="vm1")
        mine, other = Azure(server.url("vm1")), Azure(server.url("vm0"))
        assert mine.poll() is not None
        assert other.poll() is None
        # A scale set's events name all its machines.
        server.machines["vm1"].name = "vm9"
        assert mine.poll() is None
        for source in (mine, other):
            source.close()


NOW = datetime(2026, 11, 30, tzinfo=UTC)
SOFT = Notice(deadline=None, source="aws rebalance", at=NOW)
LATE = Notice(deadline=NOW + timedelta(seconds=90), source="aws terminate", at=NOW)
SOON = Notice(deadline=NOW + timedelta(seconds=30), source="gcp preempted", at=NOW)


@pytest.mark.parametrize(
    ("given", "worst"),
    [([], None), ([None], None), ([None, SOFT], SOFT), ([SOFT, LATE], LATE), ([LATE, SOON], SOON)],
)
def test_the_worst_counts(given: list[Notice | None], worst: Notice | None) -> None:
    assert notices.worst(given) == worst


def test_the_watcher_tells_changes_only(metadata: MetadataServer, tmp_path: Path) -> None:
    told: list[Notice | None] = []
    config = AgentConfig(url="http://x", node="n", state_dir=tmp_path, imds_url=metadata.url())
    watcher = notices.watcher(config, told.append)
    watcher.step()
    deadline = metadata.notice(seconds=60)
    watcher.step()
    watcher.step()
    metadata.cancel()
    watcher.step()
    assert [notice and notice.deadline for notice in told] == [deadline, None]
