"""From a decision to the assignments that Envoy gets."""

import random
from collections.abc import Iterator, Sequence

from trimtab.datapath import cluster_name
from trimtab.decision import ClassDecision, EndpointDecision, PoolDecision
from trimtab.policy.model import split_host_port
from trimtab.weights.integers import jittered
from xds_server.config.endpoints import EndpointWeight, build_assignment


def assignments_of(decision: PoolDecision, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """The clusters of a pool, each with its serialised assignment. `rng` draws the jitter of the weights."""
    if not decision.classes:
        yield _assignment(decision, cluster_name(decision.pool), decision.endpoints, rng)
    for number, name in enumerate(decision.classes):
        of_class = [endpoint.classes[number] for endpoint in decision.endpoints]
        yield _assignment(decision, cluster_name(decision.pool, name), of_class, rng)


def _assignment(
    decision: PoolDecision,
    cluster: str,
    decided: Sequence[EndpointDecision | ClassDecision],
    rng: random.Random,
) -> tuple[str, bytes]:
    weights = []
    pushed = jittered([one.weight for one in decided], rng)
    for endpoint, one, weight in zip(decision.endpoints, decided, pushed, strict=True):
        host, port = split_host_port(endpoint.id.address)
        # Where all are in for want of a better one, they are said to drain all: then Envoy goes by the weights alone,
        # and passes over none that it could not connect to a while ago.
        draining = not (one.takes_work and decision.serves)
        weights.append(EndpointWeight(host, port, weight, draining))
    return cluster, build_assignment(cluster, weights)
