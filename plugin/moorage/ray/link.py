"""How a worker reaches its gang: each call waits for its answer, and a gang that is gone ends the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from moorage.ray.tree import Array
from moorage.ray.words import Counters, GangLost, Joiner, Refusal, Seat, Word


class Link(Protocol):
    """`Gang` as its workers use it. All may raise `GangLost`."""

    def join(self, joiner: Joiner) -> Seat: ...

    def reduce(
        self, group: int, rank: int, number: int, weight: float, arrays: Sequence[Array]
    ) -> tuple[list[Array], Word]: ...

    def word(self, group: int) -> Word: ...

    def post(self, counters: Counters) -> None:
        """Does not wait; drops the post while an earlier one is still on its way."""
        ...

    def saved(self, group: int, save: int, step: int, seconds: float) -> None: ...

    def holding(self, group: int, rank: int, hold: int) -> None: ...

    def conclude(self, group: int, result: str, checkpoint: str | None) -> None: ...


class RayLink:
    """Over a Ray actor handle."""

    def __init__(self, gang: Any, patience_s: float = 660.0) -> None:
        self._gang, self._patience = gang, patience_s
        self._posted: Any = None

    def _get(self, ref: Any) -> Any:
        import ray

        try:
            return ray.get(ref, timeout=self._patience)
        except Refusal as error:
            raise GangLost(str(error)) from error
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            raise GangLost(f"the gang does not answer: {error}") from error
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def join(self, joiner: Joiner) -> Seat:
        seat: Seat = self._get(self._gang.join.remote(joiner))
        return seat

    def reduce(
        self, group: int, rank: int, number: int, weight: float, arrays: Sequence[Array]
    ) -> tuple[list[Array], Word]:
        answer: tuple[list[Array], Word] = self._get(self._gang.reduce.remote(group, rank, number, weight, arrays))
        return answer

    def word(self, group: int) -> Word:
        word: Word = self._get(self._gang.word.remote(group))
        return word

    def post(self, counters: Counters) -> None:
        import ray

        if self._posted is not None and not ray.wait([self._posted], timeout=0)[0]:
            return
        self._posted = self._gang.post.remote(counters)

    def saved(self, group: int, save: int, step: int, seconds: float) -> None:
        self._get(self._gang.saved.remote(group, save, step, seconds))

    def holding(self, group: int, rank: int, hold: int) -> None:
        self._get(self._gang.holding.remote(group, rank, hold))

    def conclude(self, group: int, result: str, checkpoint: str | None) -> None:
        self._get(self._gang.conclude.remote(group, result, checkpoint))
