# SPDX-License-Identifier: Apache-2.0
"""What `BunshinEnv` offers to speculation and to audits, beside Gymnasium's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

from bunshin_gym.cache.store.codec import fingerprint
from bunshin_gym.errors import ToolError, UsageError
from bunshin_gym.guest import Guest

__all__ = ["EnvHooks", "NotCopied", "state_parts"]

_PAGE: Final = """() => JSON.stringify([
  document.documentElement.outerHTML, location.href, scrollX, scrollY,
  [...document.querySelectorAll('input, textarea, select')].map(e => [e.value, e.checked, e.disabled]),
  [...document.querySelectorAll('*')].filter(e => e.scrollTop || e.scrollLeft).map(e => [e.scrollTop, e.scrollLeft]),
])"""

# The browser writes its profile and its caches whenever it likes: they are not the task's state.
_FILES: Final = r"""
find_kept() {
  find /tmp /root /home /srv /var/tmp /etc -xdev \
    \( -path '*/bunshin-chromium' -o -path '*/.config/chromium' -o -path '*/.cache' -o -path '*/.pki' \
    -o -name 'org.chromium.*' -o -name '.org.chromium.*' -o -name '.com.google.*' \) -prune -o "$@"
}
find_kept -printf '%y %m %U:%G %p %l\n' | sort
find_kept -type f -print0 | sort -z | xargs -0 -r sha256sum
"""


def state_parts(guest: Guest, surface: str) -> dict[str, str]:
    """Digests of what a judge could see beside the screen.

    Returns:
        `files`: names, modes, links and contents below the directories where programs keep what is the user's, without
        the browser's own; in a browser `page`: the active page's document, fields and scroll positions.

    Raises:
        WorkspaceDied: the workspace is gone.
    """
    parts: dict[str, object] = {"files": guest.execute(["/bin/sh", "-c", _FILES])}
    if surface == "browser":
        try:
            parts["page"] = guest.evaluate(_PAGE)
        except ToolError as error:  # a page that runs no scripts, such as a browser's own
            parts["page"] = str(error)
    return {name: fingerprint(part).hex() for name, part in parts.items()}


class EnvHooks:
    """Mixed into an env that has a guest. While a guess runs, its branch is confined; see docs/speculation.md."""

    def _running(self) -> tuple[Guest, str]:
        """The guest of the episode, and the name of its surface.

        Raises:
            ResetNeeded: there is no episode.
        """
        raise NotImplementedError

    def confine(self) -> None:
        """Runs only while nobody else wants the processor, from now on; and notes whether something in it wants out.

        A workspace has no network but its own loopback, so nothing gets out either way.
        """
        self._running()[0].confine()

    def hurry(self) -> None:
        """Gives it its share of processor and disks again; that something wants out is still noted."""
        self._running()[0].hurry()

    def unconfine(self) -> None:
        """Gives it all that it was started with."""
        self._running()[0].hurry()

    def tried_to_leave(self) -> bool:
        """Whether something in it sent, or wanted to connect, to an address beyond its loopback since `confine`."""
        return self._running()[0].wanted_out()

    def state_parts(self) -> Mapping[str, str]:
        """Digests of page and files; see `state_parts`. The screen is in the observation."""
        return state_parts(*self._running())

    def state_digest(self) -> bytes:
        """Equal for equal pages and files. Screens are compared as pixels, since equal ones may differ by a level."""
        return fingerprint(dict(self.state_parts()))


class NotCopied:
    """Mixed into an env with a live workspace, which Python cannot copy."""

    def __deepcopy__(self, memo: dict[int, object]) -> NoReturn:
        raise UsageError("a live workspace cannot be deep-copied; env.unwrapped.fork(n) makes branches of it")

    def __copy__(self) -> NoReturn:
        raise UsageError("a live workspace cannot be copied; env.unwrapped.fork(n) makes branches of it")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise UsageError(
            "a live workspace cannot be pickled; build the env in the process that uses it "
            "(pass a function that calls gymnasium.make), or use env.unwrapped.fork(n) in this one"
        )
