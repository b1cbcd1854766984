import signal

from pipelines import exits

exits.guard(__name__, signal.SIGUSR1)
