"""deepspeed.utils.zero_to_fp32: the weights of a checkpoint in fp32, as a state_dict or as files. `zerorun checkpoint export`
reads the checkpoint; save_checkpoint() leaves lone_zero_to_fp32.py beside its checkpoints, which calls main()."""

import argparse
import copy
import json
import logging
import math
import os
import pathlib
import shutil
import subprocess
import sysconfig
import tempfile

import torch

from ._core import UserError, saved_tensors
from ._registry import engine_of
from .errors import not_supported

log = logging.getLogger("zerorun")

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
           "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
           "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
_ONE_FILE = "1000000GB"
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag=None, exclude_frozen_parameters=False, lazy_mode=False):
    """The state_dict of the checkpoint with this tag, or of the last one, in fp32 on the CPU. Tensors read their values from
    the disk when they are used. `lazy_mode` has no effect. Raises UserError."""
    place = checkpoint_dir if os.access(checkpoint_dir, os.W_OK) else None  # where there is room
    with tempfile.TemporaryDirectory(dir=place, prefix=".fp32.", ignore_cleanup_errors=True) as folder:  # tensors keep its files open
        _export(checkpoint_dir, folder, tag, _ONE_FILE)
        state = _read_safetensors(next(pathlib.Path(folder).glob("*.safetensors")))
    for saved in saved_tensors(os.fsencode(checkpoint_dir), "" if tag is None else str(tag)):
        if exclude_frozen_parameters and not saved.trained and not saved.is_buffer:
            state.pop(saved.name, None)
        if saved.name in state:
            state.update(dict.fromkeys(saved.aliases, state[saved.name]))
    return state


def convert_zero_checkpoint_to_fp32_state_dict(checkpoint_dir, output_dir, max_shard_size="5GB", safe_serialization=False,
                                               tag=None, exclude_frozen_parameters=False):
    """Writes the fp32 weights into output_dir: pytorch_model.bin, or with safe_serialization model.safetensors; several
    files and an index if they have more bytes than max_shard_size. Raises UserError."""
    if safe_serialization and not exclude_frozen_parameters:
        _export(checkpoint_dir, output_dir, tag, max_shard_size or _ONE_FILE)
        return
    if safe_serialization:
        raise not_supported("safe_serialization with exclude_frozen_parameters", "leave one of them out")
    state = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag, exclude_frozen_parameters)
    os.makedirs(output_dir, exist_ok=True)
    shards = _shards(state, _bytes(max_shard_size))
    names = [f"pytorch_model-{index + 1:05d}-of-{len(shards):05d}.bin" for index in range(len(shards))]
    if len(shards) == 1:
        names = ["pytorch_model.bin"]
    for name, shard in zip(names, shards):
        torch.save({key: state[key].clone() for key in shard}, os.path.join(output_dir, name))
    if len(shards) > 1:
        total = sum(value.nbytes for value in state.values())
        index = {"metadata": {"total_size": total},
                 "weight_map": {key: name for name, shard in zip(names, shards) for key in shard}}
        path = pathlib.Path(output_dir) / "pytorch_model.bin.index.json"
        path.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def load_state_dict_from_zero_checkpoint(model, checkpoint_dir, tag=None):
    """Loads the checkpoint's weights into the model, whose dtypes stay, and returns it, on the CPU. A model of an engine stays the
    engine's: the result is then a plain copy, which this rank makes alone. Raises UserError."""
    engine = engine_of(list(model.parameters()))
    state = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag)
    if engine is not None:
        lacking = [name for name, _ in model.named_parameters() if name not in state]
        if lacking:
            raise UserError(f"load_state_dict_from_zero_checkpoint(): the checkpoint lacks {lacking[0]}, and the model belongs to an "
                            "engine: pass a new model that has all values, or call engine.load_checkpoint()")
        model = _copy_without_values(model, engine)
    model = model.cpu()
    model.load_state_dict(state, strict=False)
    return model


