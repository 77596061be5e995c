"""deepspeed.ops.op_builder: what DeepSpeed compiles when it is first used. Programs ask which of these are compatible; here
all kernels are compiled with the package."""

from ..errors import not_supported


class OpBuilder:
    NAME = None

    def is_compatible(self, verbose=False):
        return compatible_ops[self.NAME]

    def load(self, verbose=False):
        raise not_supported(f"deepspeed.ops.op_builder.{type(self).__name__}.load()",
                            "its kernels are parts of zerorun: name the optimizer in the config, or take deepspeed.ops")


def _builder(class_name, name):
    return type(class_name, (OpBuilder,), {"NAME": name, "__module__": __name__})


CPUAdamBuilder = _builder("CPUAdamBuilder", "cpu_adam")
CPUAdagradBuilder = _builder("CPUAdagradBuilder", "cpu_adagrad")
CPULionBuilder = _builder("CPULionBuilder", "cpu_lion")
FusedAdamBuilder = _builder("FusedAdamBuilder", "fused_adam")
FusedLambBuilder = _builder("FusedLambBuilder", "fused_lamb")
FusedLionBuilder = _builder("FusedLionBuilder", "fused_lion")
AsyncIOBuilder = _builder("AsyncIOBuilder", "async_io")
UtilsBuilder = _builder("UtilsBuilder", "utils")

_BUILDERS = [CPUAdamBuilder, CPUAdagradBuilder, CPULionBuilder, FusedAdamBuilder, FusedLambBuilder, FusedLionBuilder,
             AsyncIOBuilder, UtilsBuilder]
# By name, as deepspeed.ops.__compatible_ops__. Not async_io: it is asked for to write files with DeepSpeed's own functions.
compatible_ops = {builder.NAME: builder is not AsyncIOBuilder for builder in _BUILDERS}
compatible_ops["deepspeed_not_implemented"] = False
