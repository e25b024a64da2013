"""Small faults put into the solutions' functions, one at a time: what a slip of the hand or of the mind looks like.

`mutants` takes a function's source and yields (name, source) pairs. A name says what was changed, "a < b -> a <= b",
so that an equivalent mutant can be listed by it.
"""

import ast
import copy
from collections import Counter

COMPARED = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
COMPUTED = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Div,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.LShift: (ast.RShift,),
    ast.BitOr: (ast.BitAnd,),
    ast.MatMult: (),
}
OTHER_CALLS = {  # one name for another
    "any": ("all",),
    "all": ("any",),
    "min": ("max",),
    "max": ("min", "sum"),
    "amax": ("amin", "sum"),
    "argmin": ("argmax",),
    "sum": ("mean", "max"),
    "mean": ("sum",),
    "ceil": ("floor",),
    "round": ("floor",),
    "floor": ("ceil",),
    "lower": ("upper",),
    "search": ("match", "fullmatch"),
    "logsigmoid": ("sigmoid",),
    "log_softmax": ("softmax",),
    "zeros": ("ones",),
    "masked_fill": ("masked_fill_",),
    "abs": ("abs_",),
    "clamp": ("clamp_",),
    "extend": ("append",),
    "index": ("count",),
}
BUILTIN = {"any", "all", "min", "max", "sum", "round"}
DROPPED_CALLS = {  # f(x) becomes x
    "sorted", "round", "abs", "int", "float", "list", "set", "range", "ceil", "floor", "reversed",
}  # fmt: skip
DROPPED_METHODS = {  # x.f(...) becomes x
    "clamp", "masked_fill", "to", "abs", "float", "double", "lower", "strip", "split", "mean", "sum", "any", "item",
    "tolist", "view", "reshape", "requires_grad_", "log_softmax", "clone", "copy", "detach", "T",
}  # fmt: skip


def mutants(source, constants=None, trained=()):
    """Yield (name, source) of each faulty version of the first function in `source`.

    constants: parameter name to the values that may be written in its place.
    trained: the parameters that a gradient has to reach.
    """
    tree = ast.parse(source)
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    if ast.get_docstring(function):
        function.body = function.body[1:]
    seen, names = {ast.unparse(function)}, Counter()

    def fresh(name, changed):
        ast.fix_missing_locations(changed)
        text = ast.unparse(changed)
        if text in seen:
            return None
        seen.add(text)
        names[name] += 1
        return (name if names[name] == 1 else f"{name} ({names[name]})", text)

    messages = {
        id(part) for node in ast.walk(function) if isinstance(node, ast.Raise) for part in ast.walk(node)
    }
    for position, node in enumerate(ast.walk(function)):
        for replacement in () if id(node) in messages else _variants(node):
            changed = copy.deepcopy(function)
            _replace(changed, position, replacement)
            before, after = (_short(n) for n in (node, replacement))
            try:
                found = fresh(f"{before} -> {after}", changed)
            except (ValueError, TypeError):  # no Python any more
                continue
            if found and _compiles(found[1]):
                yield found
    for parameter, values in (constants or {}).items():
        for value in values:
            changed = copy.deepcopy(function)
            for node in list(ast.walk(changed)):
                if isinstance(node, ast.Name) and node.id == parameter and isinstance(node.ctx, ast.Load):
                    _put(changed, node, ast.Constant(value))
            found = fresh(f"{parameter} is always {value!r}", changed)
            if found:
                yield found
    for position, node in enumerate(ast.walk(function)):
        if trained and (isinstance(node, ast.Return) or (isinstance(node, ast.Name) and node.id in trained)):
            value = node.value if isinstance(node, ast.Return) else node
            changed = copy.deepcopy(function)
            cut_off = _call(copy.deepcopy(value), "detach")
            _replace(changed, position, ast.Return(cut_off) if isinstance(node, ast.Return) else cut_off)
            found = fresh(f"{_short(value)} -> {_short(cut_off)}", changed)
            if found:
                yield found


