"""The entry point of Spark jobs: for `python -m duolog.spark JOB ...`, `duolog pipeline run` and `spark-submit`."""

import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # The imports take a second; Ctrl-C ends them without a traceback.

try:
    from duolog.spark.commands import main
except ModuleNotFoundError as error:
    sys.exit(f"duolog: the pipeline lacks {error.name}: pip install '.[spark]' in Duolog's directory")

if __name__ == "__main__":
    main()
