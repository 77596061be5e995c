"""Each kind of bad input gives one Python exception that names the remedy. The engine stays usable where that is possible."""

import contextlib
import importlib.metadata
import pickle
import sys

import pytest
import torch
import zerorun
from small import config, loss_of, make, net, step
from zerorun import NotSupportedError, UserError, _check


def refused(match, action):
    with pytest.raises(UserError, match=match):
        action()


def initialize(model=None, conf=None, **more):
    return zerorun.initialize(model=net() if model is None else model, config=config() if conf is None else conf, **more)


def test_another_torch():
    built_for = ".".join(torch.__version__.split(".")[:2])
    tag = "cp%d%d" % sys.version_info[:2]
    with pytest.raises(ImportError, match=rf"built for torch {built_for}, found torch 2\.10\.0\+cpu.*zerorun-[0-9.]*\+torch2\.10-{tag}-"
                       rf".*--torch 2\.10.*pip install 'torch=={built_for}\.\*'"):
        _check.check_torch("2.10.0+cpu", True)
    with pytest.raises(ImportError, match="ABI"):
        _check.check_torch(built_for + ".0", False)
    with pytest.raises(ImportError, match="dispatch key"):
        _check.check_key(False)
    for patch in (".0+cu130", ".1", ".17+cpu"):
        _check.check_torch(built_for + patch, True)


def test_what_pip_is_told():
    built_for = ".".join(torch.__version__.split(".")[:2])
    metadata = importlib.metadata.metadata("zerorun")
    assert metadata["Version"] == f"{zerorun.__version__}+torch{built_for}"
    assert metadata.get_all("Requires-Dist") == [f"torch=={built_for}.*"]


def test_models():
    refused("meta", lambda: initialize(net().to("meta")))
    refused("expected a torch.nn.Module", lambda: initialize("model"))
    refused("engine already", lambda: initialize(make()))
    frozen = net().requires_grad_(False)
    refused("nothing to train", lambda: initialize(frozen, {"train_micro_batch_size_per_gpu": 1}, optimizer=torch.optim.SGD(
        frozen.parameters(), lr=0.1)))
    refused("float64|kDouble|Double", lambda: initialize(net().double()))
    shared = net()
    shared[0].bias = torch.nn.Parameter(shared[0].weight.detach().view(-1)[:16])
    refused("share memory", lambda: initialize(shared))


def test_a_model_on_two_devices(tmp_path):
    """As from_pretrained(device_map=...) spreads it."""
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.dispatch_model(net(), {"0": "cpu", "1": "cpu", "2": "disk"}, main_device="cpu", offload_dir=tmp_path)
    refused("the model is spread over the devices cpu, disk by its device_map: load it without", lambda: initialize(model))
    refused("module 0 is spread over the devices", lambda: initialize(torch.nn.Sequential(model)))


def test_modules_of_torch_jit():
    for module in (torch.jit.script(net()), torch.jit.trace(net(), torch.ones(1, 6))):
        refused("the model is a .* of torch.jit.*pass the module from which it was made", lambda: initialize(module))
        inner = torch.nn.Sequential(torch.nn.Linear(6, 6), module)
        refused("module 1 is a .* of torch.jit", lambda: initialize(inner))
        step(make(1, net()))  # nothing is left behind


def test_lazy_modules():
    def lazy():
        return torch.nn.Sequential(torch.nn.LazyLinear(16), torch.nn.LazyBatchNorm1d(), torch.nn.Linear(16, 3))

    refused("parameter 0.weight has no shape yet.*call the model once", lambda: initialize(lazy()))
    buffers = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.LazyBatchNorm1d(affine=False))
    refused("buffer 1.running_mean has no shape yet", lambda: initialize(buffers))
    model = lazy()
    model(torch.ones(4, 6))
    engine = initialize(model)[0]
    engine.backward(engine(torch.ones(4, 6)).square().sum())
    engine.step()


def test_sparse_tensors():
    """The remedy for a tensor that is sparse is another than for one with gaps."""
    for trained in (True, False):
        model = net()
        model.register_parameter("sparse", torch.nn.Parameter(torch.eye(3).to_sparse(), requires_grad=trained))
        refused(r"sparse is a sparse tensor: make it dense with .to_dense\(\)", lambda: initialize(model))
    model = net()
    model.register_buffer("table", torch.eye(3).to_sparse())
    refused(r"table is a sparse tensor: .*to_dense\(\)", lambda: initialize(model))


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=True)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return NotImplemented


def test_a_tensor_class_of_python():
    model = net()
    model[0]._parameters["weight"] = Wrapper(torch.ones(16, 6))
    refused("0.weight .*tensor class", lambda: initialize(model))


def test_a_compiled_model():
    refused("engine.compile", lambda: initialize(torch.compile(net())))
    refused("schedule", lambda: make().compile(schedule=[]))


def test_configs(tmp_path):
    refused("zero_optimisation", lambda: initialize(conf={**config(), "zero_optimisation": {}}))
    refused("the config dict", lambda: initialize(conf={**config(), "gradient_clipping": "high"}))
    refused("cannot read", lambda: initialize(conf=tmp_path / "none.json"))
    refused("no config", lambda: zerorun.initialize(model=net()))
    refused("JSON", lambda: initialize(conf={**config(), "gradient_clipping": object()}))
    refused("expected a dict", lambda: initialize(conf=3))
    file = tmp_path / "ds_config.json"
    file.write_text('{\n  "train_micro_batch_size_per_gpu": 1,\n  "gradient_cliping": 1\n}')
    refused(r"ds_config.json:3:\d+", lambda: initialize(conf=file))
    refused("without an optimizer", lambda: initialize(conf={"train_micro_batch_size_per_gpu": 1}, lr_scheduler=object()))


