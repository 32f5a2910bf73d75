# SPDX-License-Identifier: Apache-2.0
"""The shop for gunicorn; pictures are served by it too."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application
from whitenoise import WhiteNoise

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

from django.conf import settings

application = WhiteNoise(get_wsgi_application(), root=str(settings.MEDIA_ROOT), prefix="media/", max_age=3600)
