"""Run a filter only where it is wanted: predicates over the request and the answer."""

from collections.abc import Iterable

import betterproto2
from envoy_data_plane.envoy.config.core.v3 import RuntimeFractionalPercent, TypedExtensionConfig
from envoy_data_plane.envoy.extensions.common.matching.v3 import ExtensionWithMatcher
from envoy_data_plane.envoy.extensions.filters.common.matcher.action.v3 import SkipFilter
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.extensions.matching.common_inputs.network.v3 import (
    DynamicMetadataInput,
    DynamicMetadataInputPathSegment,
)
from envoy_data_plane.envoy.extensions.matching.input_matchers.metadata.v3 import Metadata
from envoy_data_plane.envoy.extensions.matching.input_matchers.runtime_fraction.v3 import RuntimeFraction
from envoy_data_plane.envoy.type.matcher.v3 import (
    HttpRequestHeaderMatchInput,
    HttpResponseHeaderMatchInput,
    HttpResponseStatusCodeMatchInput,
    ValueMatcher,
)
from envoy_data_plane.google.protobuf import Any
from envoy_data_plane.xds.core.v3 import TypedExtensionConfig as XdsExtension
from envoy_data_plane.xds.type.matcher.v3 import (
    Matcher,
    MatcherMatcherList,
    MatcherMatcherListFieldMatcher,
    MatcherMatcherListPredicate,
    MatcherMatcherListPredicatePredicateList,
    MatcherMatcherListPredicateSinglePredicate,
    MatcherOnMatch,
    RegexMatcher,
    RegexMatcherGoogleRe2,
    StringMatcher,
)

Predicate = MatcherMatcherListPredicate


def only_if(predicate: Predicate, name: str, config: betterproto2.Message) -> HttpFilter:
    """The filter, skipped wherever `predicate` does not hold.

    An attempt that is skipped costs no call to the filter's service.
    """
    # There is no action that keeps a filter, so the negation is what is matched.
    skip = MatcherOnMatch(action=XdsExtension(name="skip", typed_config=Any.pack(SkipFilter())))
    return HttpFilter(
        name=name,
        typed_config=Any.pack(
            ExtensionWithMatcher(
                extension_config=TypedExtensionConfig(name=name, typed_config=Any.pack(config)),
                xds_matcher=Matcher(
                    matcher_list=MatcherMatcherList(
                        matchers=[MatcherMatcherListFieldMatcher(predicate=negated(predicate), on_match=skip)]
                    )
                ),
            )
        ),
    )


def negated(predicate: Predicate) -> Predicate:
    """Holds where `predicate` does not."""
    return Predicate(not_matcher=predicate)


def all_of(*predicates: Predicate) -> Predicate:
    """Holds where all do."""
    return Predicate(and_matcher=MatcherMatcherListPredicatePredicateList(predicate=list(predicates)))


def any_of(*predicates: Predicate) -> Predicate:
    """Holds where one does."""
    return Predicate(or_matcher=MatcherMatcherListPredicatePredicateList(predicate=list(predicates)))


def status_in(codes: Iterable[int]) -> Predicate:
    """The answer's status is one of `codes`."""
    values = [_single(HttpResponseStatusCodeMatchInput(), StringMatcher(exact=str(code))) for code in codes]
    if len(values) == 1:  # of which Envoy takes no list
        return values[0]
    return Predicate(or_matcher=MatcherMatcherListPredicatePredicateList(predicate=values))


def response_header(name: str, value: StringMatcher) -> Predicate:
    """The answer has the header, and its value matches."""
    return _single(HttpResponseHeaderMatchInput(header_name=name), value)


def request_header(name: str, value: StringMatcher) -> Predicate:
    """The request has the header, and its value matches."""
    return _single(HttpRequestHeaderMatchInput(header_name=name), value)


def metadata_is_true(namespace: str, key: str) -> Predicate:
    """The request's dynamic metadata has a true value at a key."""
    return Predicate(
        single_predicate=MatcherMatcherListPredicateSinglePredicate(
            input=_extension(DynamicMetadataInput(filter=namespace, path=[DynamicMetadataInputPathSegment(key=key)])),
            custom_match=_extension(Metadata(value=ValueMatcher(bool_match=True))),
        )
    )


def regex(pattern: str) -> StringMatcher:
    """Matches whole."""
    return StringMatcher(safe_regex=RegexMatcher(google_re2=RegexMatcherGoogleRe2(), regex=pattern))


def runtime_share(header: str, share: RuntimeFractionalPercent) -> Predicate:
    """Holds for a share of the requests, by a hash of a request header: alike for all tries of a request."""
    return Predicate(
        single_predicate=MatcherMatcherListPredicateSinglePredicate(
            input=_extension(HttpRequestHeaderMatchInput(header_name=header)),
            custom_match=_extension(RuntimeFraction(runtime_fraction=share)),
        )
    )


def _single(source: betterproto2.Message, value: StringMatcher) -> Predicate:
    return Predicate(
        single_predicate=MatcherMatcherListPredicateSinglePredicate(input=_extension(source), value_match=value)
    )


def _extension(config: betterproto2.Message) -> XdsExtension:
    return XdsExtension(name=type(config).__name__, typed_config=Any.pack(config))
