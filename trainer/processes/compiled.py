"""Where compiled code is kept, so that the next training starts without compiling it again.

torch would put it into /tmp, where it is lost with the machine's next start and lies under a name that another user may
have taken; Triton has a folder of its own; FlashAttention-4 keeps nothing by itself. Here it is `millrace/compiled` in
the user's folder for caches, unless these libraries' own variables say otherwise. Code is loaded from it, so only its
user may write to it. Processes can share it: each library writes a file under another name first, and takes for a
file's name what it is made of. FlashAttention-4 also locks its files, and ends with an error where it cannot.
"""

import errno
import fcntl
import logging
import os
import stat
import tempfile
from pathlib import Path

from trainer.processes.temporary import own_folder

logger = logging.getLogger(__name__)

VARIABLES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "flash_attention_4",
}
"""Of torch's compiler, Triton and FlashAttention-4, and the folder of each in ours."""
FLASH_ATTENTION = "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"
"""What has FlashAttention-4 keep its kernels, with 1 (flash_attn/cute/cache_utils.py, which reads it once)."""
LEAST_SPACE = 256 * 2**20
"""Free bytes without which it is not begun: a model's code takes some ten MB, and a full disk would end training."""


def keep_compiled_code(*, says: bool = True) -> None:
    """Have this process, and those that it starts, keep compiled code; `says`: whether it warns if it cannot."""
    missing = [name for name in VARIABLES if not _chosen(os.environ.get(name, ""))]
    if not missing:
        return
    try:
        folder = usable(cache_folder())
        if _can_lock(folder):
            os.environ.setdefault(FLASH_ATTENTION, "1")
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        folder = own_folder() / "compiled"
        if says:
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            logger.warning(
                "compiled code cannot be kept (%s), so each start compiles anew: make a folder writable and name it in "
                "XDG_CACHE_HOME",
                reason,
            )
    os.environ.update({name: str(folder / VARIABLES[name]) for name in missing})


def _can_lock(folder: Path) -> bool:
    """Whether files in the folder can be locked, which some file systems of clusters refuse."""
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def _chosen(value: str) -> bool:
    """Whether a variable's value is the user's: torch 2.13 sets its own default while it is imported."""
    path = Path(value)
    torchs_own = path.name.startswith("torchinductor_") and path.parent == Path(tempfile.gettempdir()).absolute()
    return bool(value) and not torchs_own


def cache_folder() -> Path:
    """Return the folder, whether or not it exists. Raises RuntimeError if the user has no home."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".cache") / "millrace" / "compiled"


def usable(folder: Path) -> Path:
    """Return the folder, made if it is missing. Raises OSError unless it is the user's alone and has room."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"{folder} is another user's")
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)
    space = os.statvfs(folder)
    if space.f_bavail * space.f_frsize < LEAST_SPACE:
        raise OSError(errno.ENOSPC, f"{folder} has less than {LEAST_SPACE // 2**20} MiB of room")
    with tempfile.TemporaryFile(dir=folder) as file:  # a quota, or a read-only filesystem, shows only now
        file.write(bytes(2**16))
        file.flush()
    return folder
