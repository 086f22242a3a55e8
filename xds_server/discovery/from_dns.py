"""Endpoints from the addresses of a name."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Any, ClassVar

import dns.asyncresolver
import dns.exception
import dns.rdatatype
import dns.resolver

from trimtab.policy.discovery import DnsSource
from xds_server.discovery.source import Answer, Listed, SourceError, one_line, socket_address

_DEADLINE_S = 5.0
# A TTL of 0 would have us ask all the time; one of a day, or none, would have us miss what is new.
_LEAST_TTL_S = 1.0
_MOST_TTL_S = 300.0
_EMPTY_TTL_S = 5.0


class FromDns:
    """Asks for one name again and again, as its TTL says."""

    longest_retry_s: ClassVar[float] = 30.0

    def __init__(self, policy: DnsSource) -> None:
        self._policy = policy

    async def answers(self) -> AsyncGenerator[Answer]:
        while True:
            answer, ttl_s = await self._ask()
            yield answer
            await asyncio.sleep(min(max(ttl_s, _LEAST_TTL_S), _MOST_TTL_S))

    async def _ask(self) -> tuple[Answer, float]:
        policy = self._policy
        try:
            resolver = dns.asyncresolver.Resolver(configure=policy.server is None)
            if policy.server is not None:
                host, _, port = policy.server.rpartition(":")
                resolver.nameservers = [host.removeprefix("[").removesuffix("]")]
                resolver.port = int(port)
            found = await resolver.resolve(
                policy.name,
                policy.record,
                lifetime=_DEADLINE_S,
                search=policy.server is None,  # the search domains are of /etc/resolv.conf too
                raise_on_no_answer=False,
            )
        except dns.resolver.NXDOMAIN:
            raise SourceError(f"{policy.name} does not exist in the DNS") from None
        except dns.exception.DNSException as error:
            raise SourceError(f"{policy.name}: {one_line(error)}") from None
        if found.rrset is None:
            return (), _EMPTY_TTL_S
        listed = _services(found.rrset) if policy.record == "srv" else _hosts(found.rrset, policy.port or 0)
        return tuple(sorted(listed, key=lambda endpoint: (endpoint.host, endpoint.port))), float(found.rrset.ttl)


def _hosts(records: Iterable[Any], port: int) -> Iterable[Listed]:
    return [Listed(record.address, port, socket_address(record.address, port)) for record in records]


def _services(records: Iterable[Any]) -> Iterable[Listed]:
    """Those of the best priority: the others are for when these are gone, which the weights see to."""
    served = [record for record in records if record.port and record.target != dns.name.root]
    best = min((record.priority for record in served), default=0)
    for record in served:
        if record.priority == best:
            host = record.target.to_text(omit_final_dot=True)
            yield Listed(host, record.port, f"{host}:{record.port}", float(record.weight) or None)
