"""`python -m spark JOB ...`, which `duolog pipeline run` starts; and the file that `spark-submit` is given."""

import sys

try:
    from spark.commands import main
except ModuleNotFoundError as error:
    sys.exit(f"duolog: the pipeline lacks {error.name}: pip install '.[spark]' in Duolog's directory")

if __name__ == "__main__":
    main()
