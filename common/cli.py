"""The `scion` command: `scion transfer ...` is `python -m conversion.transfer ...`, from any directory.

scion                         all commands, stage by stage
scion transfer --help         help of one command
scion conversion.inspect ...  where several stages have a command of that name
scion --version               the installed version
scion --completion bash       shell completion: source <(scion --completion bash)
"""

from __future__ import annotations

import difflib
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common import VERSION
from common.command import python_path

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("data_prep", "nemo_patches", "conversion", "recipes", "slurm", "eval")  # in the order in which a user meets them
SHELLS = ("bash", "fish", "zsh")
_SUMMARY = re.compile(r'"""(.*?)(?:"""|$)', re.MULTILINE)
_IS_COMMAND = "command.run(main)"
_DONE, _MISUSED = 0, 2

# Options are asked of the command itself, so that they are those of `--help`.
_OPTIONS = """{ scion "$1" --help 2>/dev/null | grep -oE -- '--[a-z][a-z0-9-]+' | sort -u; }"""
_BASH = f"""_scion_options() {_OPTIONS}
_scion() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}"
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "NAMES --help --completion" -- "$word"))
  elif [[ "$word" == -* ]]; then
    COMPREPLY=($(compgen -W "$(_scion_options "${{COMP_WORDS[1]}}")" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _scion scion
"""
_ZSH = f"autoload -U +X compinit && compinit -u\nautoload -U +X bashcompinit && bashcompinit\n{_BASH}"
_FISH = """complete -c scion -n '__fish_is_first_token' -f -a 'NAMES'
complete -c scion -n 'not __fish_is_first_token' -a '(scion (commandline -opc)[2] --help 2>/dev/null | string match -ra -- "--[a-z][a-z0-9-]+" | sort -u)'
"""


@dataclass(frozen=True)
class Command:
    """One that a user types.

    Attributes:
        summary: first line of its help.
    """

    stage: str
    name: str
    summary: str

    @property
    def module(self) -> str:
        """What `python -m` takes."""
        return f"{self.stage}.{self.name}"


def commands(root: Path = ROOT) -> list[Command]:
    """Those at the top level of each stage, stage by stage."""
    found = []
    for stage in STAGES:
        for path in sorted((root / stage).glob("*.py")):
            text = path.read_text(encoding="utf-8")
            if _IS_COMMAND in text and (summary := _SUMMARY.match(text)):
                found.append(Command(stage, path.stem, summary[1].strip()))
    return found


def find(word: str, known: Sequence[Command]) -> Command:
    """The command that a word names: `transfer`, `conversion.transfer`, dashes for underscores.

    Raises:
        ValueError: if none or several stages have it.
    """
    name = word.replace("-", "_")
    meant = [command for command in known if name in (command.name, command.module)]
    if len(meant) > 1:
        raise ValueError(f"several stages have a command {word}: {', '.join(command.module for command in meant)}; name one of these")
    if not meant:
        near = difflib.get_close_matches(name, [*(command.name for command in known), *(command.module for command in known)], n=1)
        meant_word = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"there is no command {word}; {meant_word}`scion --help` lists them")
    return meant[0]


def typed_names(known: Sequence[Command]) -> dict[Command, str]:
    """The shortest word for each command."""
    times = Counter(command.name for command in known)
    return {command: command.name if times[command.name] == 1 else command.module for command in known}


def completion(shell: str, known: Sequence[Command]) -> str:
    """A script for a shell to read."""
    return {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[shell].replace("NAMES", " ".join(sorted(typed_names(known).values())))


def overview(known: Sequence[Command]) -> str:
    """What `scion --help` prints."""
    lines = [
        "usage: scion COMMAND ...",
        "",
        "Graft a new language onto a pretrained language model; `scion COMMAND --help` explains each command.",
    ]
    typed = typed_names(known)
    width = max(map(len, typed.values()))
    for stage in STAGES:
        lines += ["", f"{stage}:", *(f"  {typed[command]:<{width}}  {command.summary}" for command in known if command.stage == stage)]
    return "\n".join([*lines, "", "example:", "  scion transfer --source opt-1.3b --tokenizer tokenizer/ --method mean --output hf/"])


def main(argv: Sequence[str] | None = None) -> int:
    """Become the command that is named, or print the list."""
    words = list(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `scion | head` ends quietly; Python takes it back in the command that follows
    known = commands()
    if not words or words[0] in ("-h", "--help"):
        print(overview(known))
        return _DONE
    if words[0] == "--version":
        print(f"scion {VERSION}")
        return _DONE
    try:
        if words[0] == "--completion":
            if len(words) != 2 or words[1] not in SHELLS:
                raise ValueError(f"--completion takes one of {', '.join(SHELLS)}, not {' '.join(words[1:]) or 'nothing'}")
            print(completion(words[1], known), end="")
            return _DONE
        module = find(words[0], known).module
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return _MISUSED
    os.execve(sys.executable, [sys.executable, "-m", module, *words[1:]], {**os.environ, "PYTHONPATH": python_path(ROOT)})


if __name__ == "__main__":
    sys.exit(main())
