"""What is sold."""

from django.db import models


class Order(models.Model):
    amount = models.CharField(max_length=20)
    picture = models.CharField(max_length=100)

    def __str__(self):
        return f"django-{self.pk}"
