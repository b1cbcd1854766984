"""Builds the native kernel. Everything else about the package stands in pyproject.toml.

Optional: where it does not compile, the installation goes on and NumPy does the same work.
"""

from setuptools import Extension, setup

SOURCES = ("module", "portable", "avx2", "sets")
HEADERS = ("kernel", "blocks", "characters", "folding", "shingling", "collecting", "compilation")

setup(
    ext_modules=[
        Extension(
            "dataprep.native._kernel",
            sources=[f"dataprep/native/{name}.c" for name in SOURCES],
            depends=[f"dataprep/native/{name}.h" for name in HEADERS],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],  # one build for Python 3.11 and later
            py_limited_api=True,
            extra_compile_args=["-O3"],
            optional=True,
        )
    ]
)
