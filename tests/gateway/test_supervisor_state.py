from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gateway.refusals import StartRefused
from gateway.supervisor.listening import listen, url_of
from gateway.supervisor.mlflow import free_port
from gateway.supervisor.state import StateFolder, make_run_folder


def test_a_second_holder_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    first = StateFolder(tmp_path / ".lamina")
    first.hold()

    with pytest.raises(StartRefused, match=rf"pid {os.getpid()}\) holds .*another folder"):
        StateFolder(tmp_path / ".lamina").hold()

    assert first.is_held()
    first.release()
    assert not first.is_held()
    second = StateFolder(tmp_path / ".lamina")
    second.hold()
    second.release()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StartRefused, match="cannot write the state folder"):
        StateFolder(tmp_path / "file" / ".lamina").hold()


def test_the_tenant_key_is_made_once_and_private(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)

    state.ensure_tenant_key()
    key = state.tenant_key_file.read_text()
    state.ensure_tenant_key()

    assert len(key) == 64
    assert state.tenant_key_file.read_text() == key
    assert state.tenant_key_file.stat().st_mode & 0o777 == 0o600


def test_the_run_folder_is_short_private_and_the_earlier_one_goes(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)

    first = make_run_folder(state)
    second = make_run_folder(state)

    assert not first.exists()
    assert second.stat().st_mode & 0o777 == 0o700
    assert len(os.fsencode(second / "valkey.sock")) <= 107
    second.rmdir()


def test_a_temporary_folder_with_a_long_path_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("d" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))

    run = make_run_folder(StateFolder(tmp_path))

    assert len(os.fsencode(run / "valkey.sock")) <= 107
    run.rmdir()


def test_a_status_that_cannot_be_read_is_an_empty_one(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)

    assert state.read_status() == {}
    state.write_status({"pid": 1})
    assert state.read_status() == {"pid": 1}


def test_a_taken_port_is_refused_with_the_next_one_offered() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]

        with pytest.raises(StartRefused, match=rf"port {port} on 127.0.0.1 is taken.*--port {port + 1}"):
            listen("127.0.0.1", port)


def test_the_listening_socket_is_not_shared_by_reuseport() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) == 0
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(StartRefused, match=r"192\.0\.2\.1"):
        listen("192.0.2.1", 0)


def test_mlflow_takes_the_next_free_port() -> None:
    with listen("127.0.0.1", 0) as first:
        taken = first.getsockname()[1]

        assert free_port(taken) > taken
