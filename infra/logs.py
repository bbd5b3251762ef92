"""One line a record on standard error: time, level, role, message."""

import logging
import os
import sys


def setup_logging(role: str) -> logging.Logger:
    """Configure the root logger of this process and return the role's. Level: LEYDEN_LOG, default INFO."""
    logging.basicConfig(
        stream=sys.stderr,
        level=os.environ.get("LEYDEN_LOG", "INFO").upper(),
        format=f"%(asctime)s %(levelname)s {role} %(name)s: %(message)s",
        force=True,
    )
    for chatty in ("urllib3", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return logging.getLogger(f"leyden.{role}")
