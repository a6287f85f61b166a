"""Waiting for what other processes do."""

import time


def wait_until(what, condition, limit_s=60, otherwise=lambda: ""):
    """The first true value of the condition; an error that says `what`, and `otherwise()`, when there was none."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"not within {limit_s} s: {what} {otherwise()}".rstrip())