def _variants(node):
    """Yield what could stand in a node's place by mistake."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in COMPARED.get(type(node.ops[0]), ()):
            yield ast.Compare(node.left, [other()], node.comparators)
        if isinstance(node.ops[0], ast.IsNot | ast.NotEq | ast.Gt):
            yield node.left  # `if v` for `if v is not None`, `if n > 0`
        yield ast.Constant(True)
    if isinstance(node, ast.Compare) and len(node.ops) == 2:
        yield ast.Compare(node.left, node.ops[:1], node.comparators[:1])
        yield ast.Compare(node.comparators[0], node.ops[1:], node.comparators[1:])
    if isinstance(node, ast.BinOp):
        for other in COMPUTED.get(type(node.op), ()):
            yield ast.BinOp(node.left, other(), node.right)
        yield node.left
        yield node.right
        if isinstance(node.op, ast.Sub | ast.Div | ast.MatMult | ast.FloorDiv):
            yield ast.BinOp(node.right, node.op, node.left)
    if isinstance(node, ast.UnaryOp):
        yield node.operand
    if isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        yield from node.values
    if isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    if isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    if isinstance(node, ast.Call):
        yield from _other_calls(node)
    if isinstance(node, ast.Attribute) and node.attr == "T":
        yield node.value
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        yield from _other_subscripts(node)
    if isinstance(node, ast.comprehension):
        for i in range(len(node.ifs)):
            yield ast.comprehension(
                node.target, node.iter, [*node.ifs[:i], *node.ifs[i + 1 :]], node.is_async
            )
            for name in ast.walk(node.target):  # `if loss and n`
                if isinstance(name, ast.Name) and ast.unparse(node.ifs[i]) not in (name.id, f"{name.id} > 0"):
                    both = ast.BoolOp(ast.And(), [ast.Name(name.id, ast.Load()), node.ifs[i]])
                    yield ast.comprehension(node.target, node.iter, [both], node.is_async)
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        yield ast.SetComp(node.elt, node.generators)  # repeated values count once
    if isinstance(node, ast.Return) and node.value is not None:
        yield from _other_returns(node)
    if isinstance(node, ast.If):
        yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        yield ast.If(ast.Constant(False), node.body, node.orelse)
        yield ast.If(ast.Constant(True), node.body, node.orelse)
    if isinstance(node, ast.AugAssign | ast.Expr | ast.Break | ast.Continue):
        yield ast.Pass()
    if isinstance(node, ast.AugAssign):
        yield ast.Assign([node.target], node.value)


def _other_constants(value):
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
        yield ast.Constant(value - 1)
    elif isinstance(value, float):
        yield ast.Constant(value + 1.0)
        yield ast.Constant(value / 2 if value else -1.0)
    elif isinstance(value, str) and value and " " not in value:  # a sentence is anybody's own
        yield ast.Constant(value[1:])
        yield ast.Constant(value[:-1])


def _other_calls(node):
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    for other in OTHER_CALLS.get(name, ()):
        if isinstance(node.func, ast.Attribute):
            func = ast.Attribute(node.func.value, other, ast.Load())
        elif other in BUILTIN | {"len"}:
            func = ast.Name(other, ast.Load())
        else:
            continue
        yield ast.Call(func, node.args, node.keywords)
    if isinstance(node.func, ast.Name) and name in ("sum", "max"):
        yield ast.Call(ast.Name("len", ast.Load()), [_listed(node.args[0])], [])
    module = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and node.func.value.id in (
        "math", "torch", "np", "pc", "re"
    )  # fmt: skip
    if (isinstance(node.func, ast.Name) or module) and node.args and (name in DROPPED_CALLS or module):
        yield node.args[0]
    if isinstance(node.func, ast.Attribute) and not module and name in DROPPED_METHODS:
        yield node.func.value
    for i, keyword in enumerate(node.keywords):
        if keyword.arg in ("dim", "axis") and isinstance(keyword.value, ast.Constant):
            for axis in {0, 1, -1} - {keyword.value.value}:
                keywords = [
                    *node.keywords[:i],
                    ast.keyword(keyword.arg, ast.Constant(axis)),
                    *node.keywords[i + 1 :],
                ]
                yield ast.Call(node.func, node.args, keywords)
        yield ast.Call(node.func, node.args, [*node.keywords[:i], *node.keywords[i + 1 :]])
    if len(node.args) == 2 and name not in ("max", "min", "not_equal"):
        yield ast.Call(node.func, node.args[::-1], node.keywords)


def _other_subscripts(node):
    if isinstance(node.slice, ast.Slice):
        yield node.value  # nothing is cut off
    else:
        # a text without the white space at its ends
        yield _call(node, "strip")


def _other_returns(node):
    value = node.value
    if isinstance(value, ast.Tuple) and len(value.elts) > 1:
        yield ast.Return(ast.Tuple(value.elts[::-1], ast.Load()))
    yield ast.Return(ast.parse(f"[{ast.unparse(value)}]", mode="eval").body)
    yield ast.Expr(ast.Call(ast.Name("print", ast.Load()), [value], []))


def _listed(node):
    return ast.ListComp(node.elt, node.generators) if isinstance(node, ast.GeneratorExp) else node


def _replace(tree, position, replacement):
    target = next(node for i, node in enumerate(ast.walk(tree)) if i == position)
    _put(tree, target, copy.deepcopy(replacement))


def _put(tree, target, replacement):
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, field, replacement)
                return
            if isinstance(value, list):
                for i, item in enumerate(value):
                    if item is target:
                        value[i] = replacement
                        return


def _call(value, method):
    return ast.Call(ast.Attribute(value, method, ast.Load()), [], [])


def _short(node):
    if isinstance(node, ast.comprehension):
        node = ast.GeneratorExp(ast.Name("…", ast.Load()), [node])
    text = ast.unparse(ast.fix_missing_locations(copy.deepcopy(node)))
    first, _, rest = text.partition("\n")
    return first + (" …" if rest else "")


def _compiles(text):
    try:
        compile(text, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True
