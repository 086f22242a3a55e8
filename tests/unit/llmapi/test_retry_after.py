import json
import math
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.llmapi.errors import read_error_body
from trimtab.llmapi.retry_after import retry_hint_s

NOW = 1_795_972_338.0
CAP = 7 * 86_400.0


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(NOW, UTC) + timedelta(seconds=seconds)


def hint(headers: dict[str, str] | None = None, body: Any = "", cap_s: float = CAP) -> float | None:
    raw = body if isinstance(body, str) else json.dumps(body)
    return retry_hint_s(headers or {}, read_error_body(raw.encode()), NOW, cap_s)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": " 7 "}, 7),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "20ms"}, 0.02),
        ({"retry-after": format_datetime(at(30), usegmt=True)}, 30),
        ({"retry-after": at(30).strftime("%A, %d-%b-%y %H:%M:%S GMT")}, 30),
        ({"retry-after": at(30).strftime("%a %b %e %H:%M:%S %Y")}, 30),
        ({"retry-after": format_datetime(at(-30), usegmt=True)}, 0),
        ({"retry-after": str(int(NOW + 12))}, 12),
        ({"retry-after-ms": "2500"}, 2.5),
        ({"retry-after-ms": "2500", "retry-after": "3"}, 2.5),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3),
        ({"x-ratelimit-reset": "9"}, 9),
        ({"x-ratelimit-reset": str(int(NOW + 90))}, 90),
        ({"x-ratelimit-reset": str(int((NOW + 90) * 1000))}, 90),
        ({"x-ratelimit-reset": str(int(NOW - 90))}, 0),
        ({"ratelimit-reset": "4"}, 4),
        ({"x-rate-limit-reset": "4"}, 4),
        ({"x-ratelimit-reset-requests": "1s"}, 1),
        ({"x-ratelimit-reset-tokens": "6m0s"}, 360),
        ({"x-ratelimit-reset-tokens": "20ms"}, 0.02),
        ({"x-ratelimit-reset-tokens": "2m59.56s"}, 179.56),
        ({"x-ratelimit-reset-requests": "1d2h3m4s"}, 93784),
        ({"anthropic-ratelimit-requests-reset": at(45).isoformat().replace("+00:00", "Z")}, 45),
        ({"reset_at": at(45).isoformat()}, 45),
        ({"reset_at": at(45).strftime("%Y-%m-%d %H:%M:%S")}, 45),
        ({"reset_at": str(NOW + 3.5)}, 3.5),
    ],
    ids=str,
)
def test_headers(headers: dict[str, str], expected: float) -> None:
    assert hint(headers) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, 1),
        (
            {
                "x-ratelimit-remaining-requests": "10",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "6m0s",
            },
            360,
        ),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "5", "ratelimit-reset": "1"}, 5),
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "9s",
                "x-ratelimit-remaining-tokens": "0.0",
                "x-ratelimit-reset-tokens": "2s",
            },
            9,
        ),
        (
            {
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": at(20).isoformat(),
            },
            20,
        ),
        ({"x-ratelimit-remaining-tokens": "500", "x-ratelimit-reset-tokens": "6m0s"}, None),
    ],
    ids=str,
)
def test_the_limit_that_is_used_up_decides(headers: dict[str, str], expected: float | None) -> None:
    assert hint(headers) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Rate limit reached. Limit 30000, Used 30000. Please try again in 20s. Visit https://x.", 20),
        ("Please try again in 7m12s.", 432),
        ("Please retry after 6 seconds.", 6),
        ("Please retry in 33.56s", 33.56),
        ("You have exhausted your capacity. Your quota will reset after 27h41m36s.", 99_696),
        ("No deployments available for selected model, Try again in 5 seconds. Passed model=gpt", 5),
        ("try again in 500ms", 0.5),
        ("try again in 1 hour and 5 minutes", 3900),
        ("try again in 2 hours, 3 mins 4 secs", 7384),
        ("Please wait 10 sec before you send more", 10),
        ("TRY AGAIN IN 20S", 20),
        ("retry 3 times, then try again in 4s", 4),
        ("Please try again later", None),
        ("The limit is 20s of audio", None),
        ("try again in 20 sheep", None),
        ("try again. There are 20 minutes of talk", None),
        ("", None),
    ],
)
def test_text(text: str, expected: float | None) -> None:
    assert hint(body={"error": {"message": text}}) == pytest.approx(expected)
    assert hint(body=text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            {
                "error": {
                    "code": 429,
                    "details": [{"@type": "x.Help"}, {"@type": "x.RetryInfo", "retryDelay": "7s"}],
                }
            },
            7,
        ),
        ([{"error": {"details": [{"retryDelay": "37.5s"}]}}], 37.5),
        ({"error": {"retry_after": 3}}, 3),
        ({"retry_after": "3.5", "message": "x"}, 3.5),
        ({"error": {"retry_after_ms": 1500}}, 1.5),
        ({"error": {"reset_at": NOW + 8}}, 8),
        ({"error": {"reset_at": at(8).isoformat()}}, 8),
        ({"error": {"retry_after": None, "message": "try again in 2s"}}, 2),
        ({"error": {"retry_after": float("nan")}}, None),
        ({"error": {"retry_after": -5}}, None),
        ({"error": {"retry_after": [1]}}, None),
    ],
    ids=str,
)
def test_fields(body: Any, expected: float | None) -> None:
    assert hint(body=body) == pytest.approx(expected, abs=1e-6)


