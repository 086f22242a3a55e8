"""The policy as types. Every field says its unit in its name, its range in its type, and what it is for.

`trimtab schema` prints the JSON Schema that follows from this file.
"""

import fnmatch
import ipaddress
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from trimtab.fleet.observation import Verdict
from trimtab.scoring import ScoringPolicy, default_scoring
from trimtab.strict import Strict

_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.(?!-)[A-Za-z0-9_-]{1,63})*\.?")


def split_host_port(text: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`.

    Raises ValueError, with the mend, for anything else.
    """
    host, sep, port = text.rpartition(":")
    if "://" in text:
        raise ValueError(f"{text!r} must be host:port, without a scheme")
    if not sep or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} must be host:port with a port of 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        return str(ipaddress.IPv6Address(host[1:-1])), int(port)
    if ":" in host:
        raise ValueError(f"{text!r}: write an IPv6 address in brackets, as in [::1]:8000")
    if not _HOST.fullmatch(host):
        raise ValueError(f"{text!r}: {host!r} is not a host name or an IP address")
    return host, int(port)


def _host_port(text: str) -> str:
    split_host_port(text)
    return text


def _service_address(text: str) -> str:
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/") or len(path) > 100:
            raise ValueError(f"{text!r}: a unix socket needs an absolute path of at most 100 characters")
        return text
    return _host_port(text)


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    return text


HostPort = Annotated[str, AfterValidator(_host_port)]
ServiceAddress = Annotated[str, AfterValidator(_service_address)]
Regex = Annotated[str, AfterValidator(_regex)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Listen(Strict):
    """Where clients connect."""

    address: str = Field("127.0.0.1", description="IP address that Envoy listens on; 0.0.0.0 for all.")
    port: Annotated[int, Field(ge=1, le=65535)] = 10000
    max_body_mib: Annotated[int, Field(ge=1, le=256)] = Field(
        16, description="Largest request body. A request is kept until it can no longer be retried."
    )
    stream_idle_timeout_s: Positive = Field(
        300, description="A stream without a byte for so long is ended. Preempted vLLM streams were silent for 14 s."
    )
    max_stream_s: Positive = Field(3600, description="The longest a request may take in all.")
    cors_allow_origins: tuple[str, ...] = Field(
        ("*",), description="Origins whose browsers may call the API; empty switches CORS off."
    )

    @model_validator(mode="after")
    def _is_ip(self) -> Self:
        try:
            ipaddress.ip_address(self.address)
        except ValueError:
            raise ValueError(f"listen.address {self.address!r} must be an IP address, as in 0.0.0.0") from None
        return self


class Services(Strict):
    """Where our own services listen: loopback TCP (`127.0.0.1:18000`) or `unix:/absolute/path`."""

    xds: ServiceAddress = "127.0.0.1:18000"
    ext_proc: ServiceAddress = "127.0.0.1:18001"
    admin: HostPort = "127.0.0.1:18080"
    envoy_admin: ServiceAddress = "127.0.0.1:9901"


class ExtProc(Strict):
    """The observation service."""

    workers: Annotated[int, Field(ge=1, le=64)] = Field(1, description="Processes behind the one address.")
    sample_percent: Annotated[float, Field(ge=0, le=100)] = Field(
        100, description="Share of streamed attempts that are watched, before the CPU budget lowers it."
    )
    full_stream_percent: Annotated[float, Field(ge=0, le=100)] = Field(
        5, description="Share of the watched attempts that are read to their end, for inter-token times and late errors."
    )
    cpu_budget_cores: Positive = Field(0.5, description="CPU that observation may use, in cores, over all workers.")
    reject_timeout_ms: Annotated[int, Field(ge=10, le=5000)] = Field(
        100, description="The longest an error answer is held while its body is judged."
    )


class Endpoint(Strict):
    """One engine."""

    address: HostPort
    capacity: Positive | None = Field(
        None, description="Relative to the other endpoints of the pool, e.g. 10 / 4 / 1 for A100 / 4090 / CPU."
    )
    labels: dict[str, str] = Field(default_factory=dict)


class Shaping(Strict):
    """From a score to a weight."""

    cool_down_min_s: Positive = Field(3, description="A saturated endpoint gets no new work for at least so long,")
    cool_down_max_s: Positive = Field(5, description="and at most so long (drawn at random) the first time.")
    cool_down_growth: Annotated[float, Field(ge=1, le=10)] = Field(
        2, description="Factor for each saturation that follows within a minute after the last cool-down."
    )
    cool_down_cap_s: Positive = Field(60, description="The longest cool-down, a longer Retry-After included.")
    ramp_points_per_s: Positive = Field(15, description="A score rises at most this fast after a cool-down or a start.")
    breaker_failures: Annotated[int, Field(ge=1, le=1000)] = Field(3, description="Failures in a row that open the breaker.")
    breaker_open_s: Positive = Field(30, description="After that it is half open: one attempt decides.")
    kv_limit: Share = Field(0.85, description="No new work at this KV usage while another endpoint has room.")
    floor_share: Share = Field(0.01, description="The least share of an endpoint that is in: it stays observed.")
    hysteresis: Share = Field(0.05, description="A weight that moved by less than this part of itself is not pushed.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.cool_down_min_s <= self.cool_down_max_s <= self.cool_down_cap_s:
            raise ValueError("cool_down_min_s <= cool_down_max_s <= cool_down_cap_s must hold")
        return self


class Balancing(Strict):
    """How Envoy applies the weights."""

    policy: Literal["least_request", "round_robin"] = "least_request"
    active_request_bias: Annotated[float, Field(ge=0, le=10)] = Field(
        1, description="least_request with unequal weights divides a weight by (requests in flight + 1) to this power."
    )


class Retries(Strict):
    """Retries before the first byte of an answer, always to another endpoint where there is one."""

    attempts: Annotated[int, Field(ge=0, le=10)] = Field(2, description="Retries after the first attempt; 0 is none.")
    status_codes: tuple[Annotated[int, Field(ge=400, le=599)], ...] = (429, 502, 503, 529)
    back_off_base_ms: Annotated[int, Field(ge=1, le=10_000)] = 25
    back_off_max_ms: Annotated[int, Field(ge=1, le=60_000)] = 250

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.back_off_base_ms > self.back_off_max_ms:
            raise ValueError("back_off_base_ms must not be above back_off_max_ms")
        return self


class SignalSources(Strict):
    """Where readings of the engines come from."""

    scrape: bool = Field(True, description="Read each engine's own /metrics.")
    scrape_interval_ms: Annotated[int, Field(ge=100, le=60_000)] = 1000
    scrape_timeout_ms: Annotated[int, Field(ge=50, le=60_000)] = 800
    scrape_path: Annotated[str, Field(pattern=r"^/\S*$")] = "/metrics"
    stale_after_s: Positive = Field(5, description="An older reading is unknown.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.scrape_timeout_ms > self.scrape_interval_ms:
            raise ValueError("scrape_timeout_ms must not be above scrape_interval_ms")
        return self


Engine = Literal["vllm"]


class Pool(Strict):
    """Endpoints that serve the same model(s)."""

    name: Name
    models: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        ("*",), min_length=1, description="Globs over the request's `model`; the first pool that matches serves."
    )
    engine: Engine = "vllm"
    endpoints: tuple[Endpoint, ...] = Field(min_length=1)
    scoring: ScoringPolicy = Field(default_factory=default_scoring)
    interval_ms: Annotated[int, Field(ge=50, le=10_000)] = Field(250, description="How often weights are computed.")
    shaping: Shaping = Shaping()
    balancing: Balancing = Balancing()
    retries: Retries = Retries()
    signals: SignalSources = SignalSources()

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        seen: set[str] = set()
        for endpoint in self.endpoints:
            if endpoint.address in seen:
                raise ValueError(f"endpoint {endpoint.address} is listed twice in pool {self.name!r}")
            seen.add(endpoint.address)
        return self

    def serves(self, model: str) -> bool:
        """Whether one of the globs matches `model` (case matters)."""
        return any(fnmatch.fnmatchcase(model, glob) for glob in self.models)


class Rule(Strict):
    """One rule of the rejection reader. All conditions given must hold; rules are tried in order, the first decides.

    Patterns are regular expressions, searched without regard to case; header and field patterns must match whole.
    """

    name: Name
    verdict: Verdict
    status: tuple[Annotated[int, Field(ge=200, le=599)], ...] = Field(
        (), description="Status codes; empty is any. 200 is an error event inside a stream."
    )
    headers: dict[str, Regex] = Field(default_factory=dict, description="Header name -> pattern of its value.")
    fields: dict[str, Regex] = Field(
        default_factory=dict,
        description="JSON path -> pattern of the value. `type` and `code` also stand for the error's own, "
        "wherever the body's shape puts them.",
    )
    text: Regex | None = Field(None, description="Pattern searched in the error's text (or the plain body).")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.status or self.headers or self.fields or self.text):
            raise ValueError(f"rule {self.name!r} has no condition: give status, headers, fields or text")
        return self


class Rejections(Strict):
    """How error answers are read."""

    rules: tuple[Rule, ...] = Field((), description="Tried before the bundled ones.")
    bundled: bool = Field(True, description="Use the bundled rules too.")


class Policy(Strict):
    """A whole policy file."""

    version: Literal[1]
    listen: Listen = Listen()
    services: Services = Services()
    ext_proc: ExtProc = ExtProc()
    state_file: str | None = Field(None, description="Where what was learned is kept over a restart.")
    rejections: Rejections = Rejections()
    pools: tuple[Pool, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [pool.name for pool in self.pools]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"pool name {name!r} is used twice")
        if self.ext_proc.workers > 1 and self.services.ext_proc.startswith("unix:"):
            raise ValueError("ext_proc.workers above 1 need services.ext_proc on TCP: a unix socket has one owner")
        return self
