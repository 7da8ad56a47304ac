"""A row of the table of methods, which says what a method is called and needs without importing it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conversion.embeddings.methods.method import TransferInputs
    from conversion.embeddings.methods.row_plan import RowPlan


@dataclass(frozen=True)
class Method:
    """A row of the table of methods.

    Attributes:
        function: module of this package and function that decides where every row comes from.
        paper: where it is described.
        needs: fields of `TransferInputs` that it cannot do without.
        either: pairs of fields of which it needs one; the first is taken where both are given.
        reads: further fields that it may read; any other that is given is an error.
        copies: tokens that both vocabularies have keep their rows.
        learns: runs the model, which takes long, and torch.
    """

    function: str
    paper: str
    needs: tuple[str, ...] = ()
    either: tuple[tuple[str, str], ...] = ()
    reads: tuple[str, ...] = ()
    copies: bool = True
    learns: bool = False

    def plan(self, inputs: TransferInputs) -> RowPlan:
        """Decide where every row comes from.  Imports the method only now: `--help` reads the table, and must not wait for numpy."""
        module, _, name = self.function.partition(".")
        plan: RowPlan = getattr(import_module(f"conversion.embeddings.methods.{module}"), name)(inputs)
        return plan

    @property
    def uses(self) -> frozenset[str]:
        """All fields that it may read."""
        return frozenset((*self.needs, *self.reads, *(name for pair in self.either for name in pair)))
