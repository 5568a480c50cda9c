"""The server of the page: on loopback, by its own name, and nothing but what the named runs have."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from flowrl.tools.ui.server import PAGE, Server
from tests.cli.parts import TINY, flowrl, served

FILM = bytes(range(200))
#: A name that would be a script, if the page made markup of it.
EVIL = "<script>alert(1)<script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of four results, one of a strange name and with a film."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "tiny.py").write_text(TINY)
    assert flowrl("run", folder / "tiny.py", "--out", folder / "plain", "--quiet").exit_code == 0
    shutil.copytree(folder / "plain", folder / EVIL)
    (folder / EVIL / "a.mp4").write_bytes(FILM)
    (folder / "secret.txt").write_text("secret")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with served(folder) as server:
        yield server


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def values(server: Server, path: str, **query: Any) -> Any:
    answer, body = ask(server, f"{path}?{urlencode(query, doseq=True)}")
    assert answer.status == 200, body
    return json.loads(body)


@pytest.mark.parametrize("path", PAGE)
def test_the_page_is_small_and_asks_nobody_else(server: Server, path: str) -> None:
    answer, body = ask(server, path)
    assert answer.status == 200
    assert len(body) < 100_000
    assert b"//" not in body.replace(b"http://www.w3.org/2000/svg", b"").replace(b"// ", b"").replace(b"//\n", b"")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_runs_curves_and_details(server: Server, folder: Path) -> None:
    listed = values(server, "/runs")
    assert [Path(run["name"]).name for run in listed["runs"]] == [EVIL, "plain"]
    assert {"env_steps", "episode_return", "loss"} <= set(listed["keys"])
    name = str(folder / "plain")
    curves = values(server, "/curves", x="env_steps", y=["episode_return", "loss"], run=[name, "no such run"])
    assert curves["curves"][0] == {name: [[10, 20, 30, 40], [1, 2, 3, 4]]}
    assert curves["curves"][1] == {name: [[20, 30, 40], [1 / 2, 1 / 3, 1 / 4]]}
    assert values(server, "/run", run=name)["state"] == "done"
    _, picture = ask(server, f"/plan?{urlencode({'run': name})}")
    assert picture == (folder / "plain" / "plan.svg").read_bytes()


def test_what_the_page_has_already_is_not_sent_again(server: Server, folder: Path) -> None:
    """Until something is new."""
    path = f"/curves?{urlencode({'x': 'env_steps', 'y': 'loss', 'run': folder / 'plain'})}"
    first, _ = ask(server, path)
    again, body = ask(server, path, If_None_Match=first.headers["ETag"])
    assert (again.status, body) == (304, b"")
    before = (folder / "plain" / "metrics.jsonl").read_text()
    with (folder / "plain" / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 50, "loss": 9.0}\n')
    new, _ = ask(server, path, If_None_Match=first.headers["ETag"])
    assert new.status == 200
    (folder / "plain" / "metrics.jsonl").write_text(before)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "evil.example:7007", "localhost@evil"])
def test_another_name_that_leads_here_is_refused(server: Server, host: str) -> None:
    """E7, DNS rebinding: a page of somebody else's gets nothing, whatever it asks for."""
    for path in ("/", "/runs"):
        answer, body = ask(server, path, Host=host)
        assert answer.status == 403
        assert b"plain" not in body


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "LOCALHOST:9999"])
def test_its_own_names_are_taken_also_behind_a_tunnel(server: Server, host: str) -> None:
    assert ask(server, "/runs", Host=host)[0].status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/secret.txt",
        "/page.py",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/run",
        "/run?run=..",
        "/plan?run=/etc",
        "/film?run={evil}&film=../secret.txt",
        "/film?run={evil}&film=/etc/passwd",
        "/film?run={evil}&film=metrics.jsonl",
        "/film?run={evil}",
        "/curves?x=env_steps",
    ],
)
def test_nothing_but_the_runs_is_served(server: Server, folder: Path, path: str) -> None:
    answer, body = ask(server, path.format(evil=urlencode({"": folder / EVIL})[1:]))
    assert answer.status == 404
    assert b"secret" not in body


