"""Options of every command as Markdown, generated from its parser.

    python -m allocsim.cli.reference            print them
    python -m allocsim.cli.reference docs       write them into the pages of that folder

A page has two marks (HTML comments). The text between the marks is generated; all other text is
kept.

Rule: the generated text comes from the parser alone, so that `--help` and the pages agree.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from allocsim.cli.options import expanded
from allocsim.cli.parser import build_parser
from allocsim.cli.usage import UsageError


def page(command: str) -> str:
    """Return the path of the page about `command` below docs/, e.g. "commands/replay.md"."""
    return f"commands/{command}.md"


def commands() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command by the command's name."""
    return _below(build_parser())


def section(parser: argparse.ArgumentParser) -> str:
    """Return tables of the options of a command and of its subcommands, as Markdown."""
    return "\n".join(map(_table, (parser, *_below(parser).values())))


def _below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    # argparse has no public name for a parser's actions.
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _table(parser: argparse.ArgumentParser) -> str:
    usage = " ".join([parser.prog, *_positionals(parser)])
    rows = [f"| `{_cell(name)}` | {_cell(text)} |" for name, text in _rows(parser)]
    if not rows:
        return f"`{usage}`\n"
    return "\n".join([f"`{usage}`\n", "| argument | meaning |", "|---|---|", *rows, ""])


def _positionals(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if not action.option_strings:
            name = str(action.metavar or action.dest)
            many = action.nargs in ("+", "*", argparse.REMAINDER)
            yield f"[{name}]" if action.nargs == "?" else f"{name} ..." if many else name


def _rows(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction):
            continue
        if not action.option_strings:
            yield str(action.metavar or action.dest), _help(action)
            continue
        value = ""
        if action.nargs != 0:
            choices = "|".join(map(str, action.choices)) if action.choices else None
            names = action.metavar or choices or action.dest.upper()
            value = " " + (" ".join(names) if isinstance(names, tuple) else str(names))
        yield ", ".join(action.option_strings) + value, _help(action)


def _help(action: argparse.Action) -> str:
    # argparse expands "%%" when it prints a help text.
    return expanded(str(action.help or "")).replace("%%", "%")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def rewritten(text: str, options: str) -> str:
    """Return the page `text` with `options` between its marks; ValueError for missing marks."""
    return between_marks(text, "options", "python -m allocsim.cli.reference docs", options)


def between_marks(text: str, name: str, command: str, made: str) -> str:
    """Return the page `text` with `made` between the two marks called `name`.

    command: command line that generates this part; the first mark quotes it.
    Raises ValueError for a page without the marks.
    """
    begin, end = f"<!-- {name}: written by {command} -->", f"<!-- end of {name} -->"
    before, has_begin, rest = text.partition(begin)
    _, has_end, after = rest.partition(end)
    if not has_begin or not has_end:
        raise ValueError(f"the marks {begin!r} and {end!r} are not on the page")
    return f"{before}{begin}\n\n{made.rstrip()}\n\n{end}{after}"


def main(arguments: list[str]) -> None:
    """Print the options, or write them into the pages of the folder `arguments[0]`."""
    for name, parser in commands().items():
        options = section(parser)
        if not arguments:
            print(f"## allocsim {name}\n\n{options}")
            continue
        path = Path(arguments[0]) / page(name)
        try:
            path.write_text(rewritten(path.read_text(), options))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: {error}") from None


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UsageError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
