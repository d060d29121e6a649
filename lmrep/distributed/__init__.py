"""Runs of several processes: joining, agreement, watchdog."""
