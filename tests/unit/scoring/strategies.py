"""Every strategy with its default numbers, as the suites run them."""

from collections.abc import Callable
from typing import get_args

from trimtab.scoring import BlendPolicy, BlendTerm, Reading, ScoringPolicy, Strategy, make_strategy

_BLEND = BlendPolicy(
    terms=(
        BlendTerm(reading=Reading.TTFT_MS, weight=3, bad=2000),
        BlendTerm(reading=Reading.KV_USAGE, weight=2, good=0.5, bad=1),
        BlendTerm(reading=Reading.TOKENS_PER_S, weight=1, good=1000, bad=0),
    )
)

POLICIES: dict[str, ScoringPolicy] = {
    policy.strategy: policy
    for policy in (_BLEND if member is BlendPolicy else member() for member in get_args(ScoringPolicy))
}
STRATEGIES: dict[str, Callable[[], Strategy]] = {
    name: lambda policy=policy: make_strategy(policy) for name, policy in POLICIES.items()
}
