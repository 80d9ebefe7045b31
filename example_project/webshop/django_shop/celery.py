"""Celery in a Django project, as its documentation has it."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.webshop.django_shop.settings")

app = Celery("django_shop", task_cls="celery_dlx_retry:DLXRetryTask")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
