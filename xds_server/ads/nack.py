"""Makes one useful line of what Envoy says when it refuses a response."""

import re

_LONGEST = 300
_VALIDATION = re.compile(r"Proto constraint validation failed \((.*)\)", re.DOTALL)
_DEBUG_MARK = re.compile(r"goo\.gle/debug\w*")  # protobuf's text output begins with it, varied on purpose


def one_line(message: str) -> str:
    """The innermost cause, without the dump of the resource in front of it, at most 300 characters long."""
    validation = _VALIDATION.search(message)
    if validation:
        message = validation[1].rpartition(" | caused by ")[2]
    line = " ".join(_DEBUG_MARK.sub("", message).split())
    if len(line) > _LONGEST:
        line = line[: _LONGEST - 1] + "…"
    return line or "no reason given"
