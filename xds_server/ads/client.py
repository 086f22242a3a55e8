"""What one stream's client is to be sent next, over all types, in an order that loses no traffic."""

from collections.abc import Iterable, Mapping

from xds_server.ads.snapshot import Resource, Snapshot, TypeUrl
from xds_server.ads.subscription import Push, Subscription

_REMOVAL_ORDER = (TypeUrl.LDS, TypeUrl.RDS, TypeUrl.CDS, TypeUrl.EDS, TypeUrl.RTDS)
"""What refers goes before what it refers to."""

_REFERRER = {TypeUrl.RDS: TypeUrl.LDS, TypeUrl.CDS: TypeUrl.RDS, TypeUrl.EDS: TypeUrl.CDS}


class Client:
    """The client of one stream, whichever protocol it speaks.

    Make before break: clusters go out first, then their assignments, listeners, routes. A route that needs a
    cluster which is new to the client waits until the client has accepted (or refused) that cluster, because
    Envoy puts a route in force at once, but a cluster only when it is warm. Nothing is taken away before the
    client has accepted all of its type, and all that might refer to it: a refused listener keeps its routes, but
    no cluster.
    """

    def __init__(self, *, full: Iterable[TypeUrl], tells_absence: bool) -> None:
        self.subscriptions: Mapping[TypeUrl, Subscription] = {
            type_url: Subscription(type_url, full=type_url in full, tells_absence=tells_absence) for type_url in TypeUrl
        }

    def next_push(self, snapshot: Snapshot, now: float) -> Push | None:
        """The next response that brings the client nearer to `snapshot`; None if there is nothing to say now.

        It counts as sent. `now` is in seconds on any clock and comes back as `Push.at`.
        """
        for type_url, subscription in self.subscriptions.items():
            withheld = self._awaits_cluster if type_url is TypeUrl.RDS else _never
            push = subscription.next_addition(snapshot[type_url], now, withheld)
            if push is not None:
                if type_url is TypeUrl.CDS:
                    self._expect_assignments(push.fresh)
                return push
        return self._next_removal(snapshot, now)

    def _next_removal(self, snapshot: Snapshot, now: float) -> Push | None:
        settled: set[TypeUrl | None] = {None}
        for type_url in _REMOVAL_ORDER:
            subscription, resources = self.subscriptions[type_url], snapshot[type_url]
            if type_url in _REFERRER.values() and subscription.behind(resources):
                continue
            if not subscription.gone(resources):
                settled.add(type_url)
            elif _REFERRER.get(type_url) in settled:
                push = subscription.next_removal(resources, now)
                if push is not None:
                    return push
        return None

    def _awaits_cluster(self, routes: Resource) -> bool:
        clusters = self.subscriptions[TypeUrl.CDS]
        return any(clusters.awaits(name) for name in routes.refers_to)

    def _expect_assignments(self, clusters: Iterable[Resource]) -> None:
        """Envoy waits for a new assignment of a cluster that has changed, but never says so.

        In delta it asks for nothing; in state of the world its request looks like one more ACK.
        """
        for cluster in clusters:
            self.subscriptions[TypeUrl.EDS].resend(cluster.refers_to)


def _never(_: Resource) -> bool:
    return False
