"""What every test process starts from."""

import signal


def pytest_configure() -> None:
    """Signals as at a terminal: a shell that starts us in the background ignores some for us."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
