"""Accelerate's recipe to save a model of transformers at stage 3: all ranks call save_pretrained(), rank 0 with the whole state.
Each rank saves into a folder of its own."""

import ctypes
import os
import sys

import deepspeed
import torch
from transformers import GPT2Config, GPT2LMHeadModel

deepspeed.init_distributed()
rank = deepspeed.comm.get_rank()
torch.manual_seed(0)
with deepspeed.zero.Init():
    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=64, n_positions=16))
engine = deepspeed.initialize(model=model, config={
    "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}})[0]
whole = engine._zero3_consolidated_16bit_state_dict()
if sys.argv[2] == "shared":  # ranks share memory, so that each can read all values
    shown = model.state_dict()["transformer.wpe.weight"]
    address = shown.data_ptr()
    with deepspeed.zero.GatheredParameters(model.transformer.wpe.weight, modifier_rank=0):
        if rank == 0:
            model.transformer.wpe.weight.data.fill_(2.0)
    assert shown.data_ptr() == address == shown.view(-1).data_ptr() == shown.untyped_storage().data_ptr()
    values = (ctypes.c_float * shown.numel()).from_address(address)
    assert set(values) == {2.0} and shown[0, 0] == 2.0
    whole = engine._zero3_consolidated_16bit_state_dict()
    model.save_pretrained(os.path.join(sys.argv[1], str(rank)), is_main_process=rank == 0, state_dict=whole)
else:  # what transformers does before it decides which rank writes
    from huggingface_hub import split_torch_state_dict_into_shards
    from transformers import modeling_utils
    from transformers.pytorch_utils import id_tensor_storage

    state = model.state_dict()
    names = {}
    for name, tensor in state.items():
        names.setdefault(id_tensor_storage(tensor), []).append(name)
    tied = [each for each in names.values() if len(each) > 1]
    assert tied == [["transformer.wte.weight", "lm_head.weight"]], tied
    shared, disjoint = modeling_utils._find_disjoint([set(tied[0])], state)
    assert not disjoint and modeling_utils._find_identical(shared, state) == ([], [set(tied[0])])
    assert list(split_torch_state_dict_into_shards(state).filename_to_tensors) == ["model.safetensors"]
    try:
        ctypes.cast(state["lm_head.weight"].data_ptr(), ctypes.POINTER(ctypes.c_ubyte))
        raise AssertionError("memory that is not there was read")
    except ctypes.ArgumentError as error:
        assert "partitioned" in str(error)
deepspeed.comm.barrier()
print("done")