def _copy_without_values(model, engine):
    """Values of the engine's parameters may be with other ranks."""
    memo = {}
    for parameter in model.parameters():
        shape = engine._whole_shapes.get(id(parameter), parameter.shape)
        memo[id(parameter)] = torch.nn.Parameter(torch.empty(shape, dtype=parameter.dtype), requires_grad=parameter.requires_grad)
    return copy.deepcopy(model, memo)


def get_optim_files(checkpoint_dir):
    raise _no_torch_files("get_optim_files")


def get_model_state_file(checkpoint_dir, zero_stage=None):
    raise _no_torch_files("get_model_state_file")


def get_model_state_files(checkpoint_dir):
    raise _no_torch_files("get_model_state_files")


def _no_torch_files(name):
    return not_supported(f"zero_to_fp32.{name}()", "a checkpoint of zerorun has no files of torch.save(); "
                         "get_fp32_state_dict_from_zero_checkpoint() has the weights, engine.load_checkpoint() returns the "
                         "program's own state")


def leave_script(save_dir):
    """Writes the script zero_to_fp32.py beside the checkpoints, unless it is there. If that fails, only the log says so."""
    path = pathlib.Path(os.fsdecode(save_dir)) / "zero_to_fp32.py"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(pathlib.Path(__file__).with_name("lone_zero_to_fp32.py"), path)
    except OSError as error:
        log.warning("cannot write the script %s beside the checkpoint: %s", path, error.strerror)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Writes the fp32 weights of a checkpoint as one state_dict.")
    parser.add_argument("checkpoint_dir", help="the folder with the file `latest`")
    parser.add_argument("output_dir", help="the folder for pytorch_model.bin, or model.safetensors")
    parser.add_argument("--max_shard_size", default="5GB", help="write several files, of at most so many bytes")
    parser.add_argument("--safe_serialization", action="store_true", help="write safetensors")
    parser.add_argument("-t", "--tag", help="which checkpoint; by default the last one")
    parser.add_argument("--exclude_frozen_parameters", action="store_true")
    parser.add_argument("-d", "--debug", action="store_true", help="has no effect")
    given = vars(parser.parse_args(arguments))
    del given["debug"]
    convert_zero_checkpoint_to_fp32_state_dict(**given)


def command_of_package():
    """The program `zerorun` that was installed with this package."""
    beside = os.path.join(sysconfig.get_path("scripts"), "zerorun")
    return beside if os.path.exists(beside) else shutil.which("zerorun") or "zerorun"


def _export(checkpoint_dir, folder, tag, max_shard_size):
    command = [command_of_package(), "checkpoint", "export"]
    if tag is not None:
        command += ["--tag", str(tag)]
    command += ["--max-shard-size", str(max_shard_size), os.fspath(checkpoint_dir), os.fspath(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"cannot run {command[0]}, which reads checkpoints: {error.strerror}") from error
    if done.returncode != 0:
        raise UserError(done.stderr.strip().removeprefix("zerorun: "))


def _read_safetensors(path):
    """Tensors that share the file's memory map."""
    size = path.stat().st_size
    data = torch.from_file(str(path), size=size, dtype=torch.uint8)
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        part, dtype = data[begin:end], _DTYPES[entry["dtype"]]
        if begin % dtype.itemsize:  # buffers of bytes may come before it
            part = part.clone()
        tensors[name] = part.view(dtype).reshape(entry["shape"])
    return tensors


def _bytes(size):
    """"5GB" in bytes; None is no limit."""
    if size is None or isinstance(size, int):
        return math.inf if size is None else size
    number = size.rstrip("KMGTiIbB ")
    return int(float(number) * _UNITS[size[len(number):].strip().upper()])


def _shards(state, most):
    """Lists of names, in order, of at most so many bytes each."""
    shards, used = [[]], 0
    for name, value in state.items():
        if shards[-1] and used + value.nbytes > most:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += value.nbytes
    return shards
