"""torch.compile as Megatron-core uses it: decorated functions are compiled when they are called, alone or inside one another."""

from __future__ import annotations

from typing import Any

import torch

from nemo_patches.lazy_compile import compile_when_called


def test_a_function_is_compiled_at_its_first_call_and_once() -> None:
    compiled: list[Any] = []

    def compiler(function: Any, **options: Any) -> Any:
        compiled.append((function, options))
        return torch.compile(function, **options)

    compile = compile_when_called(compiler)

    def double(value: torch.Tensor) -> torch.Tensor:
        """Twice."""
        return value * 2

    decorated = compile(double, backend="eager")
    assert compile(backend="eager")(double).__doc__ == decorated.__doc__ == "Twice."
    assert compiled == []
    value = torch.ones(3)
    assert torch.equal(decorated(value), value * 2)
    assert torch.equal(decorated(value=value), value * 2)
    assert compiled == [(double, {"backend": "eager"})]


def test_a_function_inside_another_becomes_one_with_it_and_gradients_are_the_same() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def counting(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compile = compile_when_called(torch.compile)

    @compile(backend=counting, fullgraph=True)
    def inner(value: torch.Tensor) -> torch.Tensor:
        return torch.tanh(value)

    @compile(backend=counting, fullgraph=True)
    def outer(value: torch.Tensor) -> torch.Tensor:
        return inner(value) * value

    value = torch.linspace(-1, 1, 5, requires_grad=True)
    result = outer(value)
    assert len(graphs) == 1
    (gradient,) = torch.autograd.grad(result.sum(), value)
    plain = torch.tanh(value) * value
    (expected,) = torch.autograd.grad(plain.sum(), value)
    assert torch.equal(result, plain)
    assert torch.equal(gradient, expected)


def test_modules_go_to_torch_at_once() -> None:
    module = torch.nn.Linear(2, 2)
    assert type(compile_when_called(torch.compile)(module, backend="eager")) is type(torch.compile(module, backend="eager"))
