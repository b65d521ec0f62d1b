"""Host calls that wait for another thread, a timer or a file, told by the names that Python's tracers give them."""

from __future__ import annotations

import re

_PYTHON = re.compile(
    r"\$?(?:threading|queue|selectors|poll|socket|connection|synchronize)\.py[:(]\d+(?:\):)? "
    r"(?:wait|wait_for|_wait_for_tstate_lock|join|acquire|get|select|poll|_poll|recv|recv_bytes|accept)$"
    r"|<built-in method (?:acquire|sleep|select|poll|epoll|wait|recv|recv_into|accept|read) of "
    r"|\$<unknown> (?:acquire|sleep|select|poll|wait)$"
    r"|<built-in function sleep>$|time\.sleep$"
)


def waits_on_host(name: str) -> bool:
    """Whether an event of this name only waits, and not for the device.

    Kineto writes "threading.py(359): wait", XProf "$threading.py:359 wait".

    Example:
        >>> waits_on_host("threading.py(359): wait"), waits_on_host("$queue.py:171 get")
        (True, True)
        >>> waits_on_host("cudaDeviceSynchronize"), waits_on_host("threading.py(1032): _bootstrap")
        (False, False)
    """
    return _PYTHON.match(name) is not None
