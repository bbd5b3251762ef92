"""Free ports of the loopback interface."""

import random
import socket

# Below Linux' ephemeral range: from a port of that range a client that retries while the server is down can connect
# to itself, and any outgoing connection can take it before the server is back.
LOWEST, HIGHEST = 12_000, 32_000


def free_port() -> int:
    """A port that nothing listens on now, and that the kernel gives to nobody by itself."""
    picker = random.SystemRandom()
    for _ in range(200):
        port = picker.randrange(LOWEST, HIGHEST)
        if is_free(port):
            return port
    raise OSError(f"no free port of 127.0.0.1 between {LOWEST} and {HIGHEST}")


def is_free(port: int) -> bool:
    """True where a server could listen on 127.0.0.1:port now."""
    with socket.socket() as probe:
        # As servers do; without it a port with connections in TIME_WAIT looks taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
