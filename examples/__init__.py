"""Agents as users write them; each folder uses the public API only."""
