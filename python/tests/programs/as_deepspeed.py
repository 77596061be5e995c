"""Prints what a program finds under the name deepspeed. Written for DeepSpeed: it does not know zerorun."""

import importlib.metadata
import importlib.util
import sys

assert "deepspeed" not in sys.modules
print("arguments:", sys.argv[1:])
print("found:", importlib.util.find_spec("deepspeed").origin)
print("version:", importlib.metadata.version("deepspeed"), importlib.metadata.packages_distributions()["deepspeed"])

import deepspeed  # noqa: E402

print("package:", deepspeed.__version__, deepspeed.__file__)
# Submodules without an import of their own.
assert "WarmupLR" in deepspeed.runtime.lr_schedules.VALID_LR_SCHEDULES
assert deepspeed.utils.logging.logger is deepspeed.utils.logger
assert deepspeed.zero.Init is deepspeed.runtime.zero.partition_parameters.Init
assert importlib.util.find_spec("deepspeed.runtime.zero.partition_parameters") is not None
assert importlib.util.find_spec("deepspeed.no_such_module") is None
assert not hasattr(deepspeed, "no_such_name")

from deepspeed.runtime.zero import partition_parameters  # noqa: E402

before = partition_parameters.zero_wrapper_for_fp_tensor_constructor
partition_parameters.zero_wrapper_for_fp_tensor_constructor = print
assert partition_parameters.zero_wrapper_for_fp_tensor_constructor is print
partition_parameters.zero_wrapper_for_fp_tensor_constructor = before
assert before(partition_parameters._orig_torch_arange)(3).tolist() == [0, 1, 2]


class Hybrid(deepspeed.DeepSpeedHybridEngine):
    device = deepspeed.get_accelerator().device_name()


assert Hybrid.device == "cpu" and not isinstance(deepspeed, Hybrid)
for call in (Hybrid, lambda: deepspeed.init_inference(model=None), lambda: deepspeed.utils.OnDevice(dtype=None)):
    try:
        call()
    except NotImplementedError as error:
        print("refused:", error)

if "--train" in sys.argv:
    import torch

    engine = deepspeed.initialize(model=torch.nn.Linear(3, 3), config={
        "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": {"lr": 0.1}}})[0]
    assert isinstance(engine, deepspeed.DeepSpeedEngine) and isinstance(engine.optimizer, deepspeed.DeepSpeedOptimizer)
    print("engine:", type(engine).__module__, engine.world_size)
