"""What programs do around training, beside plain torch that does the same; all ranks have the same data. Arguments: STAGE FOLDER NAME..."""

import copy
import os
import sys

import deepspeed
import peft
import torch
import transformers
from transformers.integrations import HfDeepSpeedConfig

stage, folder = int(sys.argv[1]), sys.argv[2]
SIZE = 64


def config(**more):
    return {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **more}


def gpt2():
    torch.manual_seed(5)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=SIZE, n_positions=16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def batch(number, size=SIZE):
    return torch.randint(0, size, (2, 12), generator=torch.Generator().manual_seed(number))


def adam(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, eps=1e-4)


def engine_of(model):
    return deepspeed.initialize(model=model, optimizer=adam(model), config=config())[0]


def train(engine, plain, optimizer, numbers):
    """The same steps on both. Returns the engine's losses, which are those of plain torch."""
    for number in numbers:
        loss, expected = (model(input_ids=batch(number), labels=batch(number)).loss for model in (engine, plain))
        torch.testing.assert_close(loss.detach(), expected.detach(), rtol=1e-5, atol=1e-6)
        engine.backward(loss)
        engine.step()
        expected.backward()
        optimizer.step()
        optimizer.zero_grad()


def whole(model):
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(found, expected):
    assert found.keys() == expected.keys(), sorted(found.keys() ^ expected.keys())
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5, msg=lambda text: f"{name}: {text}")


def adapters():
    """LoRA, merged for a while as trl does before it generates, merged in a copy, and merged for good."""
    def make():
        return peft.get_peft_model(gpt2(), peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))

    engine, plain = engine_of(make()), make()
    optimizer = adam(plain)
    train(engine, plain, optimizer, range(3))
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        engine.module.merge_adapter()
        merged = {name: value.detach().clone() for name, value in engine.module.state_dict().items()}
        engine.module.unmerge_adapter()
    plain.merge_adapter()
    same(merged, plain.state_dict())
    plain.unmerge_adapter()
    train(engine, plain, optimizer, range(3, 6))
    same(whole(engine.module), plain.state_dict())
    expected = copy.deepcopy(plain).merge_and_unload()
    alone = copy.deepcopy(engine.module).merge_and_unload()
    same(alone.state_dict(), expected.state_dict())
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        unloaded = engine.module.merge_and_unload()
        if rank == 0:
            unloaded.save_pretrained(f"{folder}/merged{stage}")
    torch.distributed.barrier()
    same(transformers.GPT2LMHeadModel.from_pretrained(f"{folder}/merged{stage}").state_dict(), expected.state_dict())


def averages():
    """Averages of the weights: as diffusers does in a scope, with torch's AveragedModel, and weights that are put away and back."""
    engine, plain = engine_of(gpt2()), gpt2()
    optimizer, decay = adam(plain), 0.5
    parameters, plains = list(engine.module.parameters()), list(plain.parameters())
    with deepspeed.zero.GatheredParameters(parameters):
        shadow = [parameter.clone().detach() for parameter in parameters]
    expected = [parameter.clone().detach() for parameter in plains]
    average, torch_average = torch.optim.swa_utils.AveragedModel(engine.module), torch.optim.swa_utils.AveragedModel(plain)
    for number in range(3):
        train(engine, plain, optimizer, [number])
        with torch.no_grad():
            for kept, values in ((shadow, parameters), (expected, plains)):
                with deepspeed.zero.GatheredParameters(values):
                    for mean, parameter in zip(kept, values):
                        mean.sub_((1 - decay) * (mean - parameter))
        average.update_parameters(engine.module)
        torch_average.update_parameters(plain)
    torch.testing.assert_close(shadow, expected, rtol=1e-4, atol=1e-5)
    same(average.state_dict(), torch_average.state_dict())
    stored = [parameter.detach().clone() for parameter in parameters]
    losses = []
    for model, values, kept in ((engine, parameters, shadow), (plain, plains, expected)):
        with deepspeed.zero.GatheredParameters(values, modifier_rank=0):
            for mean, parameter in zip(kept, values):
                parameter.data.copy_(mean)
        with torch.no_grad():
            losses.append(model(input_ids=batch(9), labels=batch(9)).loss.clone())
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for back, parameter, own in zip(stored, parameters, plains):
            parameter.copy_(back)
            own.copy_(back)
    train(engine, plain, optimizer, range(3, 5))


def embeddings():
    """A model that from_pretrained() has loaded, at stage 3 under zero.Init, with more rows."""
    if rank == 0:
        gpt2().save_pretrained(f"{folder}/small{stage}")
    torch.distributed.barrier()
    used = HfDeepSpeedConfig(config()) if stage == 3 else None  # alive while the model is loaded
    model = transformers.GPT2LMHeadModel.from_pretrained(f"{folder}/small{stage}")
    torch.manual_seed(3)
    model.resize_token_embeddings(SIZE + 6, mean_resizing=True)
    assert model.lm_head.weight is model.transformer.wte.weight and model.config.vocab_size == SIZE + 6
    del used
    transformers.integrations.deepspeed.unset_hf_deepspeed_config()
    plain = gpt2()
    engine = engine_of(model)
    rows = whole(model)["transformer.wte.weight"]
    assert rows.shape == (SIZE + 6, 32) and torch.equal(rows[:SIZE], plain.transformer.wte.weight)
    assert rows[SIZE:].abs().max() < 1 and rows[SIZE:].abs().sum() > 0
    plain.resize_token_embeddings(SIZE + 6)
    with torch.no_grad():
        plain.transformer.wte.weight.copy_(rows)
    train(engine, plain, adam(plain), range(3))
    same(whole(engine.module), plain.state_dict())


