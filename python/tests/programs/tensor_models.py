"""Small models of transformers, and the plans of those that have none of their own."""

import torch
import transformers

SIZES = {"num_hidden_layers": 2, "hidden_size": 32, "vocab_size": 61, "max_position_embeddings": 32, "use_cache": False}
GROUPED = {**SIZES, "intermediate_size": 48, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8}


def llama(**more):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**GROUPED, **more}))


def qwen3(**more):
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**{**GROUPED, "tie_word_embeddings": True, **more}))


def gpt_neox(**more):
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**{
        **SIZES, "intermediate_size": 48, "num_attention_heads": 4, "attention_dropout": 0.0, "hidden_dropout": 0.0, **more}))


def gpt2(**more):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{
        "n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 61, "n_positions": 32, "use_cache": False, "attn_pdrop": 0.0,
        "embd_pdrop": 0.0, "resid_pdrop": 0.0, **more}))


def gpt2_plan():
    outputs = {"style": "colwise", "transposed": True}
    inputs = {"style": "rowwise", "transposed": True}
    return {"transformer.wte": "embedding_rowwise",
            "transformer.h.*.attn.c_attn": {**outputs, "unit": 8, "blocks": 3},
            "transformer.h.*.attn.c_proj": {**inputs, "unit": 8},
            "transformer.h.*.mlp.c_fc": outputs,
            "transformer.h.*.mlp.c_proj": inputs}


def follow_parts(model):
    """Lets GPT-2 compute with the parts that it has: its modules write sizes of whole results."""
    for module in model.modules():
        if isinstance(module, transformers.pytorch_utils.Conv1D):
            module.nf = module.weight.shape[1]
        if isinstance(module, transformers.models.gpt2.modeling_gpt2.GPT2Attention):
            module.split_size = module.c_attn.weight.shape[1] // 3


def lora(**more):
    import peft

    return peft.get_peft_model(llama(**more), peft.LoraConfig(r=3, target_modules=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]))


MODELS = {"lora": lora, "llama": llama, "qwen3": qwen3, "gpt_neox": gpt_neox, "gpt2": gpt2}


def seeded(name, **more):
    """The same model on each rank, with values large enough to show a wrong sum."""
    torch.manual_seed(1)
    model = MODELS[name](**more)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model
