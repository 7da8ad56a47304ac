"""The text of code is the same on every Python: digests of patches and tasks, which runs on others compare, come from it."""

from __future__ import annotations

import ast

from common.python_code import bare_dump


def test_the_text_is_that_of_python_3_11() -> None:
    text = 'class C:\n    """Say."""\n\n    def f(self): return None  # why\n'
    arguments = "arguments(posonlyargs=[], args=[arg(arg='self')], kwonlyargs=[], kw_defaults=[], defaults=[])"
    function = f"FunctionDef(name='f', args={arguments}, body=[Return(value=Constant(value=None))], decorator_list=[])"
    expected = f"Module(body=[ClassDef(name='C', bases=[], keywords=[], body=[{function}], decorator_list=[])], type_ignores=[])"
    assert bare_dump(ast.parse(text)) == expected
