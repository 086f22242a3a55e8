"""The policy as types. Every field says its unit in its name, its range in its type, and what it is for.

`trimtab schema` prints the JSON Schema that follows from this file, and `docs/reference/policy.md` has its tables. A
sentence of a description that begins with "0 " or "Empty " says what that value does.
"""

import fnmatch
import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from math import inf
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from trimtab.datapath import cluster_name
from trimtab.endpoint.request_classes import class_of
from trimtab.observation.kinds import Verdict
from trimtab.policy.by_strategy import ByStrategy
from trimtab.policy.classes import class_flaws
from trimtab.policy.discovery import DiscoveryPolicy
from trimtab.policy.metric import parse_metric
from trimtab.policy.needs import idle_sources, unmet_needs, unreadable_terms
from trimtab.policy.probe import Probe
from trimtab.policy.prometheus import Prometheus
from trimtab.policy.timeouts import Timeouts, timeout_flaws
from trimtab.policy.trust import trust_flaws
from trimtab.policy.types import FilePath, MetricText, Port, text_schema
from trimtab.policy.words import quoted, shown
from trimtab.scoring import ScoringPolicy, default_scoring, make_strategy
from trimtab.scoring.config import Positive, Share
from trimtab.strict import Flaw, Strict
from trimtab.tokens import BYTES_PER_TOKEN

_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.(?!-)[A-Za-z0-9_-]{1,63})*\.?")
_BROADCAST = ipaddress.IPv4Address("255.255.255.255")
_PORT = re.compile(r"[0-9]{1,5}")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PATH = re.compile(r"/\S*")
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/?#]+")
_WILDCARDS = {"0.0.0.0", "::"}


