# SPDX-License-Identifier: Apache-2.0
"""Settings of the forum: django-spirit on PostgreSQL, all of it inside one workspace."""

from __future__ import annotations

import os
from pathlib import Path

from spirit.extra.project_template.project_name.settings.base import *  # noqa: F403  # what Spirit gives a project

STATE = Path(os.environ.get("FORUM_STATE", "/var/lib/forum"))

# The same in every copy on purpose: a session of the source is one of its branches. Nothing outside can reach it.
SECRET_KEY = "a workspace has no network but its own"
DEBUG = False
ALLOWED_HOSTS = ["forum.test", "127.0.0.1", "localhost"]
ROOT_URLCONF = "forum.urls"
WSGI_APPLICATION = "forum.wsgi.application"
ST_SITE_URL = "http://forum.test/"
ST_RATELIMIT_ENABLE = False
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
LANGUAGES = [("en", "English")]
EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "forum",
        "USER": "forum",
        "HOST": "/run/postgresql",
        # Connections stay open: they are forked with both of their ends.
        "CONN_MAX_AGE": None,
    }
}
HAYSTACK_CONNECTIONS = {
    "default": {"ENGINE": "haystack.backends.whoosh_backend.WhooshEngine", "PATH": str(STATE / "index")}
}
STATIC_ROOT = STATE / "static"
MEDIA_ROOT = STATE / "media"
MIDDLEWARE = ["whitenoise.middleware.WhiteNoiseMiddleware", *MIDDLEWARE]  # noqa: F405  # Spirit's
INSTALLED_APPS = [*INSTALLED_APPS, "forum"]  # noqa: F405  # Spirit's


class NoMigrations(dict[str, None]):
    """The database is made for these versions at once: its tables come from the models."""

    def __contains__(self, app: object) -> bool:
        return True

    def __missing__(self, app: str) -> None:
        return None


MIGRATION_MODULES = NoMigrations()
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
}
