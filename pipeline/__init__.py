"""The job around ssdp_core: data, driver and command line."""
