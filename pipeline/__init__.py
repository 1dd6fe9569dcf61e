"""The job around ssdp_core: data, driver and command line."""

from importlib import metadata

__version__ = metadata.version("ssdp-beam")
