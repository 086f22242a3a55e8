"""What a pool asks of a Prometheus server: the section `signals.prometheus`, and the queries that come with Trimtab."""

import functools
import importlib.resources
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import promql_parser
from pydantic import AfterValidator, Field, TypeAdapter
from ruamel.yaml import YAML

from trimtab.endpoint.prometheus_readings import ASKABLE
from trimtab.policy.promql import selectors
from trimtab.policy.trust import trust_flaws
from trimtab.policy.types import BaseUrl, FilePath, text_schema
from trimtab.policy.words import listed, quoted
from trimtab.scoring.config import Positive
from trimtab.strict import Flaw, Strict

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_JOINED = re.compile(r"address|host|labels\..+")
_CUSTOM = re.compile(r"[a-z][a-z0-9_]{0,62}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def expand(query: str, join: Mapping[str, str], select: str) -> str:
    """A query with `$join` (the labels that join) and `$select` (label matchers) filled in."""
    return query.replace("$join", ", ".join(join)).replace("$select", select)


class Preset(Strict):
    """A custom signal's query that comes with Trimtab."""

    query: str
    unit: str = ""


class Bundled(Strict):
    """The queries that come with Trimtab."""

    engines: dict[str, dict[str, str]]  # engine -> signal -> query
    presets: dict[str, Preset]


@functools.cache
def bundled_queries() -> Bundled:
    """What `trimtab/data/prometheus-queries.yaml` says."""
    text = importlib.resources.files("trimtab").joinpath("data/prometheus-queries.yaml").read_text("utf-8")
    return TypeAdapter(Bundled).validate_python(YAML(typ="safe").load(text))


def _select(text: str) -> str:
    try:
        promql_parser.parse(f"up{{{text}}}")
    except ValueError as error:
        raise ValueError(f'{quoted(text)} must be label matchers, as in job="vllm": {error}') from None
    return text


def _join(rules: dict[str, str]) -> dict[str, str]:
    for label, joined in rules.items():
        if not _LABEL.fullmatch(label):
            raise ValueError(f"{quoted(label)} is no label of a series")
        if not _JOINED.fullmatch(joined):
            raise ValueError(f"{quoted(joined)} must be address, host, or a label of the endpoints as in labels.pod")
    return rules


def _custom_name(text: str) -> str:
    if not _CUSTOM.fullmatch(text):
        raise ValueError(
            f"{quoted(text)} must begin with a lower-case letter, and have only those, digits and _ after it"
        )
    if text in ASKABLE:
        raise ValueError(f"{quoted(text)} is a signal of its own: give its query under `queries`")
    return text


def _preset(text: str) -> str:
    presets = bundled_queries().presets
    if text not in presets:
        raise ValueError(f"{quoted(text)} is no preset; there are {listed(sorted(presets))}")
    return text


def _askable(name: str) -> str:
    if name not in ASKABLE:
        raise ValueError(f"{quoted(name)} is no signal that Prometheus can be asked for: {listed(sorted(ASKABLE))}")
    return name


def _signals(queries: dict[str, str]) -> dict[str, str]:
    for name in queries:
        _askable(name)
    return queries


def _headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _HEADER.fullmatch(name):
            raise ValueError(f"{quoted(name)} is no name of a header")
        if name.lower() == "authorization":
            raise ValueError("give token_file, or username and password_file: a policy is shown on /policy")
        if not value.isprintable():
            raise ValueError(f"{quoted(name)} has a value that no header can have")
    return headers


Select = Annotated[str, AfterValidator(_select)]
Join = Annotated[dict[str, str], Field(min_length=1), AfterValidator(_join)]
CustomName = Annotated[str, AfterValidator(_custom_name), text_schema("gpu_temperature", f"^{_CUSTOM.pattern}$")]
PresetName = Annotated[str, AfterValidator(_preset)]
Askable = Annotated[str, AfterValidator(_askable)]
Query = Annotated[str, Field(min_length=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class CustomSignal(Strict):
    """A number of your own about each endpoint, and what follows from it."""

    name: CustomName = Field(description="A name of its own, for strategies, pages and reasons.")
    preset: PresetName | None = Field(
        None, description="A query that comes with Trimtab: see docs/concepts/prometheus.md."
    )
    query: Query | None = Field(
        None,
        description="Or PromQL of your own. `$join` in it stands for the labels that join, `$select` for `select`.",
    )
    select: Select = Field(
        "", description="Label matchers for `$select`, which every preset has. Empty takes all series."
    )
    join: Join | None = Field(None, description="How its series belong to endpoints; null: as the section says.")
    unit: str = Field("", description="Shown beside the value in reasons. Empty takes the preset's own, if any.")
    action: Literal["term", "drain", "no_long_prompts", "consolidate"] = Field(
        "term",
        description="term: a term of `blend` may read it, nothing else. drain: past the threshold the endpoint gets no "
        "new work. no_long_prompts: it gets none of the longest of the pool's classes. consolidate: while all "
        "endpoints are below it, work is gathered on few of them.",
    )
    above: Finite | None = Field(None, description="The threshold of such an action, where a high value is bad.")
    below: Finite | None = Field(None, description="The threshold, where a low value is bad.")
    until: Finite | None = Field(
        None, description="The value at which the endpoint takes such work again; null: the threshold itself."
    )

    @property
    def promql(self) -> str:
        """The query, with its placeholders."""
        return bundled_queries().presets[self.preset].query if self.preset is not None else self.query or ""

    @property
    def shown_unit(self) -> str:
        return self.unit or (bundled_queries().presets[self.preset].unit if self.preset is not None else "")

    def is_past(self, value: float, *, was_past: bool) -> bool:
        """Whether a value is past the threshold; one that was, is until it is back at `until`."""
        back = self.until if was_past and self.until is not None else None
        if self.above is not None:
            return value > (self.above if back is None else back)
        return self.below is not None and value < (self.below if back is None else back)

    def flaws(self) -> Iterator[Flaw]:
        if (self.query is None) == (self.preset is None):
            yield Flaw(f"{quoted(self.name)} needs either query or preset", ("query",), ("preset",))
        if self.query is not None and self.select and "$select" not in self.query:
            yield Flaw("select goes where the query says $select, and it does not", ("select",))
        thresholds = [value for value in (self.above, self.below) if value is not None]
        if self.action != "term" and len(thresholds) != 1:
            yield Flaw(f"action: {self.action} needs a threshold: either above or below", ("action",))
        if self.action == "consolidate" and self.above is not None:
            yield Flaw("action: consolidate is for low values: give below in place of above", ("above",))
        if self.action == "term":
            for key in ("above", "below", "until"):
                if getattr(self, key) is not None:
                    yield Flaw(f"{key} is of no use without action: drain, no_long_prompts or consolidate", (key,))
        elif self.until is not None and len(thresholds) == 1:
            if self.above is not None and self.until > self.above:
                yield Flaw(f"until ({self.until:g}) must not be above {self.above:g}, the threshold", ("until",))
            if self.below is not None and self.until < self.below:
                yield Flaw(f"until ({self.until:g}) must not be below {self.below:g}, the threshold", ("until",))


class Prometheus(Strict):
    """A Prometheus server, or what speaks its API, that is asked about the endpoints."""

    url: BaseUrl = Field(description="Where it is, with the prefix of its paths if it has one.")
    interval_ms: Annotated[int, Field(ge=250, le=300_000)] = Field(
        5000, description="How often it is asked. More often than it scrapes brings nothing."
    )
    timeout_ms: Annotated[int, Field(ge=50, le=60_000)] = Field(
        2000, description="An answer that takes longer is given up."
    )
    stale_after_s: Positive = Field(
        60,
        description="A value is unknown once the newest sample behind it is older, by the server's clock. "
        "At least twice its scrape_interval.",
    )
    join: Join = Field(
        {"instance": "address"},
        description="Which series belong to which endpoint: label of the series -> address (with its port, as it is "
        "written or resolved), host (without port, on both sides), or a label of the endpoint as in labels.pod. "
        "All of them must fit.",
    )
    select: Select = Field(
        "", description='Label matchers that the bundled queries get, as in job="vllm". Empty takes all series.'
    )
    bundled: bool = Field(True, description="Ask the bundled queries of the pool's engine.")
    queries: Annotated[dict[str, Query], AfterValidator(_signals)] = Field(
        default_factory=dict,
        description="Signal -> PromQL, beside the bundled queries or in place of them; with `$join` and `$select`.",
    )
    preferred: tuple[Askable, ...] = Field(
        (), description="Signals for which it is believed before the engine's own page. Empty is for none."
    )
    custom: Annotated[tuple[CustomSignal, ...], Field(max_length=32)] = Field(
        (), description="Numbers of your own. Empty has none."
    )
    token_file: FilePath | None = Field(None, description="File with a bearer token; read again when it changes.")
    username: Annotated[str, Field(min_length=1)] | None = Field(None, description="For basic authentication.")
    password_file: FilePath | None = Field(None, description="File with the password, read again for every question.")
    headers: Annotated[dict[str, str], AfterValidator(_headers)] = Field(
        default_factory=dict, description="Further headers, as X-Scope-OrgID for Mimir; not for secrets."
    )
    ca_file: FilePath | None = Field(None, description="Certificates that are trusted; null: the usual ones.")
    cert_file: FilePath | None = Field(None, description="Certificate to show, where the server wants one.")
    key_file: FilePath | None = Field(None, description="The key of that certificate.")
    skip_verify: bool = Field(False, description="Take any certificate: whoever is in between can read and lie.")

    def texts(self, engine: str) -> Mapping[str, str]:
        """What is asked: signal -> PromQL."""
        queries = dict(bundled_queries().engines.get(engine, {})) if self.bundled else {}
        asked = {name: expand(text, self.join, self.select) for name, text in (queries | self.queries).items()}
        return asked | {
            signal.name: expand(signal.promql, signal.join or self.join, signal.select) for signal in self.custom
        }

    def joins(self) -> Mapping[str, Mapping[str, str]]:
        """The signals whose series join in a way of their own."""
        return {signal.name: signal.join for signal in self.custom if signal.join is not None}

    def flaws(self) -> Iterator[Flaw]:
        if self.timeout_ms > self.interval_ms:
            yield Flaw(
                f"timeout_ms ({self.timeout_ms:g}) must not be above interval_ms ({self.interval_ms:g})",
                ("interval_ms",),
                ("timeout_ms",),
            )
        if self.token_file is not None and self.username is not None:
            yield Flaw("token_file and username are two ways to say who asks: give one", ("token_file",))
        for one, other in (("username", "password_file"), ("cert_file", "key_file")):
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                yield Flaw(f"{one} and {other} go together: give both or none", (one,), (other,))
        yield from trust_flaws(self.ca_file, self.skip_verify, self.url)
        yield from self._bad_queries()
        doing_so = [index for index, signal in enumerate(self.custom) if signal.action == "consolidate"]
        for index in doing_so[1:]:
            yield Flaw(
                f"custom[{doing_so[0]}] consolidates already: one signal of a pool can",
                ("custom", index, "action"),
            )
        names = [signal.name for signal in self.custom]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield Flaw(
                    f"{quoted(name)} is already the name of custom[{names.index(name)}]; give each signal its own",
                    ("custom", index, "name"),
                )

    def _bad_queries(self) -> Iterator[Flaw]:
        asked: list[tuple[tuple[str | int, ...], str]] = [
            (("queries", name), expand(text, self.join, self.select)) for name, text in self.queries.items()
        ]
        asked += [
            (("custom", index, "query"), expand(signal.promql, signal.join or self.join, signal.select))
            for index, signal in enumerate(self.custom)
        ]
        for where, query in asked:
            try:
                selectors(query)
            except ValueError as error:
                yield Flaw(str(error), where)
