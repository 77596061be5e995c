"""NCCL's variables are set when zerorun is imported, and a process that used NCCL before gets a warning."""

import os
import subprocess
import sys
import warnings

import pytest
import torch
from zerorun import _nccl

ORDER, SHARED = _nccl._VARIABLES


@pytest.fixture
def unset(monkeypatch):
    for name in (ORDER, SHARED):
        monkeypatch.setenv(name, "")  # so that monkeypatch restores it
        monkeypatch.delenv(name)


def use_nccl(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "cpu:gloo,cuda:nccl")


def test_importing_sets_them(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    code = f"import os, zerorun; print(os.environ[{ORDER!r}], os.environ[{SHARED!r}])"
    done = subprocess.run([sys.executable, "-W", "error::RuntimeWarning", "-c", code], env={**environment, SHARED: "0"},
                          cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout == "1 0\n"


def test_a_process_that_uses_nccl_already(monkeypatch, unset):
    use_nccl(monkeypatch)
    with pytest.warns(RuntimeWarning, match=f"NCCL may ignore {ORDER} and {SHARED}: import zerorun before"):
        _nccl.set_variables()
    assert os.environ[ORDER] == "1"


def test_no_warning_without_a_reason(monkeypatch, unset):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _nccl.set_variables()  # torch.distributed is not initialized
        use_nccl(monkeypatch)
        _nccl.set_variables()  # the variables are set
