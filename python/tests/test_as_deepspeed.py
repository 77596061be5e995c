"""zerorun under the name deepspeed: who gets it, what a program finds, and how programs start."""

import importlib
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import unittest.mock

import pytest
from framework_names import names_in
from launch import PROGRAMS, environment

import zerorun
from zerorun import as_deepspeed
from zerorun.as_deepspeed import __main__ as command

PROGRAM = str(PROGRAMS / "as_deepspeed.py")
SCRIPTS = pathlib.Path(sys.executable).parent
SCRIPT = """import os, sys
assert "torch" not in sys.modules and sys.argv[1:] == ["--a"] and sys.path[0] == os.path.dirname(__file__)
import deepspeed
deepspeed.initialize(model=3, config={})
"""


def test_a_script_runs_as_without_it(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(SCRIPT)
    output = posing(program, "--a", expect=1)
    assert "Traceback" in output and f'File "{program}", line 4' in output and "FailedAssertion: initialize(): model is a int" in output


RECORDED = pathlib.Path(__file__).parent / "data" / "framework_names.tsv"
# Names that frameworks take, and that DeepSpeed 0.19.8 does not have either.
NOT_OF_DEEPSPEED = {"deepspeed.utils.is_initialized"}


def run(*command, expect=0, cwd=PROGRAMS, **more):
    variables = {**environment(), **more}
    variables["PYTHONPATH"] = more.get("PYTHONPATH", "")
    done = subprocess.run(list(map(str, command)), env=variables, cwd=cwd, timeout=120, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == expect, done.stdout
    return done.stdout


def posing(*command, **more):
    return run(sys.executable, "-m", "zerorun.as_deepspeed", *command, **more)


def asked(*arguments):
    """What python -m zerorun.as_deepspeed would run in its place; in this process, which has imported torch already."""
    with unittest.mock.patch.dict(os.environ), unittest.mock.patch.object(command, "_execute", lambda program: program):
        return command.main(list(map(str, arguments)))


def check_output(output):
    folder = str(as_deepspeed.FOLDER)
    assert f"found: {folder}/deepspeed/__init__.py" in output
    assert "version: 0.19.8 ['deepspeed']" in output
    assert f"package: 0.19.8 {folder}/deepspeed/__init__.py" in output
    assert "refused: deepspeed.DeepSpeedHybridEngine is not supported by zerorun: call engine.module" in output
    assert "refused: deepspeed.init_inference is not supported by zerorun: serve the model" in output
    assert "refused: deepspeed.utils.OnDevice is not supported by zerorun: build the model" in output


def test_nobody_gets_it_unasked():
    found = importlib.util.find_spec("deepspeed")
    assert found is None or not found.origin.startswith(str(as_deepspeed.FOLDER))
    installed = [str(file) for file in importlib.metadata.files("zerorun")]
    assert not [name for name in installed if name.endswith(".pth") or name.split("/")[0].startswith("deepspeed")]
    assert not [entry for entry in importlib.metadata.distribution("zerorun").entry_points if "deepspeed" in entry.name]


def test_a_script_finds_it_and_its_arguments():
    output = posing(PROGRAM, "--train", "--print-env", "-m")
    check_output(output)
    assert "arguments: ['--train', '--print-env', '-m']" in output
    assert "engine: zerorun.engine 1" in output


def test_a_module_and_a_command_find_it(tmp_path):
    check_output(posing("-m", "as_deepspeed", PYTHONPATH=str(PROGRAMS)))
    check_output(posing(sys.executable, PROGRAM))
    assert "cannot run 'no_such_command': No such file" in posing("no_such_command", expect=1)
    with pytest.raises(zerorun.UserError, match="cannot run 'no_such.py': no such file"):
        asked("no_such.py")
    with pytest.raises(zerorun.UserError, match="--nproc: unknown option before the program's name"):
        asked("--nproc", "2", PROGRAM)


def test_a_shell_gets_the_variables():
    check_output(run("sh", "-c", f'eval "$({sys.executable} -m zerorun.as_deepspeed --print-env)"; {sys.executable} {PROGRAM}'))
    first = as_deepspeed.variables({"PATH": "/bin", "PYTHONPATH": "/a:/b"})
    assert first["PYTHONPATH"] == f"{as_deepspeed.FOLDER}:/a:/b"
    assert first["PATH"].split(":")[:2] == [str(as_deepspeed.FOLDER / "bin"), "/bin"]
    assert as_deepspeed.variables(first) == first  # once is enough


def test_the_launcher_has_an_option_for_it():
    output = run(SCRIPTS / "zerorun", "--num_gpus", "1", "--as-deepspeed", PROGRAM, "--train")
    check_output(output)
    assert "engine: zerorun.engine 1" in output


def test_the_command_deepspeed_is_the_launcher():
    output = posing("deepspeed", "--num_gpus", "2", "--module", "as_deepspeed", "--train", PYTHONPATH=str(PROGRAMS))
    for rank in range(2):
        assert f"arguments: ['--local_rank={rank}', '--train']" in output
    assert output.count("package: 0.19.8 ") == 2
    assert output.count("engine: zerorun.engine 2") == 2
    launcher, variables = as_deepspeed.FOLDER / "bin/deepspeed", as_deepspeed.variables(environment(PYTHONPATH=""))
    output = run(launcher, "--num_gpus", "2", "--no_local_rank", "--no_python", "echo", "arguments:", "--a", **variables)
    assert output.count("arguments: --a\n") == 2
    assert "does not support" in run(launcher, "--elastic_training", PROGRAM, expect=2, **variables)


def test_another_deepspeed_before_it_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").write_text("")
    program = tmp_path / "train.py"
    program.write_text("import deepspeed\n")
    refusal = f"another deepspeed, {tmp_path}/deepspeed/__init__.py"
    assert refusal in posing(program, expect=1)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    for arguments in (["--nproc_per_node", 2, program, "other.py"], ["-m", "train"], ["--module", "train"]):
        with pytest.raises(zerorun.UserError, match=re.escape(refusal)):
            asked("torchrun", *arguments)
    for runs in (["python", "-c", "1", str(program.with_name("none.py"))],  # no such script
                 ["python", "-c", "1", "-P", str(program)]):
        assert asked(*runs) == runs


@pytest.mark.parametrize("line, error", [
    ("from deepspeed.runtime.zero import of_tomorrow", "cannot import name 'of_tomorrow' from 'deepspeed.runtime.zero' ({names})"),
    ("import deepspeed; deepspeed.zero.of_tomorrow", "module 'deepspeed.runtime.zero' has no attribute 'of_tomorrow': it is zerorun under")])
def test_a_framework_of_another_version(line, error, tmp_path):
    """It takes names that DeepSpeed 0.19.8 does not have: the exception says whose names these are."""
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text(f'__version__ = "99.0"\n{line}\n')
    program = tmp_path / "train.py"
    program.write_text("import transformers\n")
    output = run(SCRIPTS / "zerorun", "--num_gpus", "2", "--as-deepspeed", program, expect=1)
    assert error.format(names=as_deepspeed.FOLDER.parent / "names.py") in output


@pytest.fixture(scope="module")
def package():
    """deepspeed, imported in this process."""
    sys.path.insert(0, str(as_deepspeed.FOLDER))
    yield importlib.import_module("deepspeed")
    sys.path.remove(str(as_deepspeed.FOLDER))
    for name in [name for name in sys.modules if name.split(".")[0] == "deepspeed"]:
        del sys.modules[name]


def find(name):
    """What `from MODULE import NAME` gives, or an attribute of that."""
    before, _, own = name.rpartition(".")
    if not before:
        return importlib.import_module(name)
    try:
        return getattr(importlib.import_module(before), own)
    except ModuleNotFoundError:
        return getattr(find(before), own)


def test_every_name_resolves(package):
    from zerorun.as_deepspeed.names import MODULES, REFUSED

    assert set(REFUSED) <= set(MODULES)
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            find(f"{module}.{name}")
    for module, names in REFUSED.items():
        for name in names:
            refused = find(f"{module}.{name}")
            assert isinstance(refused, type) and issubclass(type("Derived", (refused,), {}), refused)
            with pytest.raises(zerorun.NotSupportedError, match="is not supported by zerorun: "):
                refused()


@pytest.mark.parametrize("name", ["deepspeed.moe.layer.MoE", "deepspeed.runtime.pipe.schedule.TrainSchedule",
                                  "deepspeed.ops.fp_quantizer.FP_Quantize",
                                  "deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3", "deepspeed.DeepSpeedHybridEngine",
                                  "deepspeed.checkpoint.utils.get_model_ckpt_name_for_rank"])
def test_names_of_refused_modules(package, name):
    found = find(name)
    assert isinstance(found, type) and not isinstance(package, found)
    with pytest.raises(NotImplementedError, match="is not supported by zerorun: "):
        found()


# What public programs take besides what frameworks take: names that work, and names that refuse when they are called.
WORKING = """comm.configure comm.log_summary comm.mpi_discovery comm.reduce_op.ReduceOp constants.TORCH_DISTRIBUTED_DEFAULT_PORT
constants.default_pg_timeout git_version_info.git_hash ops.adagrad.cpu_adagrad.DeepSpeedCPUAdagrad ops.adam.cpu_adam.DeepSpeedCPUAdam
ops.lamb.fused_lamb.FusedLamb ops.lion.cpu_lion.DeepSpeedCPULion ops.lion.fused_lion.FusedLion runtime.compiler.is_compile_supported
runtime.config.ADAM_OPTIMIZER runtime.constants.GRADIENT_ACCUMULATION_STEPS runtime.engine.ZeroParamStatus ADAM_OPTIMIZER
utils.instrument_w_nvtx utils.nvtx.instrument_w_nvtx utils.set_log_level_from_string utils.logging.should_log_le
accelerator.abstract_accelerator.DeepSpeedAccelerator runtime.zero.offload_config.OffloadStateTypeEnum""".split()
REFUSING = """add_tuning_arguments comm.initialize_mesh_device comm.comm.all_gather_coalesced comm.torch.TorchBackend compile.init_z3
elasticity.compute_elastic_config env_report.main launcher.runner.parse_args nebula.config.DeepSpeedNebulaConfig
ops.sparse_attention.SparseSelfAttention runtime.activation_checkpointing.checkpointing.get_cuda_rng_tracker
runtime.config_utils.DeepSpeedConfigModel runtime.progressive_layer_drop.ProgressiveLayerDrop runtime.sparse_tensor.SparseTensor
runtime.state_dict_factory.SDLoaderFactory runtime.utils.clip_grad_norm_ runtime.utils.CheckOverflow runtime.zero.MiCS_Init
runtime.zero.tiling.TiledLinear utils.timer.SynchronizedWallClockTimer utils.tensor_fragment.safe_get_local_grad
utils.get_full_hp_param utils.init_on_device.OnDevice utils.bwc.bwc_tensor_model_parallel_rank""".split()


def test_names_that_programs_take_resolve_or_refuse(package):
    for name in WORKING:
        assert type(find(f"deepspeed.{name}")).__name__ != "_Refused", name
    for name in REFUSING:
        with pytest.raises(zerorun.NotSupportedError, match=f"deepspeed.{name} is not supported by zerorun: "):
            find(f"deepspeed.{name}")()


def test_what_names_of_programs_do(package, caplog):
    with caplog.at_level("WARNING", logger="zerorun"):
        assert package.comm.log_summary() is None and package.comm.log_summary(return_dict=True) == {}
    assert "log_summary(): no engine records its collectives" in caplog.text
    named = package.utils.instrument_w_nvtx(lambda a, b=2: a + b)
    assert named(1) == 3 and named(1, b=3) == 4
    level = package.utils.logger.level
    package.utils.set_log_level_from_string("error")
    assert not package.utils.logging.should_log_le("info") and package.utils.logging.should_log_le("error")
    package.utils.logger.setLevel(level)
    with pytest.raises(ValueError, match="'loud' is no log level"):
        package.utils.set_log_level_from_string("loud")


def check_name(name):
    if name in NOT_OF_DEEPSPEED:
        with pytest.raises(AttributeError, match="it is zerorun under the name deepspeed"):
            find(name)
        return
    try:
        find(name)
    except zerorun.NotSupportedError as error:
        assert str(error).startswith(name.rpartition(".")[0])  # the remedy follows


def test_names_that_frameworks_take_resolve_or_refuse(package):
    names = [line.split("\t")[0] for line in RECORDED.read_text().splitlines() if not line.startswith("#")]
    assert len(names) > 50
    for name in names:
        check_name(name)


@pytest.mark.parametrize("framework", ["accelerate", "transformers", "peft", "trl", "lightning"])
def test_names_in_installed_frameworks_resolve_or_refuse(package, framework):
    spec = importlib.util.find_spec(framework)
    if spec is None:
        pytest.skip(f"{framework} is not installed")
    found = names_in(os.path.dirname(spec.origin))
    assert found
    for name in found:
        check_name(name)
