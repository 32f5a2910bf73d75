# SPDX-License-Identifier: Apache-2.0
"""Settings of the shop: django-oscar on PostgreSQL, all of it inside one workspace."""

from __future__ import annotations

import os
from pathlib import Path

from oscar.defaults import *  # noqa: F403  # as Oscar's documentation has it: its settings are ours unless said below

BASE = Path(__file__).resolve().parent.parent
STATE = Path(os.environ.get("SHOP_STATE", "/var/lib/shop"))

# The same in every copy on purpose: a session of the source is one of its branches. Nothing outside can reach it.
SECRET_KEY = "a workspace has no network but its own"
DEBUG = False
ALLOWED_HOSTS = ["shop.test", "127.0.0.1", "localhost"]
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
SITE_ID = 1
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
LANGUAGES = [("en-us", "English")]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "shop",
        "USER": "shop",
        "HOST": "/run/postgresql",
        "ATOMIC_REQUESTS": True,
        # Connections stay open: they are forked with both of their ends.
        "CONN_MAX_AGE": None,
    }
}


class NoMigrations(dict[str, None]):
    """The database is made for these versions at once: its tables come from the models."""

    def __contains__(self, app: object) -> bool:
        return True

    def __missing__(self, app: str) -> None:
        return None


MIGRATION_MODULES = NoMigrations()
CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"

STATIC_URL = "/static/"
STATIC_ROOT = STATE / "static"
MEDIA_URL = "/media/"
MEDIA_ROOT = STATE / "media"

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.sites",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.flatpages",
    "oscar.config.Shop",
    *(
        f"oscar.apps.{name}"
        for name in (
            "analytics.apps.AnalyticsConfig",
            "checkout.apps.CheckoutConfig",
            "address.apps.AddressConfig",
            "shipping.apps.ShippingConfig",
            "catalogue.apps.CatalogueConfig",
            "catalogue.reviews.apps.CatalogueReviewsConfig",
            "communication.apps.CommunicationConfig",
            "partner.apps.PartnerConfig",
            "basket.apps.BasketConfig",
            "payment.apps.PaymentConfig",
            "offer.apps.OfferConfig",
            "order.apps.OrderConfig",
            "customer.apps.CustomerConfig",
            "voucher.apps.VoucherConfig",
            "wishlists.apps.WishlistsConfig",
            "dashboard.apps.DashboardConfig",
            "dashboard.reports.apps.ReportsDashboardConfig",
            "dashboard.users.apps.UsersDashboardConfig",
            "dashboard.orders.apps.OrdersDashboardConfig",
            "dashboard.catalogue.apps.CatalogueDashboardConfig",
            "dashboard.offers.apps.OffersDashboardConfig",
            "dashboard.partners.apps.PartnersDashboardConfig",
            "dashboard.pages.apps.PagesDashboardConfig",
            "dashboard.ranges.apps.RangesDashboardConfig",
            "dashboard.reviews.apps.ReviewsDashboardConfig",
            "dashboard.vouchers.apps.VouchersDashboardConfig",
            "dashboard.communications.apps.CommunicationsDashboardConfig",
            "dashboard.shipping.apps.ShippingDashboardConfig",
        )
    ),
    "widget_tweaks",
    "haystack",
    "treebeard",
    "django_tables2",
    "shop",
    "shop.search.apps.SearchConfig",
]

MIDDLEWARE = [
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "oscar.apps.basket.middleware.BasketMiddleware",
    "django.contrib.flatpages.middleware.FlatpageFallbackMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "oscar.apps.search.context_processors.search_form",
                "oscar.apps.checkout.context_processors.checkout",
                "oscar.apps.communication.notifications.context_processors.notifications",
                "oscar.core.context_processors.metadata",
            ]
        },
    }
]

AUTHENTICATION_BACKENDS = [
    "oscar.apps.customer.auth_backends.EmailBackend",
    "django.contrib.auth.backends.ModelBackend",
]
# Signing in is no test of patience: this is no place for real passwords.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

HAYSTACK_CONNECTIONS = {"default": {"ENGINE": "haystack.backends.simple_backend.SimpleEngine"}}

OSCAR_SHOP_NAME = "Corner Goods"
OSCAR_SHOP_TAGLINE = "things that last"
OSCAR_DEFAULT_CURRENCY = "USD"
OSCAR_IMAGE_FOLDER = "images/products/"
OSCAR_ALLOW_ANON_CHECKOUT = True
OSCAR_MODERATE_REVIEWS = False
OSCAR_THUMBNAILER = "shop.thumbnails.AsIs"
OSCAR_INITIAL_ORDER_STATUS = "Pending"
OSCAR_INITIAL_LINE_STATUS = "Pending"
OSCAR_ORDER_STATUS_PIPELINE = {
    "Pending": ("Being processed", "Cancelled"),
    "Being processed": ("Shipped", "Cancelled"),
    "Shipped": ("Delivered",),
    "Delivered": (),
    "Cancelled": (),
}
OSCAR_LINE_STATUS_PIPELINE = OSCAR_ORDER_STATUS_PIPELINE

LOGIN_REDIRECT_URL = "/"
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
}
