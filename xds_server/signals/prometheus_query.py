"""One query to a Prometheus server, as a blocking call."""

import io
import json
import re
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

import requests
import urllib3
from prometheus_api_client import PrometheusConnect
from urllib3.util.retry import Retry

from trimtab.policy.prometheus import Prometheus
from trimtab.policy.promql import selectors
from xds_server.access import Access, AccessError

MAX_ANSWER_BYTES = 16 * 2**20
_CHUNK_BYTES = 2**16


class QueryFailed(Exception):
    """No answer that can be used. The message is one line.

    `server`: it is no matter of this query, all others of the server fail as well.
    """

    def __init__(self, message: str, *, server: bool = False) -> None:
        super().__init__(" ".join(message.split())[:300])
        self.server = server


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer."""

    labels: Mapping[str, str]
    value: float  # may be NaN or infinite


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query gave. All times are on the server's clock, Unix seconds."""

    evaluated_at: float
    values: Sequence[Series]
    sampled_at: Sequence[Sequence[Series]]  # for each metric of the query, when its newest samples were taken


class Asker:
    """Asks one server one query, again and again. For one thread at a time.

    An instant query says when it was evaluated, never how old the samples are that it found: up to five minutes.
    So each metric of the query is asked for the times of its newest samples too, by the labels that join.
    """

    def __init__(self, server: Prometheus, query: str, join_labels: Iterable[str]) -> None:
        """Raises ValueError if the query is no PromQL."""
        self._server = server
        self._query = query
        by = ", ".join(join_labels)
        self._times = [f"max by ({by}) (timestamp({selector}))" for selector in selectors(query)]
        self._access = Access()
        self._session = _Session(server)
        # Retries are not worth a wait: the next question comes soon, and is a newer one.
        self._client = PrometheusConnect(server.url, session=self._session, retry=Retry(0, read=False))

    def ask(self) -> Answer:
        """Ask once. Raises QueryFailed."""
        self._session.deadline = time.monotonic() + self._server.timeout_ms / 1000
        self._identify()
        evaluated_at, values = self._ask(self._query)
        if not values:
            return Answer(evaluated_at, (), ())
        return Answer(evaluated_at, values, [self._ask(query, evaluated_at)[1] for query in self._times])

    def close(self) -> None:
        self._client.close()

    def _identify(self) -> None:
        server = self._server
        headers = {"User-Agent": "trimtab", **server.headers}
        try:
            headers |= self._access.headers(server.token_file)
            if server.username is not None and server.password_file is not None:
                password = Path(server.password_file).read_text("utf-8").rstrip("\r\n")
                self._client.auth = (server.username.encode(), password.encode())
        except AccessError as error:
            raise QueryFailed(str(error), server=True) from None
        except OSError as error:
            raise QueryFailed(f"{error.filename}: {error.strerror}", server=True) from None
        except UnicodeDecodeError:
            raise QueryFailed("the file with the password is not UTF-8", server=True) from None
        self._client.headers = headers

    def _ask(self, query: str, at: float | None = None) -> tuple[float, Sequence[Series]]:
        """When a query was evaluated, and its series."""
        left_s = self._session.deadline - time.monotonic()
        if left_s <= 0:
            raise _too_slow(self._server)
        params = {"timeout": f"{self._server.timeout_ms}ms"} | ({} if at is None else {"time": repr(at)})
        try:
            found = self._client.custom_query(query, params=params, timeout=left_s)
            return _read(found, at)
        except (requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError):
            raise _too_slow(self._server) from None
        except (requests.JSONDecodeError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise _unusable(self._session.body, error) from None
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise QueryFailed(_cause(error), server=True) from None


class _Session(requests.Session):
    """Bounds an answer in size and time, and refuses all that is not whole."""

    def __init__(self, server: Prometheus) -> None:
        super().__init__()
        self.deadline = inf  # of the answer under way, on the monotonic clock
        self.body = b""  # of the last answer
        self._server = server
        # What the policy says is what happens: no proxies from the environment, no passwords from a netrc.
        self.trust_env = False
        self.verify = server.ca_file or not server.skip_verify
        if server.skip_verify:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        if server.cert_file is not None and server.key_file is not None:
            self.cert = (server.cert_file, server.key_file)

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        # A redirect would carry the question, and maybe who asks it, to another server.
        with super().request(*args, **kwargs | {"stream": True, "allow_redirects": False}) as response:
            body = self.body = self._read(response)
        if response.status_code != 200:
            told = _refusal(response, body) + _fix(response, self._server)
            raise QueryFailed(told, server=response.status_code not in (400, 422, 503))
        if b'"warnings"' in body:
            _refuse_parts(body)
        response.raw = io.BytesIO(body)
        return response

    def _read(self, response: requests.Response) -> bytes:
        body = bytearray()
        # Each read returns what there is; the session's own would wait until a chunk is full.
        while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=True):
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise QueryFailed(f"the answer is above {MAX_ANSWER_BYTES >> 20} MiB")
            if time.monotonic() > self.deadline:
                raise _too_slow(self._server)
        return bytes(body)