@pytest.mark.parametrize(
    ("asked", "status", "part"),
    [
        ("", 200, FILM),
        ("bytes=0-", 200, FILM),
        ("bytes=10-19", 206, FILM[10:20]),
        ("bytes=190-", 206, FILM[190:]),
        ("bytes=-5", 206, FILM[-5:]),
        ("bytes=500-", 200, FILM),
        ("lines=1-2", 200, FILM),
    ],
)
def test_a_film_is_sent_in_parts(server: Server, folder: Path, asked: str, status: int, part: bytes) -> None:
    path = f"/film?{urlencode({'run': folder / EVIL, 'film': 'a.mp4'})}"
    answer, body = ask(server, path, Range=asked)
    assert (answer.status, body) == (status, part)
    head, nothing = ask(server, path, "HEAD", Range=asked)
    assert (head.headers["Content-Length"], nothing) == (str(len(part)), b"")


def test_it_only_reads(server: Server) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert ask(server, "/runs", method)[0].status == 501


def test_it_listens_on_this_machine_alone(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_a_port_in_use_is_a_line(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = flowrl("ui", folder, "--port", port)
    words = f"port {port} is in use: give another one by --port, or --port 0 for any that is free"
    assert (done.exit_code, done.stderr) == (2, f"Error: {words}\n")


def test_the_command_says_where_and_ends_by_ctrl_c(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Server) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "serve_forever", interrupted)
    done = flowrl("ui", folder, "--port", 0)
    assert done.exit_code == 0
    assert done.stdout.startswith("http://127.0.0.1:")
    assert done.stdout.endswith("/ shows 2 runs; Ctrl-C ends it\n")


#: What a stranger may write in place of a file of a run.
ODD = {
    "profile.json": ['{"layout": 1}', "[]", "{" * 9_000, '{"ledger": 1e999}', "\xff"],
    "summary.json": ["[1]", '{"outcome": 1e308, "error": 5}'],
    "config.json": ['{"seed": 1e999}', '{"env": [[]]}', "null"],
    "run.json": ['{"plan": {}, "path": 5}', "[]"],
    "metrics.jsonl": [
        '{"env_steps": 1e20, "policy_lag": 1e20}\n',
        "[1]\n{}\nnull\n",
        '{"env_steps": ' + "9" * 5_000 + "}\n",
    ],
    "plan.svg": [""],
}


@pytest.mark.parametrize("name", ODD)
def test_no_file_of_one_run_takes_the_others_from_the_page(folder: Path, tmp_path: Path, name: str) -> None:
    """E13: files that are odd, folders, pipes, or links to what is elsewhere; each request has an answer."""
    shutil.copytree(folder / "plain", tmp_path / "runs" / "good")
    bad = tmp_path / "runs" / "bad"
    (tmp_path / "elsewhere").write_text('{"plan": "secret", "secret": 7}\n')
    odd = bad / name
    makes = [partial(odd.write_text, text, "latin-1") for text in ODD[name]]
    makes += [odd.mkdir, partial(os.mkfifo, odd), partial(odd.symlink_to, tmp_path / "elsewhere")]  # type: ignore[list-item]
    for make in makes:
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(folder / "plain", bad)
        (bad / "summary.json").unlink()
        odd.unlink(missing_ok=True)
        make()
        with served(tmp_path / "runs") as server:
            assert str(bad.with_name("good")) in [each["name"] for each in values(server, "/runs")["runs"]]
            for path in ("/run", "/plan", "/film"):
                answer, body = ask(server, f"{path}?{urlencode({'run': bad, 'film': 'x.mp4'})}")
                assert answer.status in (200, 404), body
                assert b"secret" not in body


@pytest.mark.parametrize(("path", "host"), [("//[", "localhost"), ("/runs", "["), ("/runs", "localhost:x")])
def test_odd_requests_have_an_answer(server: Server, path: str, host: str) -> None:
    """E13."""
    assert ask(server, path, Host=host)[0].status in (200, 400, 403, 404)


def test_an_odd_range_is_the_whole(server: Server, folder: Path) -> None:
    """E13."""
    film = f"/film?{urlencode({'run': folder / EVIL, 'film': 'a.mp4'})}"
    assert ask(server, film, Range="bytes=0-" + "9" * 5_000)[1] == FILM
