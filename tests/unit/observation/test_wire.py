"""Observations survive the way through the messages; a message that is not to be trusted is none."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.xds_server.made import decision
from trimtab.health.state import State
from trimtab.observation.kinds import (
    AttemptEnded,
    AttemptStarted,
    FirstToken,
    LoadReported,
    Observation,
    Outcome,
    Rejected,
    Signals,
    SignalsRead,
    StreamRead,
    Verdict,
)
from trimtab.observation.wire import from_proto, to_proto
from trimtab.v1 import observation_stream_pb2 as pb
from xds_server.observation_stream import states_to_proto

TIMES = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
COUNTS = st.integers(0, 2**64 - 1)
STATUSES = st.integers(0, 2**32 - 1)
WHERE = {"at": TIMES, "pool": NAMES, "address": NAMES, "request_id": TEXTS}

OBSERVATIONS = st.one_of(
    st.builds(AttemptStarted, **WHERE, prompt_bytes=st.none() | COUNTS, streamed=st.none() | st.booleans()),
    st.builds(FirstToken, **WHERE),
    st.builds(
        Rejected,
        **WHERE,
        status=STATUSES,
        verdict=st.sampled_from(Verdict),
        retry_after_s=st.none() | TIMES,
        in_stream=st.booleans(),
        reason=TEXTS,
    ),
    st.builds(
        AttemptEnded,
        **WHERE,
        started_at=TIMES,
        status=STATUSES,
        outcome=st.sampled_from(Outcome),
        streamed=st.booleans(),
        first_byte_s=st.none() | TIMES,
        prompt_bytes=st.none() | COUNTS,
        body_bytes=COUNTS,
    ),
    st.builds(
        StreamRead,
        **WHERE,
        gaps_s=st.lists(TIMES).map(tuple),
        finished=st.booleans(),
        verdict=st.none() | st.sampled_from(Verdict),
        truncated=st.booleans(),
    ),
)


@given(OBSERVATIONS)
def test_round_trip(observation: Observation) -> None:
    wire = to_proto(observation).SerializeToString()
    assert from_proto(pb.Observation.FromString(wire)) == observation


@given(st.binary(max_size=200))
def test_no_message_is_fatal(wire: bytes) -> None:
    try:
        message = pb.Observation.FromString(wire)
    except Exception:  # noqa: BLE001 - what is not a message is refused by gRPC before it comes to us
        return
    observation = from_proto(message)
    if observation is not None:
        assert math.isfinite(observation.at) and observation.pool and observation.address
        assert from_proto(to_proto(observation)) == observation


SOMEWHERE = {"at": 1.0, "pool": "p", "address": "10.0.0.1:80", "request_id": "r"}


@pytest.mark.parametrize(
    "message",
    [
        pb.Observation(),
        pb.Observation(**SOMEWHERE),
        pb.Observation(**SOMEWHERE | {"at": math.nan}, first_token=pb.FirstToken()),
        pb.Observation(**SOMEWHERE | {"at": math.inf}, first_token=pb.FirstToken()),
        pb.Observation(**SOMEWHERE | {"at": -1.0}, first_token=pb.FirstToken()),
        pb.Observation(**SOMEWHERE | {"pool": ""}, first_token=pb.FirstToken()),
        pb.Observation(**SOMEWHERE | {"address": ""}, first_token=pb.FirstToken()),
        pb.Observation(**SOMEWHERE, rejected=pb.Rejected(status=429, verdict=99)),
        pb.Observation(**SOMEWHERE, rejected=pb.Rejected(status=429, retry_after_s=math.nan)),
        pb.Observation(**SOMEWHERE, ended=pb.AttemptEnded(outcome=99)),
        pb.Observation(**SOMEWHERE, ended=pb.AttemptEnded(started_at=math.nan)),
        pb.Observation(**SOMEWHERE, ended=pb.AttemptEnded(first_byte_s=-1)),
        pb.Observation(**SOMEWHERE, stream_read=pb.StreamRead(verdict=99)),
        pb.Observation(**SOMEWHERE, stream_read=pb.StreamRead(gaps_s=[0.1, math.inf])),
        pb.Observation(**SOMEWHERE, stream_read=pb.StreamRead(gaps_s=[-0.1])),
    ],
    ids=lambda message: str(message).replace("\n", " ")[-60:],
)
def test_a_message_that_cannot_be_trusted_is_no_observation(message: pb.Observation) -> None:
    assert from_proto(message) is None


@pytest.mark.parametrize(
    ("observation", "error"),
    [
        (AttemptStarted(1, "p", "a", "r", prompt_bytes=-1, streamed=None), ValueError),
        (AttemptStarted(1, "p", "a", "\ud800", prompt_bytes=1, streamed=None), ValueError),
        (SignalsRead(1, "p", "a", Signals()), TypeError),
        (LoadReported(1, "p", "n", {}), TypeError),
    ],
)
def test_what_no_message_can_hold(observation: Observation, error: type[Exception]) -> None:
    with pytest.raises(error):
        to_proto(observation)


def test_states() -> None:
    states = states_to_proto([decision("p", 100.0, "a:80", "b:80"), decision("q", 101.0)])
    assert [(pool.pool, pool.at, len(pool.endpoints)) for pool in states.pools] == [
        ("p", 100, 2),
        ("q", 101, 0),
    ]
    endpoint = states.pools[0].endpoints[1]
    assert (endpoint.address, endpoint.name, endpoint.incarnation) == ("10.0.0.2:80", "b:80", 0)
    assert (endpoint.weight, endpoint.share, endpoint.score) == (500, 0.5, 80)
    assert (endpoint.takes_work, endpoint.state) == (True, State.UP)
