"""Whether the length classes of a pool can be told apart, and have what they need."""

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from trimtab.policy.words import quoted
from trimtab.strict import Flaw

if TYPE_CHECKING:
    from trimtab.policy.model import Pool


def class_flaws(pool: "Pool") -> Iterator[Flaw]:
    """A flaw for each class that no request would fall into, or that is not clear."""
    yield from _unclear_limits(pool)
    names = [one.name for one in pool.classes]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Flaw(
                f"{quoted(name)} is already the name of classes[{names.index(name)}]; give each class its own",
                ("classes", index, "name"),
            )
    for index, one in enumerate(pool.classes):
        if one.first_token_deadline_ms is not None and not pool.gate.enabled:
            yield Flaw(
                "a first_token_deadline_ms needs the gate: set gate.enabled to true",
                ("classes", index, "first_token_deadline_ms"),
            )
    if pool.signals.prometheus is not None and len(pool.classes) < 2:
        for index, signal in enumerate(pool.signals.prometheus.custom):
            if signal.action == "no_long_prompts":
                yield Flaw(
                    "action: no_long_prompts needs classes, two at least, of which the last has the long prompts: "
                    "give the pool classes, or write drain",
                    ("signals", "prometheus", "custom", index, "action"),
                )


def _unclear_limits(pool: "Pool") -> Iterator[Flaw]:
    if not pool.classes:
        return
    *limited, last = pool.classes
    if last.up_to_tokens is not None:
        yield Flaw(
            f"the last class takes all that is longer, so it has no up_to_tokens: leave it out of {quoted(last.name)}, "
            "or add a class after it",
            ("classes", len(limited), "up_to_tokens"),
        )
    for index, one in enumerate(limited):
        if one.up_to_tokens is None:
            yield Flaw(
                f"{quoted(one.name)} needs up_to_tokens: only the last class goes without",
                ("classes", index, "up_to_tokens"),
                ("classes", index),
            )
    for index, (shorter, longer) in enumerate(pairwise(limited), start=1):
        if shorter.up_to_tokens is None or longer.up_to_tokens is None:
            continue
        if longer.up_to_tokens <= shorter.up_to_tokens:
            yield Flaw(
                f"classes go from short to long: {quoted(longer.name)} ({longer.up_to_tokens} tokens) must reach "
                f"further than {quoted(shorter.name)} ({shorter.up_to_tokens}) before it",
                ("classes", index, "up_to_tokens"),
            )
