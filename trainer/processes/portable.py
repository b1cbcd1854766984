"""`parallel.determinism: portable`: one instruction set, so that every x86-64 processor computes the same bytes.

Libraries choose their code by the processor: with fused multiply-add or without, in registers of 128 to 512 bits, in
other orders of summation. These variables leave each of them one choice. Most are read once, and the C library's before
`main`, so a process has to start with them: a stage starts itself again (`StageSpec.environment`), and what it starts
inherits them.
"""

import os
from collections.abc import Mapping

from pipelines.errors import ConfigError
from trainer.config import ParallelConfig
from trainer.processes.rank import rank_from_environment

VARIABLES = {
    "ATEN_CPU_CAPABILITY": "default",  # torch's own kernels
    "MKL_CBWR": "COMPATIBLE",  # matrix products; the only one of its choices that AMD's processors have too
    "ONEDNN_MAX_CPU_ISA": "SSE41",  # products in bf16 and fp16
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",  # numpy's exp and log
    # exp, cos, pow and others of the C library, which torch and Python call; by their names before glibc 2.33 as well
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-FMA4,-FMA_Usable,-FMA4_Usable",
}


def environment(parallel: ParallelConfig, **_: object) -> dict[str, str]:
    """Return the variables with which a stage has to start again; none under torchrun and srun.

    There it has met the other processes already, and these could not do the same.
    """
    return {} if rank_from_environment(os.environ) else missing_variables(parallel)


def missing_variables(parallel: ParallelConfig) -> dict[str, str]:
    """Return the variables that a process with this section has to start with, apart from those it has.

    Other settings that the user made of the C library stay.
    """
    if parallel.determinism != "portable":
        return {}
    missing = {name: value for name, value in VARIABLES.items() if value not in os.environ.get(name, "").split(":")}
    if others := os.environ.get("GLIBC_TUNABLES") if "GLIBC_TUNABLES" in missing else None:
        missing["GLIBC_TUNABLES"] = f"{others}:{VARIABLES['GLIBC_TUNABLES']}"
    return missing


def require(parallel: ParallelConfig) -> None:
    """Raise ConfigError if this process did not start with the variables that the section needs."""
    if missing := missing_variables(parallel):
        raise ConfigError(
            "parallel.determinism portable: this process started without "
            f"{_shell(missing)}: under torchrun and Slurm, export these first; elsewhere run the stage as a command"
        )


def _shell(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}='{value}'" for name, value in variables.items())
