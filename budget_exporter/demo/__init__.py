"""A synthetic host: sysfs, procfs and log files that the unchanged product code reads."""
