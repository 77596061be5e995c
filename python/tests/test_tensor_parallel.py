"""Parameters split among tensor ranks: transformers' models by their own plans and by plans given by hand, beside plain torch."""

import itertools

import pytest
import torch
import zerorun
from framework_cases import FRAMEWORKS
from launch import ALL, PROGRAMS, run, run_several
from zerorun.tensor_plan import entries_of

transformers = pytest.importorskip("transformers")
import tensor_models  # noqa: E402

# Each model, stage and attention occurs.
FEW = [("llama", 0, "eager"), ("qwen3", 3, "sdpa"), ("gpt_neox", 1, "sdpa"), ("gpt2", 2, "sdpa"), ("lora", 3, "sdpa")]
EVERY = list(itertools.product(("llama", "qwen3", "gpt_neox", "gpt2", "lora"), range(4), ("eager", "sdpa")))


@pytest.mark.parametrize("comm", ["shm", "gloo"] if ALL else ["shm"])
def test_models_train_like_plain_torch_and_whole_values_are_whole(comm):
    runs = [("tensor_parallel.py", *arguments) for arguments in (EVERY if ALL else FEW)]
    if comm == "shm":
        runs += [("tensor_access.py", stage) for stage in (range(4) if ALL else (0, 3))]
    assert run_several(runs, ranks=4, timeout=900, ZERORUN_COMM=comm).count("PASS") == 4 * len(runs)


def test_errors_and_verify_plan():
    assert run_several([("tensor_errors.py",), ("tensor_verify.py",)]).count("PASS") == 4


def test_tp_model_init():
    assert run("tensor_told.py", kind="zerorun as deepspeed").count("PASS") == 2


def test_accelerate_and_trainer(tmp_path):
    """With autotp_size in the ds_config, as in programs for DeepSpeed, and over Gloo."""
    pytest.importorskip("accelerate")
    for loop, trainer in zip(range(4), range(4)) if ALL else [(2, 3)]:  # stages
        programs = [PROGRAMS / "tensor_accelerate.py", loop, "--", PROGRAMS / "tensor_trainer.py", trainer, tmp_path / str(trainer)]
        output = run(FRAMEWORKS / "together.py", *programs, ranks=4, kind="zerorun as deepspeed", ZERORUN_COMM="gloo")
        assert output.count("PASS") == 8


def plan_of(model, given=None, ranks=2):
    return {pattern: (word, unit, blocks, transposed) for pattern, word, unit, blocks, transposed in entries_of(model, given, ranks)}


def whole(word, unit=1):
    return word, unit, 1, False


LLAMA = {
    "model.layers.*.self_attn.q_proj": whole("colwise", 16), "model.layers.*.self_attn.k_proj": whole("colwise", 8),
    "model.layers.*.self_attn.v_proj": whole("colwise", 8), "model.layers.*.self_attn.o_proj": whole("rowwise", 16),
    "model.layers.*.mlp.gate_proj": whole("colwise"), "model.layers.*.mlp.up_proj": whole("colwise"),
    "model.layers.*.mlp.down_proj": whole("rowwise"), "lm_head": whole("colwise_gather_output")}
IS_4 = int(transformers.__version__.split(".")[0]) < 5  # plans of later versions divide embeddings too
if not IS_4:
    LLAMA["model.embed_tokens"] = whole("embedding_rowwise")
NORMS = {f"model.layers.*.self_attn.{norm}": whole("replicated_with_grad_allreduce") for norm in ("q_norm", "k_norm")}


def test_plans_of_models():
    assert plan_of(tensor_models.llama()) == LLAMA
    assert plan_of(tensor_models.qwen3()) == {**LLAMA, **NORMS}
    neox = plan_of(tensor_models.gpt_neox())
    assert neox["gpt_neox.layers.*.attention.query_key_value"] == whole("colwise", 24)
    assert neox["gpt_neox.layers.*.attention.dense"] == whole("rowwise", 8)
    assert neox["embed_out" if IS_4 else "lm_head"] == whole("colwise_gather_output") and len(neox) == (5 if IS_4 else 6)
    assert plan_of(tensor_models.llama(), ranks=1) == {}
    experts = transformers.MixtralForCausalLM(transformers.MixtralConfig(**tensor_models.GROUPED, num_local_experts=2))
    if IS_4:
        assert plan_of(experts)["model.layers.*.block_sparse_moe.experts.*.w2"] == whole("rowwise")
    else:
        refused('"packed_colwise" is no word of a tensor plan', experts)


def test_plans_of_models_inside_others():
    wrapper = torch.nn.Module()
    wrapper.inner = tensor_models.llama()
    assert plan_of(wrapper) == {f"inner.{name}": value for name, value in LLAMA.items()}
    base = tensor_models.llama().model
    assert plan_of(base) == {name.removeprefix("model."): value for name, value in LLAMA.items() if name != "lm_head"}


def test_plans_with_lora():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(tensor_models.llama(), peft.LoraConfig(r=2, target_modules=["q_proj", "o_proj"]))
    found = plan_of(model)
    layers = "base_model.model.model.layers.*.self_attn."
    assert found[layers + "q_proj.base_layer"] == found[layers + "q_proj.lora_B.*"] == whole("colwise", 16)
    assert found[layers + "o_proj.base_layer"] == found[layers + "o_proj.lora_A.*"] == whole("rowwise", 16)
    assert found[layers + "k_proj"] == whole("colwise", 8)


def refused(match, model, given=None):
    with pytest.raises(zerorun.UserError, match=match):
        entries_of(model, given, 2)


def test_models_without_a_usable_plan():
    refused(r"GPT2LMHeadModel has no plan of its own \(tp_plan\).*pass initialize\(tensor_plan=", tensor_models.gpt2())
    refused("Sequential has no plan", torch.nn.Sequential(torch.nn.Linear(2, 2)))
    phi = transformers.Phi3ForCausalLM(transformers.Phi3Config(**{**tensor_models.GROUPED, "pad_token_id": 0, "hidden_size": 64}))
    refused(r"entry 'model.layers.\*.self_attn.o_proj' of the tp_plan of Phi3ForCausalLM: \"rowwise_\w+\" is no word.*pass initialize", phi)


@pytest.mark.parametrize("match, plan", [
    ("expected a dict", ["a"]),
    ("entry 'a': \"local_rowwise\" is no word of a tensor plan: expected one of colwise, rowwise", {"a": "local_rowwise"}),
    ("entry 'a': there is no setting 'heads'", {"a": {"style": "colwise", "heads": 2}}),
    ("entry 'a': unit '2' is no int", {"a": {"style": "colwise", "unit": "2"}}),
    ("entry 'a': expected a name and its word", {"a": {"unit": 2}}),
    ("entry 'a': expected a name and its word", {"a": 3}),
])
def test_given_plans_that_are_refused(match, plan):
    refused(match, torch.nn.Linear(2, 2), plan)


def test_given_plans():
    found = plan_of(torch.nn.Linear(2, 2), {"a": "colwise_rep", "b": {"style": "rowwise", "unit": 4, "blocks": 3, "transposed": True}})
    assert found == {"a": whole("colwise_gather_output"), "b": ("rowwise", 4, 3, True)}
