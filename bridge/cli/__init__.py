"""The command `duolog`: `main.py` has the program, the other modules have a group of commands each."""
