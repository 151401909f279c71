"""The part of the build that `pyproject.toml` has no stable words for: one module in C.

Where there is no C compiler or no `Python.h`, installation goes on without it (`optional`), and the broker checks
records in Python. The module keeps to Python's stable ABI, so one build serves every Python from 3.11 on.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "duolog.protocol.kafka._records",
            ["protocol/kafka/_records.c"],
            extra_compile_args=["-std=c99", "-O2", "-Wextra"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