def test_optimizers():
    none = {"train_micro_batch_size_per_gpu": 1}
    model = net()
    refused("LBFGS", lambda: initialize(model, none, optimizer=torch.optim.LBFGS(model.parameters())))
    refused("nothing to train|no parameter group", lambda: zerorun.initialize(model=model, config=config(), model_parameters=[]))
    stepped = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 6)).sum().backward()
    stepped.step()
    refused("been stepped", lambda: initialize(model, none, optimizer=stepped))
    refused("maximize", lambda: initialize(model, none, optimizer=torch.optim.SGD(model.parameters(), maximize=True)))
    other = net()
    refused("parameter", lambda: initialize(model, none, optimizer=torch.optim.SGD(other.parameters())))
    two = torch.optim.SGD([{"params": model[0].parameters(), "momentum": 0.9}, {"params": model[2].parameters()}], lr=0.1)
    refused("momentum", lambda: initialize(model, none, optimizer=two))
    engine = make()
    refused("engine.step", engine.optimizer.step)
    refused("save_checkpoint", lambda: pickle.dumps(engine.optimizer.state_dict()))
    schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(net().parameters(), lr=1), 1)
    refused("another optimizer", lambda: initialize(lr_scheduler=schedule))


@pytest.mark.parametrize("stage", [0, 3])
def test_a_parameter_replaced_after_initialize(stage):
    engine = make(stage)
    old = engine.module[0].weight
    engine.module[0].weight = torch.nn.Parameter(torch.ones(16, 6))
    loss = loss_of(engine)
    engine.backward(loss)
    refused("0.weight was replaced", engine.step)
    engine.module[0].weight = old
    engine.step()
    step(engine)


def test_parameters_added_after_initialize():
    """The engine would not train them."""
    engine = make(3)
    engine.module.append(torch.nn.Linear(3, 3))
    engine.backward(loss_of(engine))
    refused("3.weight was added after initialize", engine.step)
    engine.module[3].requires_grad_(False)
    engine.step()
    head = engine.module[2]
    engine.module[2] = torch.nn.Linear(16, 3)
    engine.backward(loss_of(engine))
    refused("2.weight was added after initialize", engine.step)
    engine.module[2] = head
    engine.step()
    engine.module[0].register_parameter("scale", torch.nn.Parameter(torch.ones(1)))
    engine.backward(loss_of(engine))
    refused("0.scale was added after initialize", engine.step)


def test_hyperparameters_changed_after_initialize():
    model, plain = net(), {name: value for name, value in config().items() if name != "optimizer"}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=9)  # cycles the momentum
    engine, _, _, _ = zerorun.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=plain)
    step(engine)
    engine.backward(loss_of(engine))
    refused("group 0: momentum changed after initialize", engine.step)


def test_a_model_moved_after_initialize():
    engine = make(3)
    step(engine)
    engine.module.double()
    with pytest.raises(zerorun.Error, match="left its bucket"):
        engine.save_checkpoint("/nonexistent")


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_exceptions_in_forward_and_backward(stage):
    engine, twin = make(stage), make(0)

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ZeroDivisionError("of the program")

    with pytest.raises(ZeroDivisionError, match="of the program"):
        engine.backward(Failing.apply(engine.module[0](torch.ones(2, 6))).sum())
    with pytest.raises(RuntimeError, match="shapes"):
        engine(torch.ones(2, 5))
    with pytest.raises(KeyboardInterrupt):
        with zerorun.zero.GatheredParameters(list(engine.module.parameters())):
            raise KeyboardInterrupt
    assert [step(engine) for _ in range(3)] == [step(twin) for _ in range(3)]


def test_calls_out_of_order():
    engine = make(2)
    refused("without an earlier backward", engine.step)
    refused("expected a loss of one element", lambda: engine.backward(torch.ones(2, requires_grad=True)))
    refused("expected a tensor", lambda: engine.backward(1.0))
    loss = loss_of(engine)
    engine.backward(loss)
    refused("between backward", lambda: engine.save_checkpoint("/tmp/none"))
    engine.step()
    engine.destroy()
    engine.destroy()
    refused("destroyed", lambda: engine.backward(torch.ones(1, requires_grad=True)))
    with pytest.raises(NotSupportedError, match="call the engine"):
        engine.train_batch()
    with pytest.raises(NotSupportedError):
        zerorun.init_inference()
    with pytest.raises(UserError, match="copied"):
        import copy

        copy.deepcopy(make())


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.norm(x) + self.norm.running_mean.matmul(self.head.weight.t()).sum())


class Unfinished(Normed):
    def forward(self, x):
        raise NotImplementedError("expected Float kernel")


def test_messages(caplog):
    engine = make(0, Normed(), bf16={"enabled": True})
    with pytest.raises(RuntimeError, match="buffer_dtype"):
        engine(torch.ones(2, 6, dtype=torch.bfloat16))
    with pytest.raises(NotImplementedError, match="buffer_dtype"):
        make(0, Unfinished(), bf16={"enabled": True})(torch.ones(2, 6))
    mixed = net()
    mixed[0].bfloat16()
    with caplog.at_level("WARNING", logger="zerorun"), contextlib.suppress(RuntimeError):
        make(1, mixed, bf16={"enabled": True})
    assert "2.weight, 2.bias" in caplog.text and "float32" in caplog.text
