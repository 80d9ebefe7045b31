"""For the worker of a test: ``celery worker --include celery_dlx_retry.testing.worker_plugin``.

Importing it makes the process record, into the file that DLX_TEST_RECORDS names, and wait no more. In a Django project
it also opens the test's databases and no others, if the test told of them.
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
for_ever = hooked(records)
for_ever.__enter__()  # there is no block that it could end with
