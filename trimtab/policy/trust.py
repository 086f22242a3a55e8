"""Whether what a section says of certificates makes sense."""

from collections.abc import Iterator

from trimtab.strict import Flaw


def trust_flaws(ca_file: str | None, skip_verify: bool, url: str = "https:") -> Iterator[Flaw]:
    """A flaw for each of the keys `ca_file` and `skip_verify` that has no effect on requests to `url`."""
    if skip_verify and ca_file is not None:
        yield Flaw("with skip_verify nothing is checked against ca_file; remove one of them", ("ca_file",))
    if url.startswith("http://") and (ca_file is not None or skip_verify):
        which = "ca_file" if ca_file is not None else "skip_verify"
        yield Flaw(f"{which} has no meaning for http://: remove it, or write https://", (which,))
