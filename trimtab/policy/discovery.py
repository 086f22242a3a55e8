"""Where the endpoints of a pool are found, if the policy does not list them."""

import ipaddress
import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from trimtab.policy.trust import trust_flaws
from trimtab.policy.types import BaseUrl, FilePath, Port, Url, text_schema
from trimtab.policy.words import quoted
from trimtab.strict import Flaw, Strict

_DNS_NAME = re.compile(r"(?=.{1,253}\.?$)(?:(?!-)[A-Za-z0-9_-]{1,63}\.)*(?!-)[A-Za-z0-9_-]{1,63}\.?")
_KUBERNETES_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_REQUIREMENT = re.compile(
    r"\s*(?:!?\s*[\w./-]+|[\w./-]+\s*(?:=|==|!=)\s*[\w.-]*|[\w./-]+\s+(?:in|notin)\s+\(\s*[\w.-]*(?:\s*,\s*[\w.-]*)*\s*\))\s*"
)
_BETWEEN_REQUIREMENTS = re.compile(r",(?![^(]*\))")


def _dns_name(text: str) -> str:
    if not _DNS_NAME.fullmatch(text):
        raise ValueError(f"{quoted(text)} is not a host name")
    if text.rstrip(".").rpartition(".")[2].isdigit():
        raise ValueError(f"{quoted(text)} is an address: list it under endpoints")
    return text


def _kubernetes_name(text: str) -> str:
    if not _KUBERNETES_NAME.fullmatch(text):
        raise ValueError(f"{quoted(text)} must be lower-case letters, digits and inner hyphens, as in vllm-70b")
    return text


def _selector(text: str) -> str:
    if not all(_REQUIREMENT.fullmatch(part) for part in _BETWEEN_REQUIREMENTS.split(text)):
        raise ValueError(f"{quoted(text)} must be a label selector, as in app=vllm,tier in (a,b)")
    return text


def _server(text: str) -> str:
    host, _, port = text.rpartition(":")
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError
    except ValueError:
        raise ValueError(f"{quoted(text)} must be an IP address with a port, as in 10.0.0.2:53") from None
    return text


DnsName = Annotated[str, AfterValidator(_dns_name), text_schema("vllm.llm.svc.cluster.local", r"^[A-Za-z0-9._-]+$")]
DnsServer = Annotated[str, AfterValidator(_server), text_schema("10.0.0.2:53", r"^[0-9A-Fa-f.:\[\]]+:[0-9]+$")]
KubernetesName = Annotated[str, AfterValidator(_kubernetes_name), text_schema("vllm", r"^[a-z0-9.-]+$")]
Selector = Annotated[str, AfterValidator(_selector), text_schema("app=vllm", r"^.*\S.*$")]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class FileSource(Strict):
    """A list of endpoints in a file."""

    path: FilePath = Field(description="The file. A change of its content is noticed within a second.")


class DnsSource(Strict):
    """A name with many addresses."""

    name: DnsName = Field(description="The name that is asked for.")
    record: Literal["a", "aaaa", "srv"] = Field(
        "a", description="IPv4 addresses, IPv6 addresses, or host names with ports and weights (capacities)."
    )
    port: Port | None = Field(None, description="Port of the engines; null for srv, which has its own.")
    server: DnsServer | None = Field(None, description="DNS server to ask. null: those of /etc/resolv.conf.")

    def flaws(self) -> Iterator[Flaw]:
        if self.record == "srv" and self.port is not None:
            yield Flaw("SRV records have ports of their own; remove port", ("port",))
        if self.record != "srv" and self.port is None:
            yield Flaw(f"{self.record} records have no ports: give port", ("port",), ("record",), ("name",))


