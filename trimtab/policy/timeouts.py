"""How long a request may be silent, and how long it may last, in each pool."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from trimtab.scoring.config import Positive
from trimtab.strict import Flaw, Strict

if TYPE_CHECKING:
    from trimtab.policy.model import Listen, Pool


class Timeouts(Strict):
    """A pool's own limits, in place of those under `listen`. They are for new requests: what runs keeps its own."""

    stream_idle_s: Positive | None = Field(
        None,
        description="A stream silent for so long is ended. Behind the gate, more than its first-token deadline. null: "
        "listen.stream_idle_timeout_s.",
    )
    max_stream_s: Positive | None = Field(
        None, description="The longest a request may take in all. null: listen.max_stream_s."
    )

    def within(self, listen: "Listen") -> tuple[float, float]:
        """The limits in force [s]: of silence, and of all."""
        return self.stream_idle_s or listen.stream_idle_timeout_s, self.max_stream_s or listen.max_stream_s


def timeout_flaws(listen: "Listen", pool: "Pool") -> Iterator[Flaw]:
    """A flaw for each limit of the pool that would come too early, or never; their places begin at the pool."""
    idle_s, longest_s = pool.timeouts.within(listen)
    of_idle = "" if pool.timeouts.stream_idle_s else ", as under listen"
    of_longest = "" if pool.timeouts.max_stream_s else ", as under listen"
    # Limits that are both of `listen` are its own flaw.
    if idle_s > longest_s and not (of_idle and of_longest):
        yield Flaw(
            f"stream_idle_s ({idle_s:g}{of_idle}) must not be above max_stream_s ({longest_s:g}{of_longest}): a "
            "stream would be ended before it may be silent for so long",
            ("timeouts", "max_stream_s" if of_idle else "stream_idle_s"),
        )
    for deadline_ms, *place in _deadlines(pool):
        if deadline_ms >= idle_s * 1000:
            yield Flaw(
                f"first_token_deadline_ms ({deadline_ms}) must be below the pool's timeouts.stream_idle_s "
                f"({idle_s:g}{of_idle}), or a stream that waits for its first token is ended in place of retried",
                (*place, "first_token_deadline_ms"),
                ("timeouts", "stream_idle_s"),
                ("gate", "enabled"),
            )


def _deadlines(pool: "Pool") -> Iterator[tuple[int, *tuple[str | int, ...]]]:
    """The first-token deadlines in force [ms], each with its place."""
    if not pool.gate.enabled:
        return
    if not pool.classes or any(one.first_token_deadline_ms is None for one in pool.classes):
        yield pool.gate.first_token_deadline_ms, "gate"
    for index, one in enumerate(pool.classes):
        if one.first_token_deadline_ms is not None:
            yield one.first_token_deadline_ms, "classes", index
