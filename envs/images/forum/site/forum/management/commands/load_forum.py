# SPDX-License-Identifier: Apache-2.0
"""`manage.py load_forum`: fills an empty database with people, categories, topics and answers."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand
from django.db import transaction
from spirit.category.models import Category
from spirit.comment.models import Comment
from spirit.topic.models import Topic

from forum import content


class Command(BaseCommand):
    """Loads the forum of the fixed seed."""

    help = "fill an empty database with the forum"

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        """Makes everything; the database must be empty."""
        people = {name: _person(name) for name in content.PEOPLE}
        staff = _person(content.STAFF)
        staff.st.is_administrator = staff.st.is_moderator = True
        staff.st.save()
        # Spirit takes the first one for messages between two people.
        Category.objects.create(title="Private", is_private=True, is_global=False)
        categories = {title: Category.objects.create(title=title) for title in content.CATEGORIES}
        topics = content.make_topics()
        for topic in topics:
            _topic(topic, people, categories)
        self.stdout.write(f"{len(topics)} topics, {len(people)} people")


def _person(name: str) -> Any:
    password = content.PASSWORD.format(name=name)
    user = get_user_model().objects.create_user(name, f"{name}@forum.test", password, date_joined=content.OPENED)
    user.st.is_verified = True
    user.st.save()
    return user


def _topic(topic: content.Topic, people: dict[str, Any], categories: dict[str, Category]) -> None:
    last = topic.when + timedelta(hours=len(topic.answers))
    made = Topic.objects.create(
        title=topic.title,
        category=categories[topic.category],
        user=people[topic.author],
        date=topic.when,
        last_active=last,
        comment_count=len(topic.answers) + 1,
    )
    _comment(made, people[topic.author], topic.text, topic.when)
    for hours, (person, text) in enumerate(topic.answers, start=1):
        _comment(made, people[person], text, topic.when + timedelta(hours=hours))


def _comment(topic: Topic, user: Any, text: str, when: datetime) -> None:
    Comment.objects.create(topic=topic, user=user, comment=text, comment_html=f"<p>{text}</p>", date=when)
