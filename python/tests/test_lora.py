"""PEFT's LoRA on transformers' GPT-2 with recomputation trains as under plain torch."""

import importlib.util

import pytest
from launch import run


def test_lora():
    for package in ("transformers", "peft"):
        if not importlib.util.find_spec(package):
            pytest.skip(f"there is no {package}: scripts/wheel installs it")
    run("lora.py", 2, 3, ranks=2)