def _too_slow(server: Prometheus) -> QueryFailed:
    return QueryFailed(f"no whole answer within {server.timeout_ms / 1000:g} s")


def _read(found: Sequence[Mapping[str, Any]], at: float | None) -> tuple[float, Sequence[Series]]:
    if any("values" in series for series in found):
        raise QueryFailed("it gives ranges; take a number out of each, as with max_over_time, or leave out the [range]")
    if any("value" not in series for series in found):
        raise QueryFailed("it gives histograms; take a number out of them, as with histogram_quantile")
    times = [float(series["value"][0]) for series in found]
    series = [Series(dict(series["metric"]), float(series["value"][1])) for series in found]
    if not all(map(isfinite, times)) or not all(
        isinstance(text, str) for one in series for text in one.labels.values()
    ):
        raise ValueError("a time is no number, or a label no text")
    return max(times, default=at or 0.0), series


def _unusable(body: bytes, error: Exception) -> QueryFailed:
    """Why an answer that came in good order is none."""
    try:
        answer = json.loads(body)
        if answer["status"] == "error":
            return QueryFailed(f"the server says: {answer['error']}")
        if (kind := answer["data"]["resultType"]) in ("scalar", "string"):
            return QueryFailed(
                f"it gives a {kind}, which has no labels and is no endpoint's; give series, as in vector(1)"
            )
    except (ValueError, LookupError, TypeError, RecursionError):
        pass  # what was wrong in the first place says more
    return QueryFailed(f"what answers is no Prometheus: {type(error).__name__}: {error}", server=True)


def _refusal(response: requests.Response, body: bytes) -> str:
    """What a server says that gives no answer."""
    try:
        told = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        told = response.reason or ""
    return f"HTTP {response.status_code}: {told}"


def _fix(response: requests.Response, server: Prometheus) -> str:
    if response.status_code in (401, 403):
        if server.token_file is not None:
            return f": is the token in {server.token_file} the right one?"
        if server.username is not None:
            return f": are username and {server.password_file} right?"
        return ": give token_file, or username and password_file"
    if 300 <= response.status_code < 400:
        return f": it leads to {response.headers.get('Location', 'nowhere')}, and redirects are not followed: fix url"
    return ""


def _refuse_parts(body: bytes) -> None:
    """Raise if an answer lacks a part; what a server remarks on the query itself is no such warning."""
    warnings = json.loads(body).get("warnings") or ()
    if not isinstance(warnings, list):
        warnings = [warnings]
    if lacking := [warning for warning in warnings if not str(warning).startswith("PromQL")]:
        raise QueryFailed(f"the answer is not whole: {lacking[0]}")


def _cause(error: Exception) -> str:
    """The one thing in a chain of exceptions that helps."""
    cause: BaseException = error
    while inner := next((arg for arg in (getattr(cause, "reason", None), *cause.args) if _is_error(arg)), None) or (
        cause.__cause__ or cause.__context__
    ):
        cause = inner
    if isinstance(cause, ssl.SSLError):
        return f"TLS: {getattr(cause, 'verify_message', '') or cause.reason or cause}"
    return re.sub(r"^.*?\[Errno -?\d+\] ", "", str(cause)) or type(cause).__name__


def _is_error(value: object) -> bool:
    return isinstance(value, BaseException)
