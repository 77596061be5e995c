"""How initialize() splits parameters among tensor ranks: by the program's plan, or by the model's own (transformers' tp_plan)."""

import inspect
import re

from . import _core
from ._core import UserError

_OLDER_WORDS = {"colwise_rep": "colwise_gather_output"}  # of transformers 4
_REMEDY = ("pass initialize(tensor_plan={\"layers.*.mlp.up_proj\": \"colwise\", ...}), whose patterns are names of the model's modules; "
           "{} leaves all parameters whole")


def entries_of(model, given, ranks):
    """(pattern, word, unit, blocks, transposed) of each entry. `given`: the program's plan; None: the model's own, if there are
    several tensor ranks."""
    if given is not None:
        return _given_entries(given)
    return _OwnPlan(model).entries() if ranks > 1 else []


def _given_entries(given):
    try:
        items = list(dict(given).items())
    except (TypeError, ValueError):
        raise UserError(f"initialize(tensor_plan=...): expected a dict of patterns and words, found {given!r}") from None
    return [_given_entry(pattern, value) for pattern, value in items]


def _given_entry(pattern, value):
    where = f"initialize(tensor_plan=...), entry {pattern!r}"
    settings = {"style": value} if isinstance(value, str) else value
    if not isinstance(pattern, str) or not isinstance(settings, dict) or not isinstance(settings.get("style"), str):
        raise UserError(f"{where}: expected a name and its word, or {{\"style\": word, \"unit\": 64, \"blocks\": 3, \"transposed\": "
                        f"True}}, found {value!r}")
    kinds = {"style": str, "unit": int, "blocks": int, "transposed": bool}
    for key, setting in settings.items():
        if key not in kinds:
            raise UserError(f"{where}: there is no setting {key!r}, only {', '.join(kinds)}")
        if type(setting) is not kinds[key]:
            raise UserError(f"{where}: {key} {setting!r} is no {kinds[key].__name__}")
    word = _checked_word(settings["style"], where)
    return pattern, word, settings.get("unit", 1), settings.get("blocks", 1), settings.get("transposed", False)


def _checked_word(word, where, remedy=""):
    word = _OLDER_WORDS.get(word, word)
    try:
        _core.check_tensor_style(word)
    except UserError as error:
        raise UserError(f"{where}: {error}{remedy}") from None
    return word


def _find_plans(module, prefix=""):
    """Yields the outermost modules that have a plan: the prefix of its names, and the plan."""
    plan = _own_attribute(module, "tp_plan") or _own_attribute(module, "_tp_plan")
    if isinstance(plan, dict) and plan:
        of_class = getattr(type(module), "_tp_plan", None)  # of the head, which transformers 4.57 leaves out of tp_plan
        yield prefix, {**(of_class if isinstance(of_class, dict) else {}), **plan}
        return
    for name, child in module.named_children():
        yield from _find_plans(child, f"{prefix}{name}.")


def _own_attribute(module, name):
    """Not by __getattr__, with which a wrapper has the attributes of the module inside."""
    return getattr(module, name) if inspect.getattr_static(module, name, None) is not None else None


class _OwnPlan:
    """The plan that a model has for itself, made ready: entries for its modules alone, and where each may be cut."""

    def __init__(self, model):
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        self._kind = type(model).__name__
        self._plans = list(_find_plans(model))
        self._entries = []
        self._planned = set()  # names of modules
        self._attentions = {}  # names of those whose heads are split, with the size of a head

    def entries(self):
        if not self._plans:
            raise UserError(f"initialize(): there are several tensor ranks, and {self._kind} has no plan of its own (tp_plan) that says "
                            f"which parameters are split among them: {_REMEDY}")
        for prefix, plan in self._plans:
            for pattern, word in plan.items():
                self._add(prefix + pattern, word)
        if not self._entries:
            raise UserError(f"initialize(): no entry of the tp_plan of {self._kind} names a parameter of the model: {_REMEDY}")
        self._add_head_norms()
        return self._entries

    def _add(self, pattern, word):
        regex = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
        found = [name for name, module in self._modules.items() if regex.fullmatch(name) and any(True for _ in module.parameters())]
        named = [name for name in self._parameters if regex.fullmatch(name)]
        if not found and not named:
            return  # of a variant of the model: experts, a head
        where = f"initialize(): the entry {pattern!r} of the tp_plan of {self._kind}"
        word = _checked_word(word, where, f". To split otherwise, {_REMEDY}")
        if named:
            self._entries.append((pattern, word, 1, 1, False))
        by_cut = {}
        for name in found:
            self._planned.add(name)
            for below, below_word in self._places(name, pattern, word):
                by_cut.setdefault((below, below_word, self._unit(name, word)), []).append(name)
        for (below, below_word, unit), names in by_cut.items():
            patterns = [pattern] if len(names) == len(found) else names
            self._entries.extend((each + below, below_word, unit, 1, False) for each in patterns)

    def _places(self, name, pattern, word):
        """What the word means for modules below `name`, or for itself: ends of names, and words."""
        module = self._modules[name]
        if any(parameter is not None for parameter in module._parameters.values()):
            return [("", word)]
        if "base_layer" in module._modules and "lora_A" in module._modules:  # PEFT's: base(x) + B(A(x))
            return [(".base_layer", word), (".lora_A.*" if word == "rowwise" else ".lora_B.*", word)]
        if word == "replicated":
            return []
        raise UserError(f"initialize(): the entry {pattern!r} of the tp_plan of {self._kind} names module {name}, whose parameters are "
                        f"in modules below it: {_REMEDY}")

    def _unit(self, name, word):
        """What may not be cut: an attention's projections are cut into as many parts as it has key-value heads."""
        parent = name.rpartition(".")[0]
        attention = self._modules[parent]
        head = getattr(attention, "head_dim", None) or getattr(attention, "head_size", None)
        if word not in ("colwise", "rowwise") or not isinstance(head, int):
            return 1
        heads = _key_value_heads(attention, head)
        whole = self._modules[name].weight.shape[0 if word == "colwise" else 1]
        if not heads or whole % heads:
            raise UserError(f"initialize(): {name} has size {whole}, and it is unclear how that is divided into {heads} key-value heads "
                            f"of {head}: {_REMEDY}")
        if word == "colwise":
            self._attentions[parent] = head
        return whole // heads

    def _add_head_norms(self):
        """Norms of heads are whole on each rank, and used on its heads alone. transformers 4.57 does not name them."""
        patterns = {}
        for parent, head in self._attentions.items():
            for below, module in self._modules[parent].named_modules():
                name = f"{parent}.{below}"
                sizes = [tuple(parameter.shape) for parameter in module.parameters(recurse=False)]
                if below and (head,) in sizes and name not in self._planned:
                    patterns[re.sub(r"(?<![^.])\d+(?![^.])", "*", name)] = None
        self._entries.extend((pattern, "replicated_with_grad_allreduce", 1, 1, False) for pattern in patterns)


def _key_value_heads(attention, head):
    keys = getattr(attention, "k_proj", None)
    if keys is not None:
        heads, rest = divmod(keys.weight.shape[0], head)
        return None if rest else heads
    config = getattr(attention, "config", None)
    return getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", None)
