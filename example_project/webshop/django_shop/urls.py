"""One view: ``POST /orders``."""

import json
from functools import partial

from django.db import transaction
from django.http import JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from example_project.webshop.django_shop.models import Order
from example_project.webshop.tasks import fulfil


@csrf_exempt
@transaction.atomic
def orders(request):
    wanted = json.loads(request.body)
    order = Order.objects.create(**wanted)
    # A task that starts before the commit does not find its order.
    transaction.on_commit(partial(fulfil, str(order), **wanted))
    return JsonResponse({"order": str(order)}, status=201)


urlpatterns = [path("orders", orders)]
