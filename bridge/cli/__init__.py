"""The command `duolog`: `main.py` has the program, the other modules have a group of commands each."""

# Exit statuses of all commands.
REFUSED = 1
BAD_OPTION = 2
