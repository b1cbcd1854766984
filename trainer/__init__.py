import signal

from pipelines import exits

LEAST_ADDRESS_SPACE = 2 << 30
"""Of a process in bytes (ulimit -v). With less, torch aborts, or gloo fails to start some of its threads and then waits
for them without end."""

exits.guard(__name__, signal.SIGUSR1, least_address_space=LEAST_ADDRESS_SPACE)
