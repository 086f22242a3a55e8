"""Readings of engines: their metrics pages, scraped per endpoint, and Prometheus."""

from xds_server.signals.names import PageNames, page_names
from xds_server.signals.page import MAX_PAGE_BYTES, PageRead, read_page
from xds_server.signals.scraper import Scraper, new_session

__all__ = ["MAX_PAGE_BYTES", "PageNames", "PageRead", "Scraper", "new_session", "page_names", "read_page"]
