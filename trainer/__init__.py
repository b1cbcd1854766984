import signal

from pipelines import exits

# With less, torch aborts, or gloo fails to start some of its threads and then waits for them without end.
exits.guard(__name__, signal.SIGUSR1, least_address_space=2 << 30)