class HttpSource(Strict):
    """A URL that tells targets as for Prometheus."""

    url: Url = Field(description="What is asked for, without a password in it.")
    refresh_s: Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)] = Field(
        30, description="How often it is asked."
    )
    timeout_s: Seconds = Field(5, description="An answer that takes longer is given up.")
    token_file: FilePath | None = Field(None, description="File with a bearer token; read again when it changes.")
    ca_file: FilePath | None = Field(None, description="Certificates to trust, PEM. null: the system's.")
    skip_verify: bool = Field(False, description="Take any certificate: whoever is in between can read and lie.")

    def flaws(self) -> Iterator[Flaw]:
        yield from trust_flaws(self.ca_file, self.skip_verify, self.url)


class KubernetesSource(Strict):
    """A service, or pods by their labels."""

    service: KubernetesName | None = Field(None, description="The service whose EndpointSlices are read.")
    selector: Selector | None = Field(None, description="Or the labels of the pods, which then need no service.")
    namespace: KubernetesName | None = Field(None, description="null: the one that Trimtab runs in.")
    port: Port | None = Field(None, description="Port of the engines. null: the one port that they declare.")
    port_name: KubernetesName | None = Field(None, description="Or its name, where they declare several.")
    api: BaseUrl | None = Field(None, description="URL of an API server. null: that of the cluster.")
    token_file: FilePath | None = Field(
        None, description="File with a bearer token; read again when it changes. null: the service account's."
    )
    ca_file: FilePath | None = Field(
        None, description="Certificates to trust, PEM. null: the service account's; with `api`, the system's."
    )
    skip_verify: bool = Field(False, description="Take any certificate: whoever is in between can read and lie.")

    def flaws(self) -> Iterator[Flaw]:
        if self.service is not None and self.selector is not None:
            yield Flaw("give service or selector, not both", ("selector",))
        if self.service is None and self.selector is None:
            yield Flaw("give service, or selector for pods without one", ())
        if self.port is not None and self.port_name is not None:
            yield Flaw("give port or port_name, not both", ("port_name",))
        if self.api is None and self.token_file is not None:
            yield Flaw("token_file belongs to an api: in the cluster the service account has its own", ("token_file",))
        if self.api is not None and self.namespace is None:
            yield Flaw("with an api of your own, say which namespace", ("api",))
        yield from trust_flaws(self.ca_file, self.skip_verify, self.api or "https:")


class DiscoveryPolicy(Strict):
    """Where a pool's endpoints are found. Exactly one of `file`, `dns`, `http` and `kubernetes`."""

    file: FileSource | None = Field(
        None, description="A file of its own with the list that would stand under `endpoints`, in YAML or JSON."
    )
    dns: DnsSource | None = Field(
        None,
        description="Every address that a name has, as of a headless service. It is asked again when its TTL is over.",
    )
    http: HttpSource | None = Field(
        None, description="A URL that answers in the format of Prometheus' HTTP service discovery (http_sd)."
    )
    kubernetes: KubernetesSource | None = Field(
        None,
        description="The pods behind a service, or with labels, as the Kubernetes API tells them; it is watched. "
        "Without `api` it is that of the cluster that Trimtab runs in, with the service account of its pod.",
    )
    capacity_label: Annotated[str, Field(min_length=1)] = Field(
        "capacity", description="Label whose number is an endpoint's capacity: for http and kubernetes."
    )
    confirm_empty_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = Field(
        30,
        description="An answer without any endpoint is believed when it still holds after so long. "
        "0 asks once more, and believes it.",
    )

    @property
    def source(self) -> FileSource | DnsSource | HttpSource | KubernetesSource:
        """The one that is given."""
        found = self.file or self.dns or self.http or self.kubernetes
        assert found is not None  # or there would be a flaw
        return found

    @property
    def kind(self) -> str:
        """The key under which it is given."""
        return next(kind for kind in _KINDS if getattr(self, kind) is not None)

    def flaws(self) -> Iterator[Flaw]:
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if not given:
            yield Flaw(f"say where endpoints are found: one of {', '.join(_KINDS)}", *((kind,) for kind in _KINDS), ())
        for kind in given[1:]:
            yield Flaw(f"{given[0]} is already given: a pool has one source; remove one", (kind,))


_KINDS = ("file", "dns", "http", "kubernetes")
