"""Delivery: reloader, promoter, rollback, garbage collection."""
