"""Runners: take tasks, run the agent in a forked process, report the end."""
