"""Talk to RabbitMQ through kombu and py-amqp; knows nothing of Celery."""
