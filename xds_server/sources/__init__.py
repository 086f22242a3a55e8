"""Readings of engines: their metrics pages, scraped per endpoint."""

from xds_server.sources.names import EngineNames, engine_names
from xds_server.sources.page import MAX_PAGE_BYTES, read_page
from xds_server.sources.scraper import Scraper, new_session

__all__ = ["MAX_PAGE_BYTES", "EngineNames", "Scraper", "engine_names", "new_session", "read_page"]
