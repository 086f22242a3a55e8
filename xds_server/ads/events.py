"""What delivery tells the rest of the program, for metrics and pages."""


class XdsEvents:
    """Hears of every push and every answer; this one ignores them all.

    Calls come on the event loop between two messages to a client: they must be quick and must not raise.
    `node` is the client's node id, `type_url` the full type URL, `protocol` "sotw" or "delta".
    """

    def connected(self, node: str, protocol: str) -> None:
        """A stream has named its node."""

    def disconnected(self, node: str, protocol: str) -> None:
        """A stream that was `connected` has ended."""

    def pushed(self, node: str, type_url: str, version: str, resources: int, size_bytes: int) -> None:
        """A response with so many resources is handed to the transport."""

    def acked(self, node: str, type_url: str, version: str, seconds: float) -> None:
        """The client has accepted a response, so long after it was sent.

        A client may answer several responses with one: then only the last of them is told.
        """

    def nacked(self, node: str, type_url: str, version: str, reason: str) -> None:
        """The client has refused a response, and keeps what it had. `reason` is one line."""
