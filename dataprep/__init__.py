import os

from pipelines import exits

if exits.is_command(__name__):  # for its workers too, which inherit the environment
    # numpy's library for matrices, which no stage multiplies, starts a thread per core that waits busily for 0.1 s.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

exits.guard(__name__)
