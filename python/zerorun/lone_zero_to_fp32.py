"""python zero_to_fp32.py CHECKPOINTS OUT: writes the fp32 weights of the last checkpoint here (--help has more).

Where zerorun is installed, that does it. Elsewhere this script reads the checkpoint by itself, with torch alone, whole in memory and without comparing
the checksums. A model that was divided among tensor ranks needs zerorun."""

import argparse
import json
import pathlib
import sys

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32,
          "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool, "C64": torch.complex64,
          "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}


def read_checkpoint(checkpoint_dir, tag=None, exclude_frozen_parameters=False):
    """The state_dict of the checkpoint with this tag, or of the last one, with what is floating-point in fp32."""
    folder = pathlib.Path(checkpoint_dir)
    if tag is None:
        latest = folder / "latest"
        if not latest.exists():
            sys.exit(f"{latest}: no such file: name the folder that has it, or a tag (--tag)")
        tag = latest.read_text(encoding="utf-8-sig").strip()
    folder /= tag
    manifest = json.loads((folder / "manifest.json").read_text())
    if manifest.get("format") != "zerorun checkpoint" or manifest.get("version") not in (1, 2):
        sys.exit(f"{folder}/manifest.json: expected a checkpoint of zerorun of version 1 or 2, found {manifest.get('format')!r} of version "
                 f"{manifest.get('version')!r}: install zerorun, whose `zerorun checkpoint export` reads it")
    if (manifest.get("mesh") or {}).get("splits"):
        sys.exit(f"{folder}: parameters are divided among tensor ranks: install zerorun, whose `zerorun checkpoint export` joins them")
    pieces = {}  # (parameter, state): [(file, range)]
    for name, file in manifest["files"].items():
        for piece in file.get("ranges", []):
            pieces.setdefault((piece["parameter"], piece["state"]), []).append((name, piece))
    files, state = {}, {}
    for name, facts in manifest["parameters"].items():
        is_buffer = any(file.startswith("buffers") for file, _ in pieces.get((name, "value"), []))
        if facts.get("excluded") or (exclude_frozen_parameters and not facts["trained"] and not is_buffer):
            continue
        found = pieces.get((name, "master")) or pieces.get((name, "value"), [])
        value = _join(folder, name, facts, found, files, manifest)
        state.update(dict.fromkeys([name, *facts.get("aliases", [])], value))
    return state


def _join(folder, name, facts, pieces, files, manifest):
    numel = 1
    for size in facts["shape"]:
        numel *= size
    covered = sum(piece["numel"] for _, piece in pieces)
    if covered != numel:
        sys.exit(f"{folder}: {name} has {numel} elements, the files have {covered}: the checkpoint is not whole")
    dtype = DTYPES[pieces[0][1]["dtype"]] if pieces else torch.float32
    flat = torch.empty(numel, dtype=torch.float32 if dtype.is_floating_point else dtype)
    for file, piece in pieces:
        data = files.setdefault(file, None)
        if data is None:
            data = files[file] = _map(folder / file, manifest["files"][file]["bytes"])
        dtype = DTYPES[piece["dtype"]]
        part = data[piece["offset"]:piece["offset"] + piece["numel"] * dtype.itemsize]
        flat[piece["begin"]:piece["begin"] + piece["numel"]] = part.clone().view(dtype)
    return flat.as_strided(facts["shape"], facts["strides"]).contiguous()


def _map(path, size):
    if not path.exists() or path.stat().st_size != size:
        sys.exit(f"{path}: expected {size} bytes, found {path.stat().st_size if path.exists() else 'no file'}: the checkpoint is not whole")
    return torch.from_file(str(path), size=size, dtype=torch.uint8)


def main():
    parser = argparse.ArgumentParser(description="Writes the fp32 weights of a checkpoint as one state_dict, pytorch_model.bin.")
    parser.add_argument("checkpoint_dir", help="the folder with the file `latest`")
    parser.add_argument("output_dir", help="the folder for pytorch_model.bin")
    parser.add_argument("-t", "--tag", help="which checkpoint; by default the last one")
    parser.add_argument("--exclude_frozen_parameters", action="store_true")
    given = parser.parse_args()
    state = read_checkpoint(given.checkpoint_dir, given.tag, given.exclude_frozen_parameters)
    out = pathlib.Path(given.output_dir)
    out.mkdir(parents=True, exist_ok=True)
    torch.save(state, out / "pytorch_model.bin")


if __name__ == "__main__":
    try:
        from zerorun.zero_to_fp32 import main
    except ImportError as error:
        print(f"zerorun cannot be imported ({error}): reading the checkpoint without it", file=sys.stderr)
    main()
