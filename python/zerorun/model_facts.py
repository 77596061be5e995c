"""What a transformers model says of itself that the engine takes over: buffers that stay fp32, and attention heads."""

# Layers of attention whose rows are blocked by heads, by the name of the layer, as DeepSpeed knows them. Layers that hold
# queries, keys and values in one matrix, and output layers, whose heads are columns, are not among them.
_QUERIES = ("q_proj", "query", "wq", "q_b_proj")
_KEYS_AND_VALUES = ("k_proj", "key", "wk", "v_proj", "value", "wv")
_LATENT_QUERIES = ("q_proj", "q_b_proj")
_LATENT_KEYS_AND_VALUES = "kv_b_proj"
_NO_LAYER = ("qkv_proj", "query_key_value")

_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "attention_heads")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")


def fp32_buffers(model):
    """Patterns of the buffers that the model's modules name for fp32: under both 16-bit dtypes, and under fp16 only."""
    both, fp16 = set(), set()
    for name, module in model.named_modules():
        prefix = f"{name}.*" if name else ""
        both.update(prefix + part for part in getattr(module, "_keep_in_fp32_modules_strict", None) or ())
        fp16.update(prefix + part for part in getattr(module, "_keep_in_fp32_modules", None) or ())
    return sorted(both), sorted(fp16 - both)


def attention_heads(model):
    """The number of heads into which the rows of a matrix divide, by parameter name. A matrix counts only if its rows are
    those that the model's config gives."""
    config = getattr(model, "config", None)
    config = getattr(config, "text_config", None) or config
    heads = _first(config, _HEADS)
    if heads is None:
        return {}
    found = {}
    for name, parameter in model.named_parameters():
        parts = name.split(".")
        if len(parts) < 2 or parts[-1] != "weight" or parameter.dim() != 2 or not parameter.requires_grad:
            continue
        if any(word in name.lower() for word in ("embed", "lm_head")):  # AdamW updates these
            continue
        counts = {count for count, width in _shapes(parts[-2].lower(), config, heads)
                  if width and parameter.shape[0] == count * width}
        if len(counts) == 1:
            found[name] = counts.pop()
    return found


def _shapes(layer, config, heads):
    """Pairs of a number of heads and a head's rows that the layer may have."""
    if layer.startswith(_NO_LAYER):
        return
    key_heads = _first(config, _KEY_HEADS) or heads
    hidden = _first(config, ("hidden_size",))
    width = _first(config, ("head_dim",)) or (hidden // heads if hidden and hidden % heads == 0 else None)
    unrotated, rotated = _first(config, ("qk_nope_head_dim",)), _first(config, ("qk_rope_head_dim",))
    values = _first(config, ("v_head_dim",))
    if layer.startswith(_LATENT_QUERIES) and unrotated is not None and rotated is not None:
        yield heads, unrotated + rotated
    if layer.startswith(_LATENT_KEYS_AND_VALUES) and unrotated is not None and values is not None:
        yield heads, unrotated + values
    elif layer.startswith(_QUERIES):
        yield heads, width
    elif layer.startswith(_KEYS_AND_VALUES):
        yield key_heads, width


def _first(config, names):
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int) and value >= 1), None)
