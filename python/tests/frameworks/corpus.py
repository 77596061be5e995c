"""The models, the tokenizer and the texts that the programs of this folder train on: corpus.py FOLDER makes them.

All weights come from one generator in the order of their names, so that every version of transformers starts from the same."""

import json
import pathlib
import random
import sys

WORDS = ("the a small large red green old new cat dog bird fish tree river house road sees finds likes takes near under over "
         "beside and but then slowly quickly today").split()
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


def sentences(count, seed):
    drawn = random.Random(seed)
    return [" ".join(drawn.choices(WORDS, k=drawn.randint(6, 14))) for _ in range(count)]


def make_tokenizer():
    import tokenizers
    import transformers

    words = {word: number for number, word in enumerate(SPECIAL + WORDS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
                                                unk_token="<unk>", model_max_length=32)


def make_config(kind):
    import transformers

    ids = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if kind == "gpt2":
        return transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0,
                                       attn_pdrop=0.0, **ids)
    return transformers.LlamaConfig(num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=2,
                                    num_key_value_heads=1, max_position_embeddings=32, **ids)


def make_model(kind, seed=5):
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_config(make_config(kind), attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    model.tie_weights()
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator) + float("norm" in name or ".ln_" in name))
    return model


def make(folder):
    folder = pathlib.Path(folder)
    for kind in ("gpt2", "llama"):
        make_model(kind).save_pretrained(folder / kind)
        make_tokenizer().save_pretrained(folder / kind)
    (folder / "texts.json").write_text(json.dumps({"train": sentences(48, 1), "evaluate": sentences(10, 2)}))


if __name__ == "__main__":
    make(sys.argv[1])
