"""Several processes as one run: joining, agreement, watchdog."""
