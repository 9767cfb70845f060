"""The options on each command's page are those of its parser."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim.cli.options import UsageError
from tests.reference import INDEX, commands, main, page, rewritten, section

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = commands()


def test_reference_has_every_command() -> None:
    assert set(COMMANDS) == {
        *("replay", "explain", "top", "compare", "ranks", "risk", "fit", "scale", "tune", "record"),
        *("crosscheck", "step", "synth", "plot", "report", "gate", "watch", "convert", "lint"),
        *("stats", "colocate"),
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_reference_page_has_the_options_of_the_parser(command: str) -> None:
    text = (DOCS / page(command)).read_text()
    assert text == rewritten(text, section(COMMANDS[command])), (
        f"docs/{page(command)} is behind the parser: run python -m tests.reference docs"
    )


def test_reference_table_has_arguments_values_and_defaults() -> None:
    text = section(COMMANDS["tune"])
    assert text.startswith("`allocsim tune FILE ...`\n")
    assert "| `--jobs N` | number of processes (default: 1) |" in text


def test_reference_explains_a_shared_option_once() -> None:
    row = "| `--fail-on-oom` | exit 3 if the device runs out of memory |"
    assert row in (DOCS / INDEX).read_text()
    text = section(COMMANDS["replay"])
    assert row not in text
    assert "(index.md#shared-options): `FILE`, `--conf CONF`" in text


def test_reference_escapes_a_bar_in_a_cell() -> None:
    text = section(COMMANDS["step"])
    assert "| `FILE\\|KIND` | a recording, an op script, or a kind of synth |" in text
    assert text.startswith("`allocsim step [FILE|KIND]`")


def test_reference_has_a_table_for_each_subcommand() -> None:
    text = section(COMMANDS["synth"])
    assert "`allocsim synth training`" in text
    assert "`allocsim synth oom`" in text


def test_pages_are_written_between_their_marks(tmp_path: Path) -> None:
    names = [INDEX, *map(page, COMMANDS)]
    for name in names:
        text = (DOCS / name).read_text()
        before, _, rest = text.partition("<!-- options")
        after = rest.partition("<!-- end of options -->")[2]
        kept = f"<!-- options{rest.partition('-->')[0]}-->\n<!-- end of options -->"
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{before}{kept}{after}")
    main([str(tmp_path)])
    for name in names:
        assert (tmp_path / name).read_text() == (DOCS / name).read_text()


def test_reference_refuses_a_page_without_marks(tmp_path: Path) -> None:
    path = tmp_path / page("replay")
    path.parent.mkdir()
    path.write_text("# allocsim replay\n")
    with pytest.raises(UsageError, match=r"replay\.md: the marks .* are not on the page"):
        main([str(tmp_path)])
    assert path.read_text() == "# allocsim replay\n"
