"""Explain the keys of a project file or of a recipe: meaning, type, unit, default and an example.

`scion explain` lists the keys of a project file, `--recipe` those of a recipe.
"""

from __future__ import annotations

from collections.abc import Sequence

from common import command
from common.options import add_option
from common.tables import markdown_table
from recipes.projects.explained import find, keys
from recipes.rules.page import explanations


def main(argv: Sequence[str] | None = None) -> int:
    """Print what a key is, or all keys."""
    parser = command.parser(__doc__, example="python -m recipes.explain training.replay")
    parser.add_argument(
        "key", nargs="*", help="keys to explain, such as training.replay, languages.sl.texts or schedule.learning_rate (default: all)"
    )
    add_option(parser, "--recipe", "explain the keys of a recipe instead of those of a project file", False)
    arguments = parser.parse_args(argv)
    of_recipe = explanations()
    if not arguments.key:
        rows = (
            list(map(list, of_recipe.items()))
            if arguments.recipe
            else [[key.name, key.default or "", key.meaning] for key in keys().values()]
        )
        header = ["key", "what it is"] if arguments.recipe else ["key", "default", "what it is"]
        print(markdown_table(header, rows, text_columns=len(header)))
    for word in arguments.key:
        if arguments.recipe or ("." in word and word in of_recipe and word not in keys()):
            if word not in of_recipe:
                raise ValueError(f"a recipe has no key {word}; `scion explain --recipe` lists all")
            print(f"{word} (of a recipe)\n  {of_recipe[word]}")
        else:
            print(find(word).text)
    return command.DONE


if __name__ == "__main__":
    command.run(main)
