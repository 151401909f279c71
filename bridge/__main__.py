"""`python -I -m duolog.bridge` is `duolog`, for programs that start the broker as a child in isolated mode."""

from duolog.bridge.cli.main import main

main()