def plugins():
    """Several plugins in one Accelerator: a student that trains, and a teacher that only computes."""
    from accelerate import Accelerator, InitProcessGroupKwargs
    from accelerate.state import AcceleratorState
    from accelerate.utils import DeepSpeedPlugin

    def plugin(used):
        zero = {"stage": used, "stage3_param_persistence_threshold": 0}
        return DeepSpeedPlugin(hf_ds_config={**config(), "gradient_accumulation_steps": 1, "zero_optimization": zero})

    both = {"student": plugin(max(stage, 1)), "teacher": plugin(3 if stage == 3 else 0)}
    accelerator = Accelerator(deepspeed_plugins=both, kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
    student, plain, teacher = gpt2(), gpt2(), gpt2()
    for parameter in teacher.parameters():
        parameter.data.mul_(1.1)
    plain_teacher = copy.deepcopy(teacher)
    accelerator.state.select_deepspeed_plugin("student")
    engine, optimizer = accelerator.prepare(student, adam(student))
    accelerator.state.select_deepspeed_plugin("teacher")
    assert accelerator.deepspeed_plugin is both["teacher"] and not both["student"].selected
    teacher = accelerator.prepare(teacher.eval().requires_grad_(False))
    accelerator.state.select_deepspeed_plugin("student")
    assert type(teacher).__module__ == type(engine).__module__ == "zerorun.engine" and teacher.optimizer is None
    assert engine.zero_optimization_stage() == max(stage, 1) and teacher.zero_optimization_stage() == (3 if stage == 3 else 0)
    plain_optimizer = adam(plain)
    for number in range(3):
        losses = []
        for model, of in ((engine, teacher), (plain, plain_teacher.eval())):
            with torch.no_grad():
                wanted = of(input_ids=batch(number)).logits.softmax(-1)
            losses.append(torch.nn.functional.kl_div(model(input_ids=batch(number)).logits.log_softmax(-1), wanted, reduction="batchmean"))
        torch.testing.assert_close(*(loss.detach() for loss in losses), rtol=1e-4, atol=1e-6)
        accelerator.backward(losses[0])
        optimizer.step()
        optimizer.zero_grad()
        losses[1].backward()
        plain_optimizer.step()
        plain_optimizer.zero_grad()
    same(whole(engine.module), plain.state_dict())
    AcceleratorState._reset_state(reset_partial_state=True)


def callbacks():
    """A callback that raises on all ranks ends train(), as does one that steps, and another Trainer goes on from the checkpoint."""
    from accelerate import PartialState
    from accelerate.state import AcceleratorState

    class Raises(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                raise ZeroDivisionError("of a callback")

    def trainer_of(name):
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
        AcceleratorState._reset_state(reset_partial_state=True)
        PartialState(backend="gloo")
        arguments = transformers.TrainingArguments(
            output_dir=f"{folder}/{name}{stage}", per_device_train_batch_size=2, max_steps=5, save_steps=2, logging_steps=1, report_to=[],
            disable_tqdm=True, seed=3, learning_rate=1e-2, dataloader_pin_memory=False, accelerator_config={"use_configured_state": True},
            deepspeed={**config(), "gradient_accumulation_steps": 1, "gradient_clipping": "auto"})
        return transformers.Trainer(model=gpt2(), args=arguments, train_dataset=data)

    data = [{"input_ids": row, "labels": row} for number in range(10) for row in batch(number)]
    trainer = trainer_of("whole")
    trainer.train()
    expected = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    trainer = trainer_of("raised")
    trainer.add_callback(Raises)
    try:
        trainer.train()
    except ZeroDivisionError:
        pass
    else:
        raise AssertionError("the callback did not raise")
    try:  # transformers destroys the engine of the first train()
        trainer.train(resume_from_checkpoint=True)
    except deepspeed.DeepSpeedConfigError as error:
        assert "the engine is destroyed: make another one" in str(error)
    else:
        raise AssertionError("an engine that is destroyed trains")
    trainer = trainer_of("twice")

    class StepsTwice(transformers.TrainerCallback):
        def on_optimizer_step(self, args, state, control, **kwargs):
            trainer.model_wrapped.step()

    trainer.add_callback(StepsTwice)
    try:
        trainer.train()
    except deepspeed.DeepSpeedConfigError as error:
        assert "without an earlier backward" in str(error), error
    else:
        raise AssertionError("a callback steps a second time")
    trainer = trainer_of("raised")
    trainer.train(resume_from_checkpoint=True)
    assert [entry["loss"] for entry in trainer.state.log_history if "loss" in entry] == expected
    transformers.integrations.deepspeed.unset_hf_deepspeed_config()


deepspeed.init_distributed(dist_backend="gloo")
rank = torch.distributed.get_rank()
for name in sys.argv[3:]:
    globals()[name]()
    print(f"rank {rank} has done {name}", flush=True)
