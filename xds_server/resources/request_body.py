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

METADATA_NAMESPACE = "trimtab"
MODEL_KEY = "model"
STREAM_KEY = "stream"

# `curl -d` without a header says that it sends a form; engines that are generous read it all the same.
_CONTENT_TYPES = r"(?i)\s*(application/([\w.+-]*\+)?json|application/x-www-form-urlencoded|text/[\w.+-]+)\s*(;.*)?"


def json_to_metadata() -> JsonToMetadata:
    """Route by the body's `model` and `stream`. A body that is no JSON leaves both unset."""
    return JsonToMetadata(
        request_rules=JsonToMetadataMatchRules(
            allow_content_types_regex=RegexMatcher(regex=_CONTENT_TYPES),
            allow_empty_content_type=True,
            rules=[
                JsonToMetadataRule(selectors=[JsonToMetadataSelector(key=MODEL_KEY)], on_present=_pair(MODEL_KEY)),
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
