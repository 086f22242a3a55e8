"""All that finds endpoints and reads them, wired once: for the control plane, and for `trimtab signals`."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Self

from trimtab.llmapi.probe_answer import ProbeAnswer
from trimtab.llmapi.rejections import RejectionReader
from trimtab.observation.kinds import Observation
from trimtab.policy.model import Policy, Pool
from trimtab.pool import EndpointDecision, EndpointSpec
from xds_server.discovery import Discovery
from xds_server.probes.prober import Prober, ReadAnswer
from xds_server.probes.reachability import Reachability
from xds_server.signals.prometheus import PrometheusSource
from xds_server.signals.reader import PoolReader
from xds_server.signals.scraper import Scraper, new_session


class Readers:
    """Discovery, scraping, probes, Prometheus and the reachability of fallbacks, while its context lasts.

    `observe` gets what was read, `take_endpoints` the endpoints of a pool whenever they change, and `on_query` each
    answer of Prometheus: the pool, the signal, and the error or "". `known` is what discovery had found before a
    restart. `decision_of` gives the latest decision on an endpoint (pool, address), which says whether it is probed.
    """

    def __init__(
        self,
        observe: Callable[[Sequence[Observation]], None],
        take_endpoints: Callable[[str, Sequence[EndpointSpec]], None],
        decision_of: Callable[[str, str], EndpointDecision | None],
        on_query: Callable[[str, str, str], None],
        *,
        known: Mapping[str, Any] | None = None,
        probe_spread: float = 1.0,
    ) -> None:
        self.discovery = Discovery(take_endpoints, known=known)
        self.reachability = Reachability()
        self._observe = observe
        self._decision_of = decision_of
        self._on_query = on_query
        self._probe_spread = probe_spread
        self._stack = AsyncExitStack()
        self._prober: Prober
        self._readers: Sequence[PoolReader[Any]] = ()

    async def __aenter__(self) -> Self:
        session = await self._stack.enter_async_context(new_session())
        no_rules = partial(ProbeAnswer, RejectionReader([]))  # until a policy is in force
        self._prober = Prober(self._observe, session, no_rules, self._decision_of, spread=self._probe_spread)
        prometheus = PrometheusSource(self._observe, self._on_query)
        self._readers = (Scraper(self._observe, session), self._prober, prometheus, self.reachability)
        for reader in self._readers:
            self._stack.push_async_callback(reader.close)
        self._stack.push_async_callback(self.discovery.close)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def put_in_force(self, policy: Policy) -> None:
        """Find and read what a policy says, from now on."""
        self.discovery.update(policy)
        self._prober.read_answer = _answer_reader(policy)
        for reader in self._readers:
            reader.reconfigure(policy.pools)

    def update(self, pool: Pool, endpoints: Sequence[EndpointSpec]) -> None:
        """Read these endpoints of a pool, and no others of it."""
        for reader in self._readers:
            reader.update(pool, endpoints)


def _answer_reader(policy: Policy) -> ReadAnswer:
    return partial(ProbeAnswer, RejectionReader.from_policy(policy.rejections))
