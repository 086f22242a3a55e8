"""The metrics that count what happens: their names, labels and buckets."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from xds_server.ads.snapshot import TypeUrl

# From a cached prompt on a fast machine to a long one behind a full queue.
_TTFT_BUCKETS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 40, 80, 160,
)  # fmt: skip
_LATENCY_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_LOOP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75, 1, 2.5, 5, 10)
_ACK_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_STEP_BUCKETS = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


class MetricFamilies:
    """Every family that `Metrics` counts in, declared in `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        endpoint = ("pool", "endpoint")
        self.ttft = Histogram(
            "trimtab_ttft_seconds",
            "From the start of an attempt to the first chunk with generated content.",
            endpoint,
            registry=registry,
            buckets=_TTFT_BUCKETS,
        )
        self.attempts = Counter(
            "trimtab_attempts",
            "Attempts that have ended, by outcome and status code; 0 is none.",
            (*endpoint, "outcome", "code"),
            registry=registry,
        )
        self.rejections = Counter(
            "trimtab_rejections",
            "Error answers that were read, by verdict.",
            (*endpoint, "verdict"),
            registry=registry,
        )
        self.answers = Counter(
            "trimtab_answers_read",
            "Unary answers, and streams without a token, that were read, by whether they carry model output.",
            (*endpoint, "output"),
            registry=registry,
        )
        self.failure_signals = Counter(
            "trimtab_failure_signals",
            "Failure signals of an endpoint, by kind; docs/concepts/health.md says what follows from each.",
            (*endpoint, "signal"),
            registry=registry,
        )
        self.scrapes = Counter(
            "trimtab_scrapes",
            "Readings of the engine's own metrics, the failed ones too.",
            endpoint,
            registry=registry,
        )
        self.scrape_errors = Counter(
            "trimtab_scrape_errors",
            "Readings of the engine's own metrics that failed.",
            endpoint,
            registry=registry,
        )
        self.probes = Counter(
            "trimtab_probes",
            "Probes that were answered or given up, by what they found.",
            (*endpoint, "result"),
            registry=registry,
        )
        self.probe_ttft = Histogram(
            "trimtab_probe_ttft_seconds",
            "From the start of a probe to its token. Probes are not in trimtab_ttft_seconds.",
            endpoint,
            registry=registry,
            buckets=_TTFT_BUCKETS,
        )
        self.queries = Counter(
            "trimtab_prometheus_queries",
            "Questions to a Prometheus server, the failed ones too.",
            ("pool", "signal"),
            registry=registry,
        )
        self.query_errors = Counter(
            "trimtab_prometheus_query_errors",
            "Questions to a Prometheus server that failed.",
            ("pool", "signal"),
            registry=registry,
        )
        self.routed = Counter(
            "lb_route_decision",
            "Attempts sent to a backend, by the strategy that weighs it (method) and its state (reason).",
            ("pool", "backend", "method", "reason"),
            registry=registry,
        )
        self.latency = Histogram(
            "lb_upstream_latency_seconds",
            "From the start of an attempt to its end.",
            ("pool", "backend"),
            registry=registry,
            buckets=_LATENCY_BUCKETS,
        )
        self.step = Histogram(
            "trimtab_step_seconds",
            "Duration of one computation of a pool's weights.",
            ("pool",),
            registry=registry,
            buckets=_STEP_BUCKETS,
        )
        self.loop = Histogram(
            "trimtab_loop_seconds",
            "From the oldest evidence of a source that a pushed decision took in to the ACK of each Envoy.",
            ("pool", "source"),
            registry=registry,
            buckets=_LOOP_BUCKETS,
        )
        self.envoys = Gauge(
            "trimtab_envoys_connected",
            "Open discovery streams, by protocol.",
            ("protocol",),
            registry=registry,
        )
        self.pushes = Counter("trimtab_xds_pushes", "Responses sent, by type.", ("type",), registry=registry)
        self.pushed_resources = Counter(
            "trimtab_xds_pushed_resources", "Resources sent, by type.", ("type",), registry=registry
        )
        self.pushed_bytes = Counter("trimtab_xds_pushed_bytes", "Bytes sent, by type.", ("type",), registry=registry)
        self.acks = Counter(
            "trimtab_xds_acks", "Responses that an Envoy has accepted, by type.", ("type",), registry=registry
        )
        self.nacks = Counter(
            "trimtab_xds_nacks", "Responses that an Envoy has refused, by type.", ("type",), registry=registry
        )
        self.ack_delay = Histogram(
            "trimtab_xds_ack_seconds",
            "From a push to its ACK, by type.",
            ("type",),
            registry=registry,
            buckets=_ACK_BUCKETS,
        )
        # A series that begins at 1 has not increased, for Prometheus: the first refusal would raise no alert.
        for kind in TypeUrl:
            for counter in (self.pushes, self.acks, self.nacks):
                counter.labels(kind.name)
        self.watch_share = Gauge(
            "trimtab_watch_share_ratio", "Part of the attempts that is watched.", registry=registry
        )
        self.observation_cpu = Counter(
            "trimtab_observation_cpu_seconds", "CPU time used by observing processes.", registry=registry
        )
        self.watched = Counter("trimtab_attempts_watched", "Answers that were watched.", registry=registry)
        self.gated = Counter(
            "trimtab_gate_releases",
            "Streamed answers that the first-token gate has held, by why it let go of them.",
            ("release",),
            registry=registry,
        )
        self.dropped = Counter(
            "trimtab_observations_dropped",
            "Observations lost to a full buffer, or dropped because they were malformed.",
            registry=registry,
        )
        self.reloads = Counter(
            "trimtab_policy_reloads",
            "Policies that came into force (ok) or were refused.",
            ("result",),
            registry=registry,
        )
        for result in ("ok", "failed"):
            self.reloads.labels(result)
        self.policy_valid = Gauge(
            "trimtab_policy_valid", "1 if the policy file as it is now is in force.", registry=registry
        )
        self.faults = Counter(
            "trimtab_faults",
            "Failures of our own that were caught, by part.",
            ("part",),
            registry=registry,
        )
