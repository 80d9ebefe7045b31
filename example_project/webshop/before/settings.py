"""Django's settings; what begins with CELERY_ is Celery's."""

import os

NAME = os.environ.get("SHOP_NAME", "shop")

SECRET_KEY = "not a secret: this shop sells nothing"  # noqa: S105
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
INSTALLED_APPS = ["example_project.webshop", "example_project.webshop.django_shop"]
ROOT_URLCONF = "example_project.webshop.django_shop.urls"
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SHOP_DATABASE", "shop.sqlite3")}
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CELERY_BROKER_URL = os.environ.get("SHOP_BROKER_URL", "amqp://guest:guest@127.0.0.1//")
CELERY_TASK_DEFAULT_QUEUE = f"{NAME}.django"
CELERY_TASK_IGNORE_RESULT = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_LOST_WAIT = 1.0
