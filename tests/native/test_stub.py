"""Does the stub describe the extension exactly, and does each function have the arguments of its pure twin?"""

import ast
import inspect
from pathlib import Path

import pytest

import shardline.sync  # noqa: F401 - loads every module that has a twin
from shardline import _speedups
from shardline._speedups import native, pure_twins

pytestmark = pytest.mark.skipif(native is None, reason="there is nothing to describe")

STUB = ast.parse(Path(_speedups.__file__).with_name("_native.pyi").read_text())
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


def parameters(value):
    return list(inspect.signature(value).parameters)


def public_names(value):
    return {name for name in vars(value) if not name.startswith("__")}


def test_the_stub_names_everything_and_nothing_else():
    assert public_names(native) == {*FUNCTIONS, *CLASSES, "version"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_arguments_of_its_stub(name):
    listed = FUNCTIONS[name].args
    assert parameters(getattr(native, name)) == [each.arg for each in (*listed.posonlyargs, *listed.args)]
    assert getattr(native, name).__doc__


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) & set(pure_twins)))
def test_a_function_has_the_arguments_of_its_twin(name):
    assert parameters(getattr(native, name)) == parameters(pure_twins[name])


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_the_attributes_of_its_stub(name):
    body = CLASSES[name].body
    listed = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    listed |= {node.target.id for node in body if isinstance(node, ast.AnnAssign)}
    assert listed
    assert set(vars(getattr(native, name))) >= listed
    assert public_names(getattr(native, name)) <= listed
