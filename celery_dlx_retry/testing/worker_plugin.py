"""For the worker of a test: ``celery worker --include celery_dlx_retry.testing.worker_plugin``.

This module makes the worker write records into the file that DLX_TEST_RECORDS names, and takes its waits away. In a
Django project the worker opens only the databases of the test.
"""

import os
from pathlib import Path

from celery_dlx_retry.testing.patches import hooked
from celery_dlx_retry.testing.records import RecordFile
from celery_dlx_retry.testing.worker_process import RECORDS, use_those_of_the_test

if RECORDS not in os.environ:
    raise SystemExit(f"{RECORDS} is not set; it must name the file that the test reads. See docs/testing.md.")

records = RecordFile(Path(os.environ[RECORDS]))
use_those_of_the_test(records.refuse)
hooks = hooked(records)  # a name for it, because Python ends the block when it collects the object
hooks.__enter__()
