"""Observations as the messages of `proto/trimtab/v1/observation_stream.proto`."""

import math

from trimtab.observation.kinds import (
    AnswerRead,
    AttemptEnded,
    AttemptStarted,
    FirstToken,
    Observation,
    Outcome,
    Output,
    Rejected,
    StreamRead,
    Verdict,
)
from trimtab.v1 import observation_stream_pb2 as pb

_VERDICTS = {verdict: f"VERDICT_{verdict.name}" for verdict in Verdict}
_OUTCOMES = {outcome: f"OUTCOME_{outcome.name}" for outcome in Outcome}
_OUTPUTS = {output: f"OUTPUT_{output.name}" for output in Output}
_VERDICT_OF: dict[int, Verdict] = {pb.Verdict.Value(name): verdict for verdict, name in _VERDICTS.items()}
_OUTCOME_OF: dict[int, Outcome] = {pb.Outcome.Value(name): outcome for outcome, name in _OUTCOMES.items()}
_OUTPUT_OF: dict[int, Output] = {pb.Output.Value(name): output for output, name in _OUTPUTS.items()}


def to_proto(observation: Observation) -> pb.Observation:
    """An observation of the data path as a message.

    Raises TypeError for a kind that ext_proc workers do not make (`LoadReported`, `SignalsRead`) and ValueError
    for a value that the message cannot hold (a negative count, a text that is not Unicode).
    """
    match observation:
        case AttemptStarted():
            what = pb.Observation(
                started=pb.AttemptStarted(
                    prompt_bytes=observation.prompt_bytes,
                    streamed=observation.streamed,
                    path=observation.path,
                    caller=observation.caller,
                )
            )
        case FirstToken():
            what = pb.Observation(first_token=pb.FirstToken())
        case Rejected():
            what = pb.Observation(
                rejected=pb.Rejected(
                    status=observation.status,
                    verdict=_VERDICTS[observation.verdict],
                    retry_after_s=observation.retry_after_s,
                    in_stream=observation.in_stream,
                    reason=observation.reason,
                )
            )
        case AttemptEnded():
            what = pb.Observation(
                ended=pb.AttemptEnded(
                    started_at=observation.started_at,
                    status=observation.status,
                    outcome=_OUTCOMES[observation.outcome],
                    streamed=observation.streamed,
                    first_byte_s=observation.first_byte_s,
                    prompt_bytes=observation.prompt_bytes,
                    body_bytes=observation.body_bytes,
                    content_type=observation.content_type,
                    path=observation.path,
                    caller=observation.caller,
                )
            )
        case AnswerRead():
            what = pb.Observation(
                answer_read=pb.AnswerRead(
                    output=_OUTPUTS[observation.output],
                    reason=observation.reason,
                    output_tokens=observation.output_tokens,
                )
            )
        case StreamRead():
            what = pb.Observation(
                stream_read=pb.StreamRead(
                    gaps_s=observation.gaps_s,
                    finished=observation.finished,
                    verdict=None if observation.verdict is None else _VERDICTS[observation.verdict],
                    truncated=observation.truncated,
                )
            )
        case _:
            raise TypeError(f"{type(observation).__name__} is not sent by ext_proc workers")
    what.at = observation.at
    what.pool = observation.pool
    what.address = observation.address
    what.request_id = observation.request_id
    return what


def from_proto(message: pb.Observation) -> Observation | None:
    """The observation in a message; None if there is none to trust: an unknown kind, verdict or outcome
    (from a newer ext_proc worker), no pool or address, or a time that is not a finite number >= 0.
    """
    at, pool, address, request_id = message.at, message.pool, message.address, message.request_id
    if not (_is_time(at) and pool and address):
        return None
    match message.WhichOneof("what"):
        case "started":
            started = message.started
            return AttemptStarted(
                at,
                pool,
                address,
                request_id,
                prompt_bytes=started.prompt_bytes if started.HasField("prompt_bytes") else None,
                streamed=started.streamed if started.HasField("streamed") else None,
                path=started.path,
                caller=started.caller,
            )
        case "first_token":
            return FirstToken(at, pool, address, request_id)
        case "rejected":
            rejected = message.rejected
            retry_after_s = rejected.retry_after_s if rejected.HasField("retry_after_s") else None
            verdict = _VERDICT_OF.get(rejected.verdict)
            if verdict is None or not _is_time(retry_after_s):
                return None
            return Rejected(
                at,
                pool,
                address,
                request_id,
                status=rejected.status,
                verdict=verdict,
                retry_after_s=retry_after_s,
                in_stream=rejected.in_stream,
                reason=rejected.reason,
            )
        case "ended":
            ended = message.ended
            first_byte_s = ended.first_byte_s if ended.HasField("first_byte_s") else None
            outcome = _OUTCOME_OF.get(ended.outcome)
            if outcome is None or not _is_time(ended.started_at) or not _is_time(first_byte_s):
                return None
            return AttemptEnded(
                at,
                pool,
                address,
                request_id,
                started_at=ended.started_at,
                status=ended.status,
                outcome=outcome,
                streamed=ended.streamed,
                first_byte_s=first_byte_s,
                prompt_bytes=ended.prompt_bytes if ended.HasField("prompt_bytes") else None,
                body_bytes=ended.body_bytes,
                content_type=ended.content_type,
                path=ended.path,
                caller=ended.caller,
            )
        case "answer_read":
            answer = message.answer_read
            output = _OUTPUT_OF.get(answer.output)
            if output is None:
                return None
            return AnswerRead(
                at,
                pool,
                address,
                request_id,
                output=output,
                reason=answer.reason,
                output_tokens=answer.output_tokens if answer.HasField("output_tokens") else None,
            )
        case "stream_read":
            read = message.stream_read
            late = _VERDICT_OF.get(read.verdict) if read.HasField("verdict") else None
            if not all(map(_is_time, read.gaps_s)) or (late is None and read.HasField("verdict")):
                return None
            return StreamRead(
                at,
                pool,
                address,
                request_id,
                gaps_s=tuple(read.gaps_s),
                finished=read.finished,
                verdict=late,
                truncated=read.truncated,
            )
    return None


def _is_time(seconds: float | None) -> bool:
    return seconds is None or (math.isfinite(seconds) and seconds >= 0)
