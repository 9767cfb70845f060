"""Options of every command as Markdown, generated from its parser.

    python -m tests.reference            print them
    python -m tests.reference docs       write them into the pages of that folder

A page has two marks (HTML comments). The text between the marks is generated; all other text is
kept. Options that several commands have with the same text are explained once, on the page INDEX.

Rule: the generated text comes from the parser alone, so that `--help` and the pages agree.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from allocsim.cli import build_parser
from allocsim.cli.options import UsageError, expanded

INDEX = "commands/index.md"
"""Page with the options that several commands share."""
SHARED_BY = 3
"""Number of commands from which on an option is explained on INDEX alone."""


def page(command: str) -> str:
    """Return the path of the page about `command` below docs/, e.g. "commands/replay.md"."""
    return f"commands/{command}.md"


def commands() -> dict[str, argparse.ArgumentParser]:
    return _below(build_parser())


def section(parser: argparse.ArgumentParser) -> str:
    """Return tables of the options of a command and of its subcommands, as Markdown."""
    below = _below(parser).values()
    common = [row for row in _common(below) if row not in shared()]
    parts = [_options(parser, common)]
    if common:
        parts.append(f"Options of several of these:\n\n{_table(common)}\n")
    return "\n".join([*parts, *(_options(each, common) for each in below)])


@cache
def shared() -> tuple[tuple[str, str], ...]:
    """Return (argument, meaning) of each argument that is explained on INDEX alone."""
    return tuple(_common(commands().values()))


def _common(parsers: Iterable[argparse.ArgumentParser]) -> Iterator[tuple[str, str]]:
    """Yield arguments that SHARED_BY parsers have with one text, once each, in their order."""
    count = Counter(row for parser in parsers for row in _rows(parser))
    texts: dict[str, tuple[str, str]] = {}
    for row, _ in count.most_common():
        texts.setdefault(row[0], row)
    yield from (row for row, n in count.items() if n >= SHARED_BY and texts[row[0]] == row)


def _below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    # argparse has no public name for a parser's actions.
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _options(parser: argparse.ArgumentParser, common: Sequence[tuple[str, str]]) -> str:
    rows = list(_rows(parser))
    parts = [f"`{' '.join([parser.prog, *_positionals(parser)])}`"]
    if own := [row for row in rows if row not in common and row not in shared()]:
        parts.append(_table(own))
    if names := [f"`{row[0]}`" for row in rows if row in shared()]:
        parts.append(f"[As in other commands](index.md#shared-options): {', '.join(names)}")
    return "\n\n".join(parts) + "\n"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = [f"| `{_cell(name)}` | {_cell(text)} |" for name, text in rows]
    return "\n".join(["| argument | meaning |", "|---|---|", *cells])


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
    return between_marks(text, "options", "python -m tests.reference docs", options)


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
    for name, parser in commands().items():
        options = section(parser)
        if not arguments:
            print(f"## allocsim {name}\n\n{options}")
            continue
        _rewrite(Path(arguments[0]) / page(name), options)
    if arguments:
        _rewrite(Path(arguments[0]) / INDEX, _table(shared()))


def _rewrite(path: Path, options: str) -> None:
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