def test_a_time_without_a_zone_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert hint({"reset_at": at(45).strftime("%Y-%m-%d %H:%M:%S")}) == pytest.approx(45)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_precedence() -> None:
    headers = {"retry-after-ms": "1000", "retry-after": "2", "x-ratelimit-reset": "5"}
    body = {"error": {"message": "try again in 4s", "retry_after": 3}}
    found = [hint(headers, body)]
    for name in ("retry-after-ms", "retry-after"):
        del headers[name]
        found.append(hint(headers, body))
    found.append(hint(headers, {"error": body["error"]["message"]}))
    found.append(hint(headers))
    assert found == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "value",
    [
        "",
        "-5",
        "nan",
        "inf",
        "1e9",
        "soon",
        "1_000",
        "٣",
        "5, 10",
        "9" * 16,
        "9" * 5000,
        "0x10",
        "1.2.3",
        "12 parsecs",
        "Sun, 99 Nov 1994 08:49:37 GMT",
        "99999-01-01T00:00:00Z",
        "Mon",
        ",",
        "0001-01-01T00:00:00+23:59",
        "1s2",
        "s",
    ],
)
def test_nonsense_is_no_hint(value: str) -> None:
    for name in ("retry-after", "retry-after-ms", "x-ratelimit-reset", "reset_at"):
        found = hint({name: value})
        assert found is None or found == 0.0, name
    if not value.startswith("0001"):
        assert hint({"retry-after": value}) is None


def test_the_cap_is_the_callers() -> None:
    assert hint({"retry-after": "99999999"}) == CAP
    assert hint({"retry-after": "100"}, cap_s=60) == 60
    assert hint(body="try again in 999999999 days", cap_s=60) == 60
    assert hint({"retry-after": "9999-12-31T23:59:59Z"}) == CAP


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["retry-after", "retry-after-ms", "x-ratelimit-reset", "ratelimit-remaining", "reset_at"]),
        st.text(max_size=30) | st.from_regex(r"[0-9a-zA-Z:., +-]{0,30}", fullmatch=True),
    ),
    st.text(max_size=60) | st.from_regex(r"(again|retry|wait|reset)( in| after)? [0-9a-z ,.]{0,30}"),
    st.floats(0, 1e11),
)
def test_a_hint_is_always_within_its_bounds(headers: dict[str, str], text: str, now: float) -> None:
    found = retry_hint_s(headers, read_error_body(text.encode()), now, 60.0)
    assert found is None or (math.isfinite(found) and 0 <= found <= 60)
