"""Readings of engines: their metrics pages, scraped per endpoint, and probes."""

from xds_server.sources.names import PageNames, page_names
from xds_server.sources.page import MAX_PAGE_BYTES, PageRead, read_page
from xds_server.sources.prober import PROBE_HEADER, Prober
from xds_server.sources.scraper import Scraper, new_session

__all__ = [
    "MAX_PAGE_BYTES",
    "PROBE_HEADER",
    "PageNames",
    "PageRead",
    "Prober",
    "Scraper",
    "new_session",
    "page_names",
    "read_page",
]
