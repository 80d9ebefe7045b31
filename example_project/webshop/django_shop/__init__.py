"""The shop in Django: ``celery -A example_project.webshop.django_shop worker``."""

from example_project.webshop.django_shop.celery import app as celery_app

__all__ = ["celery_app"]
