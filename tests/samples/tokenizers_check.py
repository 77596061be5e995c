"""Encodes files with the Python package `tokenizers`. The tests compare its tokens with those of ZeroRun.

usage: tokenizers_check.py encode VOCAB MERGES FILE...  each FILE (UTF-8) into FILE.tokens, int32
       tokenizers_check.py folder TOKENIZER_JSON FILE...  the same, with a tokenizer.json
       tokenizers_check.py decode VOCAB MERGES FILE...  each FILE of int32 into FILE.text
       tokenizers_check.py train SIZE FILE OUT          a vocabulary learned from FILE, as tokenizer.json
"""
import array
import sys
import time

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"


def text_of(file):
    with open(file, "rb") as stream:
        return stream.read().decode("utf-8", "replace")


def gpt2(vocab, merges):
    tokenizer = Tokenizer(models.BPE.from_file(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, normalized=False)])
    return tokenizer


def encode(tokenizer, files):
    for file in files:
        text = text_of(file)
        start = time.perf_counter()
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        seconds = time.perf_counter() - start
        with open(file + ".tokens", "wb") as out:
            array.array("i", tokens).tofile(out)
        print(f"{seconds:.4f}")


def decode(tokenizer, files):
    for file in files:
        tokens = array.array("i")
        with open(file, "rb") as stream:
            tokens.frombytes(stream.read())
        with open(file + ".text", "wb") as out:
            out.write(tokenizer.decode(tokens.tolist(), skip_special_tokens=False).encode())


def train(size, file, out):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=int(size), special_tokens=[END], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text_of(file)], trainer)
    tokenizer.save(out)


mode, *rest = sys.argv[1:]
if mode == "encode":
    encode(gpt2(*rest[:2]), rest[2:])
elif mode == "folder":
    encode(Tokenizer.from_file(rest[0]), rest[1:])
elif mode == "decode":
    decode(gpt2(*rest[:2]), rest[2:])
else:
    train(*rest)
