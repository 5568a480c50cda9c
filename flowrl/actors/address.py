"""Tests the address of a Ray cluster first: Ray itself would wait for minutes, and then end the process."""

from __future__ import annotations

import os
import re
import socket

from flowrl.errors import ConfigError

#: Seconds in which an address must answer.
ANSWER_SECONDS = 5.0
#: The first bytes of an HTTP/2 client, as Ray expects: the preface and an empty frame of settings (RFC 9113, 3.4).
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4


def split_address(address: str) -> tuple[str, int] | None:
    """Host and port of a cluster, None for "auto": the cluster of this machine.

    Raises:
        ConfigError: the address is malformed.

    >>> split_address("ray://head:10001"), split_address("[::1]:6379"), split_address("auto")
    (('head', 10001), ('::1', 6379), None)
    """
    if address == "auto":
        return None
    found = re.fullmatch(r"(?:ray://)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^\s/:]+)):(?P<port>\d{1,5})", address)
    if found is None:
        raise ConfigError(f'address={address!r}: expected "host:port", "ray://host:port" or "auto"')
    return found["v6"] or found["host"], int(found["port"])


def check_answers(address: str) -> None:
    """Check that Ray, or another HTTP/2 server, listens at an address.

    Raises:
        ConfigError: nothing answers, the answer is not HTTP/2, or the address is malformed.
    """
    place = split_address(address)
    if place is None:
        return
    port = "10001, of the Ray client" if address.startswith("ray://") else "6379"
    hint = f"`ray start --head` on the first machine prints the address to join; its port is usually {port}"
    try:
        with socket.create_connection(place, ANSWER_SECONDS) as connection:
            if "RAY_USE_TLS" in os.environ:
                return
            connection.sendall(_GREETING)
            answer = connection.recv(9)
    except TimeoutError:
        raise ConfigError(f"no answer from {address} within {ANSWER_SECONDS:g} s; {hint}") from None
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot reach {address}: {error}; {hint}") from None
    if len(answer) < 4 or answer[3] != _SETTINGS:
        raise ConfigError(f"the server at {address} is not Ray; {hint}")
