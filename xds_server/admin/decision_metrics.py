"""The latest decisions as gauges, read whole at each scrape: nothing of an endpoint outlives it."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from trimtab.decision import ClassDecision
from trimtab.endpoint.engine_rates import Spread
from trimtab.health.state import State
from trimtab.pool import EndpointDecision
from xds_server.admin.state import AdminState

_LABELS = ("pool", "endpoint")


def _mean(spread: Spread | None) -> float | None:
    return None if spread is None else spread.mean


# None is UNKNOWN, and has no sample.
_GAUGES: tuple[tuple[str, str, Callable[[EndpointDecision], float | None]], ...] = (
    ("weight", "Weight of the latest decision, an integer of at least 1.", lambda e: e.weight),
    ("share_ratio", "Part of the pool's new work that the endpoint is meant to get.", lambda e: e.share),
    ("score", "What the strategy says of the endpoint: 0 to 100, 100 is best.", lambda e: e.score),
    ("effective_score", "The score after slow start: 0 to 100.", lambda e: e.effective_score),
    (
        "ttft_prediction_error_ratio",
        "Mean of |predicted - seen| / seen over the latest first tokens, where the strategy predicts them.",
        lambda e: e.prediction_error,
    ),
    ("takes_work", "1 if the endpoint takes new work, 0 if it is drained.", lambda e: e.takes_work),
    ("in_flight", "Attempts in flight, by the leases of the access log.", lambda e: e.view.in_flight),
    (
        "in_flight_reported",
        "Attempts in flight, by Envoy's load reports.",
        lambda e: e.view.in_flight_reported,
    ),
    (
        "lease_difference",
        "Leases minus the attempts in flight that Envoy reports, where the difference has lasted.",
        lambda e: e.view.lease_difference,
    ),
    ("awaiting_token", "Streams in flight without a first token.", lambda e: e.view.awaiting_token),
    (
        "outstanding_prompt_bytes",
        "Request bytes of attempts that have not shown a token.",
        lambda e: e.view.outstanding_prompt_bytes,
    ),
    (
        "oldest_wait_seconds",
        "Age of the oldest stream without a first token.",
        lambda e: e.view.oldest_wait_s,
    ),
    (
        "ttft_average_seconds",
        "Average of the latest times to first token, as the strategy sees it.",
        lambda e: e.view.ttft_s,
    ),
    (
        "ttft_p99_seconds",
        "P99 of the times to first token of the last minute.",
        lambda e: e.view.ttft_p99_s,
    ),
    (
        "inter_token_p99_seconds",
        "P99 of the gaps between tokens, by the streams that were read whole, else by the engine's own metrics.",
        lambda e: e.view.inter_token_p99_s,
    ),
    (
        "tokens_per_second",
        "Tokens that the engine generates, by its own metrics, else by the streams that were read whole.",
        lambda e: e.view.tokens_per_s,
    ),
    (
        "tokens_per_second_best",
        "The most tokens per second that the engine has kept up recently.",
        lambda e: e.view.tokens_per_s_best,
    ),
    (
        "error_ratio",
        "Decaying part of attempts that failed by the endpoint's fault.",
        lambda e: e.view.error_share,
    ),
    ("waiting", "Requests in the engine's queue, by its own metrics.", lambda e: e.view.signals.waiting),
    ("running", "Sequences that the engine decodes, by its own metrics.", lambda e: e.view.signals.running),
    (
        "kv_usage_ratio",
        "Part of the KV cache in use, by the engine's own metrics.",
        lambda e: e.view.signals.kv_usage,
    ),
    (
        "max_model_tokens",
        "Tokens that a prompt and its answer may have together.",
        lambda e: e.view.signals.max_model_len,
    ),
    (
        "prompt_tokens_per_second",
        "Tokens of prompts that the engine takes in, by its own metrics over the last ten seconds.",
        lambda e: e.view.prompt_tokens_per_s,
    ),
    (
        "preemptions_per_second",
        "Sequences that the engine preempts, by its own metrics over the last minute.",
        lambda e: e.view.preemptions_per_s,
    ),
    (
        "prefix_hit_ratio",
        "Part of the prompts that was in the engine's prefix cache, over the last ten seconds.",
        lambda e: e.view.prefix_hit_rate,
    ),
    (
        "engine_ttft_mean_seconds",
        "Mean of the times to first token of the last ten seconds, by the engine's own metrics.",
        lambda e: _mean(e.view.engine_ttft_s),
    ),
    (
        "engine_inter_token_mean_seconds",
        "Mean of the times between tokens of the last ten seconds, by the engine's own metrics.",
        lambda e: _mean(e.view.engine_inter_token_s),
    ),
    (
        "frozen_seconds",
        "How long the engine's own counters have stood still although it says that it has work.",
        lambda e: e.view.frozen_s,
    ),
    ("signals_age_seconds", "Age of the engine's last good reading.", lambda e: e.view.signals_age_s),
)

# What each length class has of its own, in a pool that has classes.
_OF_CLASS: Mapping[str, Callable[[ClassDecision], float]] = {
    "weight": lambda c: c.weight,
    "share_ratio": lambda c: c.share,
    "takes_work": lambda c: c.takes_work,
}


class DecisionCollector(Collector):
    """Yields the gauges of all pools' endpoints; the label `endpoint` is the name in the policy.

    What is told of each length class has its name as the label `class`.
    """

    def __init__(self, state: AdminState) -> None:
        self._state = state

    def collect(self) -> Iterator[GaugeMetricFamily]:
        rows = [
            ((decision.pool, endpoint.view.name), endpoint)
            for decision in list(self._state.decisions.values())
            for endpoint in decision.endpoints
        ]
        for name, documentation, value_of in _GAUGES:
            family = GaugeMetricFamily(f"trimtab_endpoint_{name}", documentation, labels=_LABELS)
            of_class = _OF_CLASS.get(name)
            for where, endpoint in rows:
                if of_class is not None and endpoint.classes:
                    for one in endpoint.classes:
                        labels = dict(zip((*_LABELS, "class"), (*where, one.name), strict=True))
                        family.add_sample(family.name, labels, of_class(one))
                    continue
                value = value_of(endpoint)
                if value is not None:
                    family.add_metric(where, value)
            yield family

        ratios = GaugeMetricFamily(
            "trimtab_pool_bytes_per_token",
            "Bytes of a request's body for each prompt token, by what the engines count.",
            labels=_LABELS[:1],
        )
        for decision in list(self._state.decisions.values()):
            if decision.bytes_per_token is not None:
                ratios.add_metric((decision.pool,), decision.bytes_per_token)
        lost = GaugeMetricFamily(
            "trimtab_endpoint_lost_points",
            "Points of the score that the endpoint loses, by term.",
            labels=(*_LABELS, "term"),
        )
        states = GaugeMetricFamily(
            "trimtab_endpoint_state",
            "1 for the state that the endpoint is in, 0 for the others.",
            labels=(*_LABELS, "state"),
        )
        for where, endpoint in rows:
            for term, points in endpoint.breakdown.items():
                lost.add_metric((*where, term), points)
            for state in State:
                states.add_metric((*where, state), endpoint.state is state)
        splits = GaugeMetricFamily(
            "trimtab_split_ratio",
            "Part of the requests to a pool with fallbacks that the pool itself, and each of them, gets.",
            labels=("pool", "to"),
        )
        for pool, split in list(self._state.splits.items()):
            for to, part in split.items():
                splits.add_metric((pool, to), part)
        yield from (ratios, lost, states, splits)
