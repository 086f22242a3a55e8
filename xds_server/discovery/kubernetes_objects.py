"""The parts of EndpointSlices and pods that discovery reads, and the endpoints in them."""

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from xds_server.discovery.source import Answer, Listed, SourceError, capacity, socket_address

_NOT_READY = "not ready"
_TERMINATING = "terminating"


class _Object(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True)


def _list(value: object) -> object:
    return () if value is None else value  # Go writes an empty list as null


def _mapping(value: object) -> object:
    return {} if value is None else value


Port = Annotated[int, Field(ge=1, le=65535)]
Labels = Annotated[dict[str, str], BeforeValidator(_mapping)]


class Metadata(_Object):
    name: str
    uid: str = ""
    resource_version: str = ""
    labels: Labels = {}
    deletion_timestamp: str | None = None

    @property
    def key(self) -> str:
        """All objects are of one kind and namespace. A name is used again at once, and then by another object."""
        return self.name


class Manifest(_Object):
    metadata: Metadata


class Conditions(_Object):
    ready: bool | None = None  # None counts as true
    terminating: bool | None = None


class Reference(_Object):
    kind: str = ""
    name: str = ""
    uid: str = ""


class SliceEndpoint(_Object):
    addresses: Annotated[tuple[str, ...], BeforeValidator(_list)] = ()
    conditions: Conditions = Conditions()
    target_ref: Reference | None = None
    node_name: str | None = None
    zone: str | None = None


class SlicePort(_Object):
    name: str | None = None
    port: Port | None = None


class Slice(Manifest):
    address_type: str = "IPv4"
    endpoints: Annotated[tuple[SliceEndpoint, ...], BeforeValidator(_list)] = ()
    ports: Annotated[tuple[SlicePort, ...], BeforeValidator(_list)] = ()


class ContainerPort(_Object):
    name: str = ""
    container_port: Port
    protocol: str = "TCP"


class Container(_Object):
    ports: Annotated[tuple[ContainerPort, ...], BeforeValidator(_list)] = ()


class PodSpec(_Object):
    node_name: str | None = None
    containers: Annotated[tuple[Container, ...], BeforeValidator(_list)] = ()


class PodCondition(_Object):
    type: str
    status: str


class PodStatus(_Object):
    phase: str = ""
    pod_ip: str | None = Field(None, alias="podIP")
    conditions: Annotated[tuple[PodCondition, ...], BeforeValidator(_list)] = ()


class Pod(Manifest):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


def listed_slices(slices: Iterable[Slice], port: int | None, port_name: str | None, capacity_label: str) -> Answer:
    """The endpoints of a service. One that is in several slices, as with two address families, is one endpoint.

    Raises SourceError if there are endpoints, and none has the port.
    """
    found: dict[str, Listed] = {}
    without_port = ""
    # Sorted, so that the address family and the order do not depend on which slice came last.
    for piece in sorted(slices, key=lambda piece: (piece.address_type, piece.metadata.name)):
        declared = [(p.name or "", p.port) for p in piece.ports if p.port is not None]
        number = port or _choose(declared, port_name)
        for endpoint in piece.endpoints:
            if not endpoint.addresses or _ip(endpoint.addresses[0]) is None:
                continue
            if number is None:
                without_port = f"the service has {_declared(declared)}"
                continue
            one = _of_slice(endpoint, number, capacity_label)
            before = found.get(one.uid or one.name)
            # While an endpoint moves to another slice it is in both, and the newer state may be in either.
            if before is None or (before.out and not one.out and before.host == one.host):
                found[one.uid or one.name] = one
    return _answer(found.values(), without_port, port_name)


def listed_pods(pods: Iterable[Pod], port: int | None, port_name: str | None, capacity_label: str) -> Answer:
    """Pods that have an address and have not ended. Raises SourceError if there are some, and none has the port."""
    found: list[Listed] = []
    without_port = ""
    for pod in sorted(pods, key=lambda pod: pod.metadata.name):
        ip = _ip(pod.status.pod_ip or "")
        if ip is None or pod.status.phase in {"Succeeded", "Failed"}:
            continue
        declared = [(p.name, p.container_port) for c in pod.spec.containers for p in c.ports if p.protocol == "TCP"]
        number = port or _choose(declared, port_name)
        if number is None:
            without_port = f"pod {pod.metadata.name} has {_declared(declared)}"
            continue
        ready = any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)
        out = _TERMINATING if pod.metadata.deletion_timestamp else "" if ready else _NOT_READY
        labels = {"pod": pod.metadata.name, **pod.metadata.labels}
        if pod.spec.node_name:
            labels.setdefault("node", pod.spec.node_name)
        number_of = capacity(labels, capacity_label)
        found.append(Listed(ip, number, pod.metadata.name, number_of, labels, pod.metadata.uid, out))
    return _answer(found, without_port, port_name)


def _of_slice(endpoint: SliceEndpoint, port: int, capacity_label: str) -> Listed:
    target = endpoint.target_ref or Reference()
    host = endpoint.addresses[0]
    pod = target.name if target.kind == "Pod" else ""
    labels = {k: v for k, v in (("pod", pod), ("node", endpoint.node_name), ("zone", endpoint.zone)) if v}
    ready = endpoint.conditions.ready is not False
    out = _TERMINATING if endpoint.conditions.terminating else "" if ready else _NOT_READY
    name = target.name or socket_address(host, port)
    return Listed(host, port, name, capacity(labels, capacity_label), labels, target.uid, out)


def _answer(found: Iterable[Listed], without_port: str, port_name: str | None) -> Answer:
    answer = tuple(sorted(found, key=lambda one: one.name))
    if not answer and without_port:
        fix = f"none is named {port_name}" if port_name else "give port or port_name"
        raise SourceError(f"{without_port}: {fix}")
    return answer


def _choose(declared: Sequence[tuple[str, int]], port_name: str | None) -> int | None:
    numbers = [number for name, number in declared if port_name is None or name == port_name]
    return numbers[0] if len(set(numbers)) == 1 else None


def _declared(declared: Sequence[tuple[str, int]]) -> str:
    return f"the ports {', '.join(_shown(declared))}" if declared else "no ports"


def _shown(declared: Sequence[tuple[str, int]]) -> Iterator[str]:
    for name, number in declared:
        yield f"{number} ({name})" if name else str(number)


def _ip(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None
