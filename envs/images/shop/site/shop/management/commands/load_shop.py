# SPDX-License-Identifier: Apache-2.0
"""`manage.py load_shop`: fills an empty database with the catalogue, its pictures, customers and their past."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.contrib.auth.models import User
from django.contrib.sites.models import Site
from django.core.files.base import ContentFile
from django.core.management.base import BaseCommand
from django.db import transaction
from oscar.apps.catalogue.categories import create_from_breadcrumbs
from oscar.core.loading import get_model

from shop import catalogue, pictures

Country, UserAddress = get_model("address", "Country"), get_model("address", "UserAddress")
Product, ProductClass = get_model("catalogue", "Product"), get_model("catalogue", "ProductClass")
ProductCategory, ProductImage = get_model("catalogue", "ProductCategory"), get_model("catalogue", "ProductImage")
ProductAttribute = get_model("catalogue", "ProductAttribute")
ProductReview = get_model("reviews", "ProductReview")
Partner, StockRecord = get_model("partner", "Partner"), get_model("partner", "StockRecord")
Order, Line = get_model("order", "Order"), get_model("order", "Line")
ShippingAddress = get_model("order", "ShippingAddress")
Voucher, Range = get_model("voucher", "Voucher"), get_model("offer", "Range")
Benefit, Condition = get_model("offer", "Benefit"), get_model("offer", "Condition")
ConditionalOffer = get_model("offer", "ConditionalOffer")

_ATTRIBUTES = (
    ("brand", "Brand", "text"),
    ("colour", "Colour", "text"),
    ("material", "Material", "text"),
    ("weight", "Weight in grams", "integer"),
    ("warranty", "Warranty in years", "integer"),
)


class Command(BaseCommand):
    """Loads the shop of the fixed seed."""

    help = "fill an empty database with the shop"

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        """Makes everything; the database must be empty."""
        shop = catalogue.make_shop()
        Site.objects.update_or_create(id=1, defaults={"domain": "shop.test", "name": "Corner Goods"})
        people = _people(shop)
        products = _products(shop, people)
        _orders(shop, people, products)
        _voucher()
        self.stdout.write(f"{len(products)} products, {len(people)} customers, {len(shop.orders)} orders")


def _people(shop: catalogue.Shop) -> list[User]:
    country = Country.objects.create(
        iso_3166_1_a2="US",
        iso_3166_1_a3="USA",
        iso_3166_1_numeric="840",
        printable_name="United States",
        name="United States",
        is_shipping_country=True,
    )
    email, password = catalogue.STAFF
    User.objects.create_superuser("manager", email, password, date_joined=catalogue.OPENED)
    made = []
    for person in shop.people:
        user = User.objects.create_user(
            person.first_name.lower(),
            person.email,
            person.password,
            first_name=person.first_name,
            last_name=person.last_name,
            date_joined=catalogue.OPENED,
        )
        UserAddress.objects.create(
            user=user,
            country=country,
            is_default_for_shipping=True,
            is_default_for_billing=True,
            **_address(person),
        )
        made.append(user)
    return made


def _address(person: catalogue.Person) -> dict[str, str]:
    names = {"first_name": person.first_name, "last_name": person.last_name}
    return {**names, "line1": person.line1, "line4": person.town, "postcode": person.postcode}


def _products(shop: catalogue.Shop, people: list[User]) -> list[Any]:
    kind = ProductClass.objects.create(name="Article", track_stock=True)
    for code, name, of in _ATTRIBUTES:
        ProductAttribute.objects.create(product_class=kind, code=code, name=name, type=of)
    partner = Partner.objects.create(name="Corner Goods warehouse", code="warehouse")
    made = []
    for product in shop.products:
        item = Product(
            upc=product.upc, title=product.title, product_class=kind, description=f"<p>{product.description}</p>"
        )
        item.attr.brand, item.attr.colour, item.attr.material = product.brand, product.colour, product.material
        item.attr.weight, item.attr.warranty = product.weight_g, product.warranty_years
        item.save()
        category = create_from_breadcrumbs(f"{product.department} > {product.category}")
        ProductCategory.objects.create(product=item, category=category)
        StockRecord.objects.create(
            product=item,
            partner=partner,
            partner_sku=f"CG-{product.upc}",
            price=product.price,
            price_currency="USD",
            num_in_stock=product.stock,
        )
        picture = ProductImage(product=item, display_order=0)
        picture.original.save(f"{product.upc}.jpg", ContentFile(pictures.draw(product)), save=True)
        _reviews(product, item, people)
        Product.objects.filter(pk=item.pk).update(date_created=product.added, date_updated=product.added)
        made.append(item)
    return made


def _reviews(product: catalogue.Product, item: Any, people: list[User]) -> None:
    for review in product.reviews:
        made = ProductReview.objects.create(
            product=item,
            user=people[review.author],
            score=review.score,
            title=review.title,
            body=review.body,
            status=ProductReview.APPROVED,
        )
        ProductReview.objects.filter(pk=made.pk).update(date_created=review.when)
    item.update_rating()


def _orders(shop: catalogue.Shop, people: list[User], products: list[Any]) -> None:
    country, partner = Country.objects.get(), Partner.objects.get()
    for order in shop.orders:
        total = shop.total(order)
        address = ShippingAddress.objects.create(country=country, **_address(shop.people[order.person]))
        made = Order.objects.create(
            number=order.number,
            user=people[order.person],
            site_id=1,
            currency="USD",
            total_incl_tax=total,
            total_excl_tax=total,
            shipping_incl_tax=Decimal(0),
            shipping_excl_tax=Decimal(0),
            shipping_method="Free shipping",
            shipping_code="free-shipping",
            shipping_address=address,
            status=order.status,
            date_placed=order.when,
        )
        for place, count in order.lines:
            _line(made, products[place], shop.products[place], count, partner, order.status)


def _line(order: Any, item: Any, product: catalogue.Product, count: int, partner: Any, status: str) -> None:
    price = product.price * count
    Line.objects.create(
        order=order,
        product=item,
        partner=partner,
        partner_name=partner.name,
        partner_sku=f"CG-{product.upc}",
        stockrecord=item.stockrecords.get(),
        title=product.title,
        upc=product.upc,
        quantity=count,
        num_allocated=0,
        status=status,
        line_price_incl_tax=price,
        line_price_excl_tax=price,
        line_price_before_discounts_incl_tax=price,
        line_price_before_discounts_excl_tax=price,
        unit_price_incl_tax=product.price,
        unit_price_excl_tax=product.price,
    )


def _voucher() -> None:
    code, percent = catalogue.VOUCHER
    everything = Range.objects.create(name="Everything", includes_all_products=True)
    offer = ConditionalOffer.objects.create(
        name="Ten percent off in spring",
        offer_type=ConditionalOffer.VOUCHER,
        condition=Condition.objects.create(range=everything, type=Condition.COUNT, value=1),
        benefit=Benefit.objects.create(range=everything, type=Benefit.PERCENTAGE, value=percent),
    )
    voucher = Voucher.objects.create(
        name="Spring",
        code=code,
        usage=Voucher.MULTI_USE,
        start_datetime=catalogue.OPENED,
        end_datetime=catalogue.OPENED.replace(year=2099),
    )
    voucher.offers.add(offer)