def split_host_port(text: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`.

    Raises ValueError, with the fix, for anything else.
    """
    host, sep, port = text.rpartition(":")
    if "://" in text:
        raise ValueError(f"{quoted(text)} must be host:port, without a scheme")
    if not sep or not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise ValueError(f"{quoted(text)} must be host:port, with a port of 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        return _ip(host[1:-1], 6), int(port)
    if ":" in host:
        raise ValueError(f"{quoted(text)}: write an IPv6 address in brackets, as in [::1]:8000")
    if not _HOST.fullmatch(host):
        raise ValueError(f"{quoted(text)}: {quoted(host)} is not a host name or an IP address")
    if host.rstrip(".").rpartition(".")[2].isdigit():
        return _ip(host, 4), int(port)
    return host, int(port)


def _ip(text: str, version: Literal[4, 6]) -> str:
    address = _read_ip(text)
    if address is None or address.version != version:
        raise ValueError(f"{quoted(text)} is not an IPv{version} address")
    return str(address)


def _read_ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if "%" in text:
        raise ValueError(f"{quoted(text)} has a zone: use an address that needs none")
    return address


def _own_ip(text: str) -> str:
    """An address that Envoy can listen on: it looks up no names for that."""
    address = _read_ip(text)
    if address is None:
        raise ValueError(f"{quoted(text)} must be an IP address, as in 127.0.0.1 or 0.0.0.0")
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        raise ValueError(f"{quoted(text)} must be written as {address.ipv4_mapped}")
    return str(address)


def _host_port(text: str) -> str:
    split_host_port(text)
    return text


def no_endpoint(host: str) -> str:
    """Why no engine can be at an address, such as "is of many"; empty for a host name, or if one can."""
    address = _read_ip(host)
    if address is None:
        return ""
    if address.is_unspecified:
        return "is of no machine: it is what one listens on"
    if address.is_multicast or address == _BROADCAST:
        return "is of many machines"
    return ""


def _endpoint_address(text: str) -> str:
    host, _ = split_host_port(text)
    if why := no_endpoint(host):
        raise ValueError(f"{quoted(host)} {why}: name the engine's own address")
    return text


def _service_address(text: str) -> str:
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/") or len(path.encode()) > 100:
            raise ValueError(f"{quoted(text)}: a unix socket needs an absolute path of at most 100 bytes")
        return text
    return _host_port(text)


def is_name(address: str) -> bool:
    """Whether the host of a service's address must be looked up."""
    return not address.startswith("unix:") and _read_ip(split_host_port(address)[0]) is None


def _own_address(text: str) -> str:
    if not text.startswith("unix:"):
        _own_ip(split_host_port(text)[0])
    return _service_address(text)


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{quoted(text)} is not a regular expression: {error}") from None
    return text


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(
            f"{quoted(text)} must be at most 63 lower-case letters, digits or inner hyphens, as in llama-70b"
        )
    return text


def _path(text: str) -> str:
    if not _PATH.fullmatch(text):
        raise ValueError(f"{quoted(text)} must be a path that begins with /, without blanks")
    return text


def _origin(text: str) -> str:
    if not _ORIGIN.fullmatch(text):
        raise ValueError(f"{quoted(text)} must be * or an origin without a path, as in https://chat.example.com")
    return text


def _no_bool(value: object) -> object:
    if isinstance(value, bool):  # which equals 1 or 0
        raise ValueError(f"must be a number, not {shown(value)}")
    return value


IpAddress = Annotated[str, AfterValidator(_own_ip), text_schema("127.0.0.1", r"^[0-9A-Fa-f.:]+$")]
HostPort = Annotated[str, AfterValidator(_host_port), text_schema("10.0.0.11:8000", r"^\S+:[0-9]{1,5}$")]
EndpointAddress = Annotated[str, AfterValidator(_endpoint_address), text_schema("10.0.0.11:8000", r"^\S+:[0-9]{1,5}$")]
ServiceAddress = Annotated[
    str, AfterValidator(_service_address), text_schema("127.0.0.1:18000", r"^(unix:/.+|\S+:[0-9]{1,5})$")
]
OwnAddress = Annotated[
    str, AfterValidator(_own_address), text_schema("127.0.0.1:9901", r"^(unix:/.+|[0-9A-Fa-f.:\[\]]+:[0-9]{1,5})$")
]
Regex = Annotated[str, AfterValidator(_regex), WithJsonSchema({"type": "string", "format": "regex"})]
Name = Annotated[str, AfterValidator(_name), text_schema("llama-70b", f"^{_NAME.pattern}$")]
UrlPath = Annotated[str, AfterValidator(_path), text_schema("/metrics", f"^{_PATH.pattern}$")]
Origin = Annotated[str, AfterValidator(_origin), text_schema("https://chat.example.com", f"^({_ORIGIN.pattern})$")]
Glob = Annotated[str, Field(min_length=1)]
Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]


def _falling(value: Strict, *names: str) -> Iterator[Flaw]:
    """A flaw for each two neighbours of fields that must not fall from left to right."""
    for low, high in pairwise(names):
        least, most = getattr(value, low), getattr(value, high)
        if least > most:
            unset = {low, high} - value.model_fields_set
            of_low, of_high = (", the default" if name in unset else "" for name in (low, high))
            fix = "".join(f": set {name} too" for name in unset)
            yield Flaw(f"{low} ({least:g}{of_low}) must not be above {high} ({most:g}{of_high}){fix}", (high,), (low,))


class Listen(Strict):
    """Where clients connect."""

    address: IpAddress = Field(
        "127.0.0.1", description="IP address that Envoy listens on; 0.0.0.0 for all. Quote an IPv6 address."
    )
    port: Port = Field(10000, description="TCP port that Envoy listens on.")
    max_body_mib: Annotated[int, Field(ge=1, le=256)] = Field(
        16, description="Largest request body. A request is kept until it can no longer be retried."
    )
    stream_idle_timeout_s: Positive = Field(
        300,
        description="A stream silent for so long is ended. One that vLLM had preempted was silent for 14 s.",
    )
    max_stream_s: Positive = Field(3600, description="The longest a request may take in all.")
    paths: tuple[UrlPath, ...] = Field(
        ("/v1/", "/health"),
        min_length=1,
        description="Prefixes of the paths that are passed on to engines. Others get a 404: an engine's own "
        "metrics and management are not for clients. / passes everything on.",
    )
    cors_allow_origins: tuple[Origin, ...] = Field(
        ("*",), description="Origins whose browsers may call the API; * is any. Empty switches CORS off."
    )

    def flaws(self) -> Iterator[Flaw]:
        yield from _falling(self, "stream_idle_timeout_s", "max_stream_s")

    @property
    def socket(self) -> str:
        """The address as `host:port`."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class Services(Strict):
    """Where our own services listen: TCP (`127.0.0.1:18000`) or a unix socket (`unix:/absolute/path`)."""

    xds: ServiceAddress = Field("127.0.0.1:18000", description="The xDS server, which Envoy asks for its resources.")
    ext_proc: ServiceAddress = Field("127.0.0.1:18001", description="The ext_proc service, which Envoy reports to.")
    admin: HostPort = Field("127.0.0.1:18080", description="/metrics, /endpoints, /healthz, /readyz. TCP only.")
    envoy_admin: OwnAddress = Field(
        "127.0.0.1:9901", description="Envoy's own admin pages. An IP address with a port, or a unix socket."
    )
    standby: OwnAddress | None = Field(
        None,
        description="Where `trimtab standby` serves an Envoy that starts while xds is down; it keeps its view beside "
        "state_file. null: such an Envoy waits.",
    )


class ExtProc(Strict):
    """The observation service."""

    workers: Annotated[int, Field(ge=1, le=64)] = Field(1, description="Processes behind the one address.")
    sample_percent: Percent = Field(
        100,
        description="Share of attempts whose answers are watched, before the CPU budget lowers it. "
        "0 watches none: TTFT is then the time of the first body byte.",
    )
    full_stream_percent: Percent = Field(
        5,
        description="Share of the watched that are read to their end (inter-token times, late errors); of an endpoint "
        "that broke one, all. 0 reads none to the end.",
    )
    cpu_budget_cores: Positive = Field(0.5, description="CPU that observation may use, in cores, over all workers.")
    reject_timeout_ms: Annotated[int, Field(ge=10, le=5000)] = Field(
        100, description="The longest an error answer is held while its body is judged."
    )


class Endpoint(Strict):
    """One engine."""

    address: EndpointAddress = Field(
        description="Host name or IP address with a port, without a scheme. IPv6: [::1]:8000."
    )
    capacity: Positive | None = Field(
        None,
        description="Relative to the other endpoints of the pool, e.g. 10 / 4 / 1 for A100 / 4090 / CPU.",
    )
    labels: dict[str, str] = Field(default_factory=dict, description="Free-form names and values, all of them text.")


class Weighting(Strict):
    """From a score to a weight."""

    cool_down_min_s: Positive = Field(3, description="A saturated endpoint gets no new work for at least so long,")
    cool_down_max_s: Positive = Field(5, description="and at most so long (drawn at random) the first time.")
    cool_down_growth: Annotated[float, Field(ge=1, le=10)] = Field(
        2, description="Factor for each saturation that follows within a minute after the last cool-down."
    )
    cool_down_cap_s: Positive = Field(60, description="The longest cool-down, a longer Retry-After included.")
    slow_start_points_per_s: Positive = Field(
        15, description="A score rises at most this fast after a cool-down or a start."
    )
    breaker_failures: Annotated[int, Field(ge=1, le=1000)] = Field(
        3, description="Failures in a row that open the breaker."
    )
    breaker_error_share: Share = Field(
        0.05,
        description="A larger share of failures opens the breaker too, if it is twice that of the other endpoints. "
        "0 takes any failure for too many; 1 leaves it to the failures in a row.",
    )
    breaker_error_sample: Annotated[int, Field(ge=2, le=10_000)] = Field(
        20, description="Attempts, within about half a minute, that a share of failures needs to count."
    )
    breaker_open_s: Positive = Field(
        30, description="After that it is half open: one attempt decides. If that fails, it opens for twice as long,"
    )
    breaker_open_cap_s: Positive = Field(240, description="and at most so long.")
    kv_limit: Share = Field(
        0.85,
        description="No new work at this KV usage while another endpoint has room. "
        "0 counts every endpoint as full, so none has room and the limit does nothing.",
    )
    floor_share: Share = Field(
        0.01,
        description="The least share of an endpoint that is in: it stays observed. "
        "0 is no floor: an endpoint may get so little work that nothing more is learned of it.",
    )
    hysteresis: Share = Field(
        0.05,
        description="A weight that moved by less than this part of it is not pushed. 0 pushes every change.",
    )

    def flaws(self) -> Iterator[Flaw]:
        yield from _falling(self, "cool_down_min_s", "cool_down_max_s", "cool_down_cap_s")
        yield from _falling(self, "breaker_open_s", "breaker_open_cap_s")


class FailureSignals(Strict):
    """Failure signals beyond errors. Each opens the endpoint's breaker until what was waited for comes."""

    silent_after_s: Positive = Field(
        3, description="An endpoint is silent if all that was sent to it waits, without a token or an answer, so long,"
    )
    silent_factor: Annotated[float, Field(ge=1, le=1000)] = Field(
        3, description="and so many times as long as its P99, more for a long prompt."
    )
    stalled_after_s: Positive = Field(
        30,
        description="It is stalled if streams that are read whole show nothing more, and no other goes on, for so "
        "long; twice as long if its counter of tokens moves. Sequences that vLLM had preempted were silent for 24 s.",
    )


class Answer(Strict):
    """An answer that Envoy gives itself, in the shape of the API that was asked."""

    message: Annotated[str, Field(min_length=1, max_length=1000)] = Field(description="What people are told.")
    status: Annotated[int, Field(ge=500, le=599)] = Field(503, description="Status code.")
    retry_after_s: Annotated[int, Field(ge=1, le=86_400)] = Field(5, description="When to come again, as Retry-After.")


class Fallback(Strict):
    """Who serves in place of a pool: exactly one of `pool`, `address` and `answer`."""

    pool: Name | None = Field(None, description="Another pool; its engines must know the names that reach them.")
    address: HostPort | None = Field(None, description="A cache, or a gateway elsewhere, over plain HTTP.")
    answer: Answer | None = Field(None, description="A static answer. Nothing after it is ever reached.")

    def flaws(self) -> Iterator[Flaw]:
        if sum(each is not None for each in (self.pool, self.address, self.answer)) != 1:
            yield Flaw("a fallback is exactly one of pool, address and answer", ())

    @property
    def name(self) -> str:
        """What headers and metrics call it."""
        return self.pool or self.address or "answer"


class Balancing(Strict):
    """How Envoy applies the weights."""

    policy: Literal["least_request", "round_robin"] = Field(
        "least_request",
        description="least_request also counts what is in flight at this moment; round_robin does not.",
    )
    active_request_bias: Annotated[float, Field(ge=0, le=10)] | None = Field(
        None,
        description="least_request: unequal weights are divided by (requests in flight + 1) to this power. "
        "0 leaves the weights as they are. Default: 0 under a strategy that counts what is in flight itself, else 1.",
    )


class Retries(Strict):
    """Retries before the first byte of an answer, always to another endpoint where there is one.

    An engine that is full, broken or leaving is left for another; a caller's quota never is. Refusals are retried only
    while another endpoint of the pool takes new work.
    """

    attempts: Annotated[int, Field(ge=0, le=10)] = Field(2, description="Retries after the first attempt. 0 is none.")
    status_codes: tuple[Annotated[int, Field(ge=400, le=599)], ...] = Field(
        (429, 502, 503, 529),
        description="Status codes that are retried when the answer does not say why. An unread 429 never is: most are "
        "quotas. Empty retries such answers with no code.",
    )
    back_off_base_ms: Annotated[int, Field(ge=1, le=10_000)] = Field(
        25,
        description="The first wait is up to so long (drawn at random), each further one twice as long,",
    )
    back_off_max_ms: Annotated[int, Field(ge=1, le=60_000)] = Field(250, description="and at most so long.")

    def flaws(self) -> Iterator[Flaw]:
        yield from _falling(self, "back_off_base_ms", "back_off_max_ms")


class LengthClass(Strict):
    """Requests whose prompts are about as long: they get weights of their own."""

    name: Name = Field(description="A name of its own in the pool, for pages and metrics.")
    up_to_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        None, description="Prompt tokens of its longest request, about. null: no limit, for the last class only."
    )
    first_token_deadline_ms: Annotated[int, Field(ge=50, le=600_000)] | None = Field(
        None, description="The gate's deadline for this class, whose prompts take their time; null: the gate's own."
    )


class Gate(Strict):
    """The first-token gate: a streamed answer is held until its first token, so silence and errors can be retried.

    Needs retries. Costs two calls to the ext_proc service for each streamed attempt, outside of its CPU budget.
    """

    enabled: bool = Field(False, description="Hold streamed answers until their first token.")
    first_token_deadline_ms: Annotated[int, Field(ge=50, le=600_000)] = Field(
        30_000,
        description="A streamed attempt without a token for so long is given up for one on another endpoint. Choose "
        "more than the queue of a healthy one takes.",
    )


class SignalNames(Strict):
    """Which metric carries a signal, for engines of your own and for renamed metrics.

    A metric is written as in PromQL, `queue_depth{queue="chat"}`; `a + b` is a sum, and `cache_percent / 100`
    makes a share of a percentage. What is not named is read by the engine's own name.
    """

    waiting: MetricText | None = Field(None, description="Requests in the engine's queue.")
    running: MetricText | None = Field(None, description="Sequences that are being decoded.")
    kv_usage: MetricText | None = Field(None, description="KV cache in use, 0 to 1.")
    generated_tokens: MetricText | None = Field(None, description="Generated tokens, a counter.")
    prompt_tokens: MetricText | None = Field(None, description="Tokens of prompts, a counter.")
    preemptions: MetricText | None = Field(None, description="Preempted sequences, a counter.")
    prefix_queries: MetricText | None = Field(None, description="Tokens looked up in the prefix cache, a counter.")
    prefix_hits: MetricText | None = Field(None, description="Those of them that were there, a counter.")
    prefix_hit_rate: MetricText | None = Field(None, description="Hits of the prefix cache, 0 to 1, if not counted.")
    ttft: MetricText | None = Field(None, description="Times to first token in seconds, a histogram.")
    inter_token: MetricText | None = Field(None, description="Times between tokens in seconds, a histogram.")
    max_model_len: MetricText | None = Field(None, description="Tokens that prompt and answer may have together.")
    process_start: MetricText | None = Field(None, description="Start of the process, Unix seconds.")

    @property
    def named(self) -> Mapping[str, str]:
        """The signals that are named, with their metrics."""
        return {name: metric for name in type(self).model_fields if (metric := getattr(self, name)) is not None}

    def flaws(self) -> Iterator[Flaw]:
        for name in ("ttft", "inter_token"):
            metric = getattr(self, name)
            if metric is not None and len(parse_metric(metric).terms) > 1:
                yield Flaw(f"{name} is a histogram, which cannot be a sum; name one", (name,))


class ScrapeTls(Strict):
    """TLS towards the engines' metrics. The name in the certificate is the endpoint's, as the policy writes it."""

    ca_file: FilePath | None = Field(None, description="Certificates to trust, PEM. null: the system's.")
    skip_verify: bool = Field(False, description="Take any certificate: whoever is in between can read and lie.")

    def flaws(self) -> Iterator[Flaw]:
        yield from trust_flaws(self.ca_file, self.skip_verify)


class SignalSources(Strict):
    """Where readings of the engines come from."""

    scrape: bool = Field(True, description="Read each engine's own metrics page.")
    scrape_interval_ms: Annotated[int, Field(ge=100, le=60_000)] = Field(1000, description="How often each is read.")
    scrape_timeout_ms: Annotated[int, Field(ge=50, le=60_000)] = Field(
        800, description="A reading that takes longer is given up."
    )
    scrape_path: UrlPath | None = Field(
        None, description="Where the engine shows its metrics. null: where its kind usually does."
    )
    scrape_port: Port | None = Field(
        None, description="Port of the metrics. null: the endpoint's own, or where its kind usually has them."
    )
    scrape_select: dict[str, str] = Field(
        default_factory=dict,
        description="Labels with the values that count, where a page has several models or ranks; a series that "
        "lacks the label counts for all. Empty counts every series: queues and tokens add up, the fullest "
        "cache counts.",
    )
    scrape_token_file: FilePath | None = Field(
        None, description="File with a bearer token for the metrics page; read again when it changes."
    )
    scrape_tls: ScrapeTls | None = Field(None, description="Read the page over TLS. null: plain HTTP.")
    names: SignalNames = Field(default_factory=SignalNames, description="Metrics of your own, or renamed ones.")
    orca: bool = Field(
        False,
        description="Have engines tell their load in a header of answers that are not streamed, and take it out on "
        "the way to the client. vLLM does so, and logs a line for each such request.",
    )
    stale_after_s: Positive = Field(5, description="An older reading is unknown.")
    prometheus: Prometheus | None = Field(None, description="A Prometheus server that is asked too. null: none.")

    def flaws(self) -> Iterator[Flaw]:
        yield from _falling(self, "scrape_timeout_ms", "scrape_interval_ms")


Engine = Literal[
    "vllm", "sglang", "trtllm-serve", "triton", "tgi", "llamacpp", "lmdeploy", "ray-serve", "ollama", "custom"
]


class FaultInjection(Strict):
    """Faults that Envoy makes itself, before an endpoint is chosen: to see what clients and alarms do then."""

    abort_percent: Percent = Field(0, description="Share of the pool's requests that are refused. 0 refuses none.")
    abort_status: Annotated[int, Field(ge=400, le=599)] = Field(503, description="The status that they get.")
    delay_percent: Percent = Field(0, description="Share that is held up. 0 holds up none.")
    delay_ms: Annotated[int, Field(ge=1, le=600_000)] = Field(1000, description="For so long.")


class Pool(Strict):
    """Endpoints that serve the same model(s)."""

    name: Name = Field(description="A name of its own; the names of Envoy's clusters begin with it.")
    models: tuple[Glob, ...] = Field(
        ("*",),
        min_length=1,
        description="Globs over the request's `model`: case matters, * is any characters, ? one, [ab] one of these. "
        "The first pool that matches serves. Names are matched, not rewritten: its engines must know them.",
    )
    engine: Engine = Field(
        "vllm",
        description="What the endpoints run: the names of its metrics follow from it. ollama shows none; for custom "
        "they are in signals.names.",
    )
    endpoints: tuple[Endpoint, ...] = Field((), description="The engines. Empty is for `discovery` only.")
    discovery: DiscoveryPolicy | None = Field(
        None,
        description="Where endpoints are found, in place of `endpoints`: exactly one of file, dns, http, kubernetes.",
    )
    scoring: Annotated[ScoringPolicy, ByStrategy(default_scoring().strategy)] = Field(
        default_factory=default_scoring, description="How an endpoint is scored: a `strategy` with its numbers."
    )
    classes: Annotated[tuple[LengthClass, ...], Field(max_length=8)] = Field(
        (),
        description="Length classes, short to long, each with weights of its own: see "
        "docs/concepts/length-classes.md. Empty is one for all.",
    )
    class_bytes_per_token: Annotated[float, Field(ge=1, le=100)] = Field(
        BYTES_PER_TOKEN, description="Bytes of a request's body that count as one token where its class is chosen."
    )
    interval_ms: Annotated[int, Field(ge=50, le=10_000)] = Field(100, description="How often weights are computed.")
    weighting: Weighting = Field(default_factory=Weighting)
    failure_signals: FailureSignals = Field(default_factory=FailureSignals)
    balancing: Balancing = Field(default_factory=Balancing)
    retries: Retries = Field(
        default_factory=Retries, description="Before the first byte, always to another endpoint where there is one."
    )
    gate: Gate = Field(
        default_factory=Gate,
        description="Hold streamed answers until their first token, so that silence can be retried.",
    )
    timeouts: Timeouts = Field(
        default_factory=Timeouts, description="How long a request may be silent, and last, where not as under listen."
    )
    signals: SignalSources = Field(default_factory=SignalSources)
    probe: Probe = Field(default_factory=Probe)
    fallbacks: tuple[Fallback, ...] = Field(
        (), description="Who serves while the pool is out, in this order. Empty: nobody, so then all endpoints are in."
    )
    failover_below: Share = Field(
        0,
        description="With less than this part of its capacity in, a pool keeps proportionately less of its work, and "
        "its fallbacks get the rest. 0 keeps all of it until nothing is in.",
    )
    fault_injection: FaultInjection = Field(default_factory=FaultInjection)

    def flaws(self) -> Iterator[Flaw]:
        if not self.endpoints and self.discovery is None:
            yield Flaw("no endpoints: list them, or say under discovery where they are found", ("endpoints",), ())
        if self.endpoints and self.discovery is not None:
            yield Flaw("a pool lists its endpoints or has discovery, not both; remove one", ("discovery",))
        for flaw in used_twice(self.endpoints):
            yield Flaw(flaw.message, *(("endpoints", *place) for place in flaw.at))
        if self.engine == "custom" and self.signals.scrape and not self.signals.names.named:
            yield Flaw(
                "engine custom has no metrics until signals.names says which; or set signals.scrape to false",
                ("signals", "names"),
                ("engine",),
            )
        if self.gate.enabled and self.retries.attempts == 0:
            yield Flaw(
                "the gate has nothing to turn to without retries: set retries.attempts to 1 or more",
                ("gate", "enabled"),
                ("retries", "attempts"),
            )
        yield from unreadable_terms(self)
        yield from idle_sources(self)
        yield from class_flaws(self)
        if self.failover_below and not self.fallbacks:
            yield Flaw(
                "failover_below needs fallbacks, which get what it keeps away from the pool", ("failover_below",)
            )
        for index, fallback in enumerate(self.fallbacks):
            if fallback.answer is not None and index + 1 < len(self.fallbacks):
                yield Flaw("nothing after an answer is ever reached: put it last", ("fallbacks", index, "answer"))
        for flaw in _used_twice("fallback", "fallbacks", [fallback.name for fallback in self.fallbacks]):
            yield Flaw(flaw.message, flaw.at[0][:-1] if flaw.at else ())

    @property
    def class_limits(self) -> Mapping[str, float]:
        """The longest body [bytes] of each length class, short to long; infinity for the last."""
        return {
            one.name: inf if one.up_to_tokens is None else float(int(one.up_to_tokens * self.class_bytes_per_token))
            for one in self.classes
        }

    def class_of(self, prompt_bytes: int) -> int:
        """The place among its length classes of a request with such a body; 0 in a pool that has none."""
        return class_of(tuple(self.class_limits.values()), prompt_bytes)

    @property
    def clusters(self) -> Sequence[str]:
        """The names of its clusters: one, or one for each length class, short to long."""
        return [cluster_name(self.name, one.name) for one in self.classes] or [cluster_name(self.name)]

    @property
    def request_bias(self) -> float:
        """The power of requests in flight by which Envoy divides weights."""
        bias = self.balancing.active_request_bias
        return make_strategy(self.scoring).request_bias if bias is None else bias

    def serves(self, model: str) -> bool:
        """Whether one of the globs matches `model` (case matters)."""
        return any(fnmatch.fnmatchcase(model, glob) for glob in self.models)


class Rule(Strict):
    """One rule of the rejection reader. All its conditions must hold; the first rule that fits decides.

    Patterns are regular expressions, without regard to case; those of headers and fields must match whole.
    """

    name: Name = Field(description="A name of its own, for logs and metrics.")
    verdict: Verdict = Field(description="What an answer that fits is taken for.")
    status: tuple[Annotated[int, Field(ge=200, le=599)], ...] = Field(
        (), description="Status codes; 200 is an error event inside a stream. Empty is any."
    )
    headers: dict[str, Regex] = Field(
        default_factory=dict,
        description="Header name -> pattern of its value. `*` in the name stands for any characters.",
    )
    fields: dict[str, Regex] = Field(
        default_factory=dict,
        description="JSON path -> pattern of the value. A path is looked up in the error itself, wherever "
        "the body's shape puts it (so `type` and `code` are the error's own), then outward; `$.path` in the "
        "whole body only. A step into a list goes into every item.",
    )
    text: Regex | None = Field(None, description="Pattern searched in the error's text (or the plain body).")

    def flaws(self) -> Iterator[Flaw]:
        if not (self.status or self.headers or self.fields or self.text):
            yield Flaw(f"rule {quoted(self.name)} has no condition: give it status, headers, fields or text")


class Rejections(Strict):
    """How error answers are read."""

    rules: tuple[Rule, ...] = Field((), description="Tried before the bundled ones.")
    bundled: bool = Field(True, description="Use the bundled rules too.")

    def flaws(self) -> Iterator[Flaw]:
        yield from _used_twice("rule", "rules", [rule.name for rule in self.rules])


class Policy(Strict):
    """A whole policy file."""

    version: Annotated[Literal[1], BeforeValidator(_no_bool)] = Field(description="Of the file's format.")
    listen: Listen = Field(default_factory=Listen)
    services: Services = Field(default_factory=Services)
    ext_proc: ExtProc = Field(default_factory=ExtProc)
    state_file: Annotated[str, Field(min_length=1)] | None = Field(
        "auto",
        description="Where what was learned is kept over a restart; a relative path begins at the policy file's "
        "folder. Written every 5 s, and at once when an endpoint goes out or comes back. auto: a file for each policy "
        "path, under $STATE_DIRECTORY, $XDG_STATE_HOME or ~/.local/state. null: it is not kept.",
    )
    rejections: Rejections = Field(default_factory=Rejections)
    pools: tuple[Pool, ...] = Field(min_length=1, description="What is served, and by which engines.")

    @property
    def deadlined_pools(self) -> frozenset[str]:
        """The pools in whose clusters an attempt may have a first-token deadline: those with the gate, and those that
        stand in for one, because a request keeps its deadline, whoever serves it."""
        gated = [pool for pool in self.pools if pool.gate.enabled]
        fallbacks = {fallback.pool for pool in gated for fallback in pool.fallbacks if fallback.pool is not None}
        return frozenset(pool.name for pool in gated) | fallbacks

    def flaws(self) -> Iterator[Flaw]:
        yield from _used_twice("pool", "pools", [pool.name for pool in self.pools])
        yield from self._unreached_globs()
        yield from self._shared_addresses()
        yield from self._unmet_needs()
        yield from self._unknown_fallbacks()
        if self.ext_proc.workers > 1 and self.services.ext_proc.startswith("unix:"):
            yield Flaw(
                "ext_proc.workers above 1 need services.ext_proc on TCP, as in 127.0.0.1:18001: "
                "a unix socket has one owner",
                ("services", "ext_proc"),
            )
        if (self.services.standby or "").startswith("unix:") and is_name(self.services.xds):
            yield Flaw(
                f"{quoted(self.services.xds)} is a name, and Envoy takes no unix socket beside one: name an IP address "
                "for services.xds, or for this one, as in 127.0.0.1:18002",
                ("services", "standby"),
            )

        for index, pool in enumerate(self.pools):
            if pool.gate.enabled and self.ext_proc.workers > 1:
                yield Flaw(
                    "the gate needs one ext_proc worker that sees all of an attempt: set ext_proc.workers to 1",
                    ("pools", index, "gate", "enabled"),
                    ("ext_proc", "workers"),
                )
            for flaw in timeout_flaws(self.listen, pool):
                yield Flaw(flaw.message, *(("pools", index, *place) for place in flaw.at))

    def _unreached_globs(self) -> Iterator[Flaw]:
        for index, pool in enumerate(self.pools):
            earlier = [(before.name, glob) for before in self.pools[:index] for glob in before.models]
            for position, glob in enumerate(pool.models):
                taken = next(((name, wider) for name, wider in earlier if _covers(wider, glob)), None)
                if taken is not None:
                    name, wider = taken
                    yield Flaw(
                        f"{quoted(glob)} is never reached: pool {quoted(name)} above takes {quoted(wider)}; "
                        "change one of them, or put the narrower pool first",
                        ("pools", index, "models", position),
                    )

    def _unmet_needs(self) -> Iterator[Flaw]:
        for index, pool in enumerate(self.pools):
            for unmet in unmet_needs(pool, self.ext_proc):
                yield Flaw(unmet, ("pools", index, "scoring", "strategy"))

    def _unknown_fallbacks(self) -> Iterator[Flaw]:
        names = [pool.name for pool in self.pools]
        for index, pool in enumerate(self.pools):
            for position, fallback in enumerate(pool.fallbacks):
                place = ("pools", index, "fallbacks", position, "pool")
                if fallback.pool == pool.name:
                    yield Flaw("a pool cannot stand in for itself", place)
                elif fallback.pool is not None and fallback.pool not in names:
                    yield Flaw(f"{quoted(fallback.pool)} is no pool; there is {', '.join(names)}", place)

    def _shared_addresses(self) -> Iterator[Flaw]:
        ours = [(("listen", "port"), self.listen.socket)]
        ours += [(("services", name), address) for name, address in self.services if address is not None]
        for (one, address), (other, too_near) in combinations(ours, 2):
            if _collide(address, too_near):
                yield Flaw(
                    f"{'.'.join(one)} ({address}) and {'.'.join(other)} ({too_near}) cannot share an address",
                    other,
                    one,
                )
        reached = {_canonical(self.listen.address), "127.0.0.1", "::1"}
        for index, pool in enumerate(self.pools):
            for position, endpoint in enumerate(pool.endpoints):
                host, _ = split_host_port(endpoint.address)
                if _canonical(host) in reached and _collide(endpoint.address, self.listen.socket):
                    yield Flaw(
                        f"{quoted(endpoint.address)} is where Envoy listens: requests would go in a circle",
                        ("pools", index, "endpoints", position, "address"),
                    )
            for position, fallback in enumerate(pool.fallbacks):
                if fallback.address is not None and _collide(fallback.address, self.listen.socket):
                    yield Flaw(
                        f"{quoted(fallback.address)} is where Envoy listens: requests would go in a circle",
                        ("pools", index, "fallbacks", position, "address"),
                    )


def used_twice(endpoints: Sequence[Endpoint]) -> Iterator[Flaw]:
    """A flaw for each endpoint at an address that an earlier one has."""
    first: dict[tuple[str, int], int] = {}
    for index, endpoint in enumerate(endpoints):
        host, port = split_host_port(endpoint.address)
        before = first.setdefault((_canonical(host), port), index)
        if before != index:
            yield Flaw(
                f"{quoted(endpoint.address)} is already endpoints[{before}] of this pool; remove one",
                (index, "address"),
            )


def _used_twice(what: str, key: str, names: list[str]) -> Iterator[Flaw]:
    for index, name in enumerate(names):
        before = names.index(name)
        if before != index:
            yield Flaw(
                f"{quoted(name)} is already the name of {key}[{before}]; give each {what} its own",
                (key, index, "name"),
            )


def _covers(glob: str, other: str) -> bool:
    """Whether `glob` surely matches all that `other` matches.

    To read the wildcards of `other` as plain characters is right as long as only a `*` of `glob` takes them.
    """
    if set("*?[") & set(other) and set("?[]") & set(glob):
        return glob == other
    return fnmatch.fnmatchcase(other, glob)


def _canonical(host: str) -> str:
    name = host.lower().rstrip(".")
    return "127.0.0.1" if name == "localhost" else name


def _collide(address: str, other: str) -> bool:
    """Whether two sockets cannot both listen."""
    if address.startswith("unix:") or other.startswith("unix:"):
        return address == other
    (host, port), (other_host, other_port) = split_host_port(address), split_host_port(other)
    return port == other_port and (
        _canonical(host) == _canonical(other_host) or not _WILDCARDS.isdisjoint((host, other_host))
    )
