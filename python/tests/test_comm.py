"""torch.distributed as zerorun.comm joins it: where its store listens, its variables, and forked children."""

import pytest
from launch import ALL, run, run_several
from zerorun import UserError, comm


def test_a_forked_child_ends_and_the_store_listens_only_where_ranks_need_it():
    run_several([("forked.py",), ("torch_store.py",)], timeout=120)


def test_the_store_of_torchrun_listens_only_where_ranks_need_it():
    run("torch_store.py", ranks=2, kind="torchrun")


@pytest.mark.parametrize("variables, expected", [
    ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, ["127.0.0.1", "10.1.2.3"]),
    ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}, ["10.1.2.3", ""]),
    ({"WORLD_SIZE": "2"}, ["10.1.2.3", ""])])
def test_addresses(variables, expected, monkeypatch):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert comm._addresses_to_listen("10.1.2.3") == expected
    assert comm._addresses_to_listen("127.0.0.2") == ["127.0.0.1", "127.0.0.2"]  # a loopback address is this host
    if variables.get("LOCAL_WORLD_SIZE") != "2":
        assert comm._addresses_to_listen("no-such-host.invalid") == [""]
        monkeypatch.setattr(comm.socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", ("127.0.1.1", 0))])
        assert comm._addresses_to_listen("this-host") == [""]  # others resolve the name to another address


def test_empty_variables_count_as_unset(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")
    assert (comm.get_local_rank(), comm._variable("ZERORUN_TIMEOUT", 600.0)) == (0, 600.0)
    assert comm._variable("WORLD_SIZE", 1) == 1
    monkeypatch.setenv("ZERORUN_TIMEOUT", "soon")
    with pytest.raises(UserError, match="ZERORUN_TIMEOUT=soon: expected a number"):
        comm._variable("ZERORUN_TIMEOUT", 600.0)


@pytest.mark.skipif(not ALL, reason="scripts/test_python --all")
def test_a_forked_child_of_one_rank_ends():
    run("forked.py", ranks=1, timeout=60)


def test_the_process_group_ends_with_the_program():
    assert "initialized at the end: False" in run("ends.py", ranks=1)
