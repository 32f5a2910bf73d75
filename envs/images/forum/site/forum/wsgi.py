# SPDX-License-Identifier: Apache-2.0
"""The forum for gunicorn."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "forum.settings")
application = get_wsgi_application()
