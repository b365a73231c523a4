"""Makes mutants from the source: every comparison, condition and state change of a few modules, one at a time.

The listed mutants are mistakes that a person thought of. These are all mistakes of a few simple kinds, so that nothing of
the modules that hand out records is taken on trust. The name of a mutant is its change
(``cursor.Cursor.is_open: self.place < self.end -> self.place <= self.end``), so that it outlives changes to other lines.
``equivalents.toml`` lists those that no test can tell from the original, each with the reason.

Invariants:

- One expression or statement is replaced; all other text stays as it is.
- Each name occurs once: of equal changes in one function, the later ones are numbered.
- ``__init__`` and assertions are left alone: a missing field breaks every test, and an assertion decides nothing.
"""

import ast
import tomllib
from collections import Counter
from itertools import chain

from mutants import HERE, SOURCE, Mutant

# Six files: the promises, the callbacks, control, handlers side by side, their lanes, and the counts.
HAND_OUT = "machines/test_consumer_handout"
READER = "machines/test_consumer_reader_promises.py"
MODULES = {  # files of core/consumer, and the tests that run first on their mutants
    "handout": HAND_OUT,
    "cursor": HAND_OUT,
    "run_bounds": HAND_OUT,
    "taker": HAND_OUT,
    "held_shard": HAND_OUT,
    "handler_task": HAND_OUT,
    "key_lanes": HAND_OUT,
    "handler_pool": HAND_OUT,
    "reader": READER,
    "page_reader": READER,
    "polling_reader": READER,
    "fanout_reader": "machines/test_consumer_fanout.py",
}
EQUIVALENTS = HERE / "equivalents.toml"
OTHER = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def wrong_versions(node):
    """Return the wrong versions of an expression, or of the condition of a statement."""
    match node:
        case ast.Compare(left, operators, right):
            for place, operator in enumerate(operators):
                others = [*operators[:place], OTHER[type(operator)](), *operators[place + 1 :]]
                yield ast.Compare(left, others, right)
        case ast.BoolOp(operator, values):
            for place in range(len(values)):
                rest = [*values[:place], *values[place + 1 :]]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(operator, rest)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if is_plain(test):
            yield ast.UnaryOp(ast.Not(), test)
        case ast.comprehension(ifs=[test]) if is_plain(test):
            yield ast.UnaryOp(ast.Not(), test)


def is_plain(test):
    """Whether a condition is a value by itself: other conditions are mutated in their parts."""
    if isinstance(test, ast.NamedExpr):
        return is_plain(test.value)
    return not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant)


def changes_state(node):
    """Whether a statement changes something that outlives the function, or calls something that may."""
    match node:
        case ast.Expr(ast.Call()) | ast.Delete() | ast.AugAssign():
            return True
        case ast.Assign(targets):
            parts = chain.from_iterable(getattr(target, "elts", [target]) for target in targets)
            return any(isinstance(part, ast.Attribute | ast.Subscript) for part in parts)
    return False


def find(node, where=()):
    """Yield every (function, node to replace, replacement)."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assert) or getattr(child, "name", None) == "__init__":
            continue
        is_named = isinstance(child, ast.FunctionDef | ast.ClassDef)
        inner = (*where, child.name) if is_named else where
        for wrong in wrong_versions(child):
            target = child.ifs[0] if isinstance(child, ast.comprehension) else getattr(child, "test", child)
            yield inner, target, wrong
        if changes_state(child):
            yield inner, child, ast.Pass()
        yield from find(child, inner)


def replaced(text, node, code):
    """Return the text with other code in place of a node."""
    lines = text.encode().splitlines(keepends=True)  # columns count bytes
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    return (before + code.encode() + after).decode()


def make(file, killer=HAND_OUT, source=SOURCE):
    """Return all mutants of a file."""
    text = (source / "shardline" / file).read_text()
    stem, seen = file.rpartition("/")[2].removesuffix(".py"), Counter()
    for where, node, wrong in find(ast.parse(text)):
        code = ast.unparse(wrong)
        name = f"{'.'.join((stem, *where))}: {ast.unparse(node)} -> {code}"
        seen[name] += 1
        name += f" ({seen[name]})" if seen[name] > 1 else ""
        new = replaced(text, node, code if isinstance(wrong, ast.Pass) else f"({code})")
        yield Mutant(name, file, text, new, "one of many", killer, is_generated=True)


def read_equivalents():
    """Return the reason of each equivalent mutant, by name."""
    entries = tomllib.loads(EQUIVALENTS.read_text())["equivalent"]
    return {name: entry["because"] for entry in entries for name in entry["mutants"]}


def load_generated():
    """Return all generated mutants. An equivalent that does not exist is an error: the code has outgrown it."""
    equivalents = read_equivalents()
    made = [mutant for name, killer in MODULES.items() for mutant in make(f"core/consumer/{name}.py", killer)]
    unknown = equivalents.keys() - {mutant.id for mutant in made}
    assert not unknown, f"{EQUIVALENTS.name} lists mutants that do not exist: {sorted(unknown)}"
    return [mutant._replace(equivalent=equivalents.get(mutant.id)) for mutant in made]
