"""The program `duolog`: starts a broker, and has the commands for a running broker, which use its HTTP port.

Exit status: 0 success; 1 failure because of a state, such as a port in use or an unknown topic; 2 invalid option or
setting; 70 an internal error. `commands.py` has the commands; a broker that is started with plain options does not
import it (`serving.py`). Modules of the broker are imported inside the commands, so that `duolog version` does not load
them.
"""

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from duolog.bridge.cli import REFUSED
from duolog.bridge.cli.serving import plain_options, serve

if TYPE_CHECKING:
    import typer


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line. Every error that a user can cause is one line on standard error.

    Without a command, also after the name of a group such as `topic`, the program prints the help.
    """
    is_process = arguments is None
    arguments = sys.argv[1:] if arguments is None else arguments
    options = plain_options(arguments[1:]) if arguments[:1] == ["serve"] else None
    status = run_command(arguments) if options is None else serve(options)
    if is_process and "obstore" in sys.modules:
        _end_at_once(status)
    sys.exit(status)


def run_command(arguments: list[str]) -> int | None:
    """Run any command, read by typer, and return its exit status; None for success."""
    import typer

    from duolog.bridge.cli.common import moved_behind, say

    arguments = moved_behind(arguments)
    app = program()
    if len(arguments) < 2 and {group.name for group in app.registered_groups}.issuperset(arguments):
        arguments = [*arguments, "--help"]
    try:
        status: int | None = command_of(app)(arguments, prog_name="duolog", standalone_mode=False)
        return status
    except typer.TyperException as error:
        say(error.format_message())
        return error.exit_code
    except typer.Abort:
        say("interrupted")
        return REFUSED


def _end_at_once(status: int | None) -> NoReturn:
    """End the process without the end of the interpreter, at which a thread of obstore may abort it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


@cache
def program() -> "typer.Typer":
    """Return the program with all commands."""
    from duolog.bridge.cli.commands import new_program

    return new_program()


@cache
def command_of(app: "typer.Typer") -> Callable[..., Any]:
    """Return what parses the arguments of a program. It is made once, also for tests that call `main` often."""
    from typer.main import get_command

    return get_command(app)
