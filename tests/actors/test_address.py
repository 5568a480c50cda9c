"""An address that does not answer is refused in seconds, before Ray hears of it."""

from __future__ import annotations

import socket
import threading

import pytest

from flowrl.actors import address
from flowrl.actors.address import check_answers, split_address
from flowrl.errors import ConfigError


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def _place(server):
    return "{}:{}".format(*server.getsockname())


def _answering(server, answer):
    def serve():
        connection, _ = server.accept()
        with connection:
            connection.recv(100)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize("text", ["head", "head:", "head:port", "http://head:8265", "ray://", "", "a b:1", "head:1/x"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match='expected "host:port", "ray://host:port" or "auto"'):
        split_address(text)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_nobody_listens(listener, scheme):
    place = scheme + _place(listener)
    listener.close()
    with pytest.raises(ConfigError, match=f"cannot reach {place}: .*refused; `ray start --head`"):
        check_answers(place)


def test_somebody_else_listens(listener):
    thread = _answering(listener, b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ConfigError, match=r"the server at .* is not Ray"):
        check_answers(_place(listener))
    thread.join()


def test_who_listens_says_nothing(listener, monkeypatch):
    monkeypatch.setattr(address, "ANSWER_SECONDS", 0.05)
    with pytest.raises(ConfigError, match=r"no answer from .* within 0.05 s"):
        check_answers(_place(listener))


@pytest.mark.parametrize("place", ["no-such-host.invalid:6379", "127.0.0.1:99999"])
def test_there_is_no_such_place(place):
    with pytest.raises(ConfigError, match=f"cannot reach {place}"):
        check_answers(place)


@pytest.mark.slow
def test_a_ray_answers(ray_cluster):
    import ray

    check_answers(ray.get_runtime_context().gcs_address)
