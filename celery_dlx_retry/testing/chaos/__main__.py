"""Tasks that fail at random, workers killed with -9, a broker that is restarted, and the count: by task id.

    python -m celery_dlx_retry.testing.chaos

ends in one line, ``N in = A done + B dead, 0 lost, d duplicates``. Exit code 0: none lost. 1: some are. 2: no broker.
"""

from celery_dlx_retry.testing.chaos.command import main

if __name__ == "__main__":
    main()
