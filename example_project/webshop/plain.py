"""The shop as it was before, on plain Celery: the files of ``before`` in the place of those that are there now."""

import shutil
from pathlib import Path

FOLDER = Path(__file__).parent
REPLACED = {
    "tasks.py": "tasks.py",
    "celery.py": "django_shop/celery.py",
    "settings.py": "django_shop/settings.py",
    "flask_shop.py": "flask_shop.py",
}


def lay_out(root):
    """A copy, to be found by ``PYTHONPATH``; returns where."""
    copy = root / FOLDER.parent.name / FOLDER.name
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(FOLDER.parent / "__init__.py", copy.parent)
    for before, after in REPLACED.items():
        (copy / "before" / before).replace(copy / after)
    return root
