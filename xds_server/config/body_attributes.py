"""What is read from a request's body: the model, and whether a stream is asked for."""

from envoy_data_plane.envoy.extensions.filters.http.json_to_metadata.v3 import (
    JsonToMetadata,
    JsonToMetadataKeyValuePair,
    JsonToMetadataMatchRules,
    JsonToMetadataRule,
    JsonToMetadataSelector,
)
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher
from envoy_data_plane.google.protobuf import Value

from trimtab.datapath import METADATA_NAMESPACE

MODEL_KEY = "model"
STREAM_KEY = "stream"
UNREAD_KEY = "unread"
"""True where the body could not be read, be it that it is of a type which is not tried."""
NO_MODEL_KEY = "no_model"
"""True where the body has no `model`, be it that there is no body."""

JSON_CONTENT_TYPE = r"(?i)\s*application/([\w.+-]*\+)?json\s*(;.*)?"
"""A regular expression of the types that say that a body is JSON."""

# `curl -d` without a header says that it sends a form; engines that are generous read it all the same.
_CONTENT_TYPES = r"(?i)\s*(application/([\w.+-]*\+)?json|application/x-www-form-urlencoded|text/[\w.+-]+)\s*(;.*)?"


def json_to_metadata() -> JsonToMetadata:
    """Route by the body's `model` and `stream`. A body that cannot be read leaves both unset.

    Envoy reads less than some engines do: no body with an integer from 2^63 to 2^64 - 1 (a larger one is a double
    to it), a number that no double can hold, half of a surrogate pair, or 1000 levels.
    """
    return JsonToMetadata(
        request_rules=JsonToMetadataMatchRules(
            allow_content_types_regex=RegexMatcher(regex=_CONTENT_TYPES),
            allow_empty_content_type=True,
            rules=[
                JsonToMetadataRule(
                    selectors=[JsonToMetadataSelector(key=MODEL_KEY)],
                    on_present=_pair(MODEL_KEY),
                    on_missing=_pair(NO_MODEL_KEY, Value(bool_value=True)),
                    on_error=_pair(UNREAD_KEY, Value(bool_value=True)),
                ),
                JsonToMetadataRule(
                    selectors=[JsonToMetadataSelector(key=STREAM_KEY)],
                    on_present=_pair(STREAM_KEY),
                    on_missing=_pair(STREAM_KEY, Value(bool_value=False)),
                ),
            ],
        )
    )


def _pair(key: str, value: Value | None = None) -> JsonToMetadataKeyValuePair:
    return JsonToMetadataKeyValuePair(metadata_namespace=METADATA_NAMESPACE, key=key, value=value)
