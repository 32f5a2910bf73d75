# SPDX-License-Identifier: Apache-2.0
"""Chromium's life: started, watched, its tabs kept in order, started again when it dies."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import async_playwright

from .bids import FrameLetters
from .desktop import ScreenSize
from .network import NetworkLog
from .settle import Traffic

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Dialog, Page, Playwright

__all__ = ["Browser", "BrowserGoneError", "describe_error"]

log = logging.getLogger(__name__)

# Not the wrapper in /usr/bin: it adds options by the size of /dev/shm, and puts shared memory elsewhere.
_EXECUTABLE = "/usr/lib/chromium/chromium"
_PROFILE = Path("/root/.config/bunshin-chromium")
_START_TIMEOUT_MS = 60_000
ACTION_TIMEOUT_MS = 2_000
NAVIGATION_TIMEOUT_MS = 30_000
_LOG_LINES = 12

# Of several --disable-features or --enable-features only the last one counts, so these repeat Playwright's.
_FEATURES_OFF = (
    "AimEnabled",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
    # Ours: calls home, offers to help, watchers, and what each branch would own or each fork carry: processes kept
    # in reserve, databases kept open.
    "AutofillServerCommunication",
    "CertificateTransparencyComponentUpdater",
    "CompressionDictionaryTransport",
    "DeclarativePerformanceObserver",
    "DialMediaRouteProvider",
    "EnableHangWatcher",
    "GpuPersistentCache",
    "InitialWebUI",
    "InterestFeedContentSuggestions",
    "NetworkErrorLogging",
    "OptimizationGuideModelDownloading",
    "PreloadTopChromeWebUI",
    "PreloadTopChromeWebUILessNavigations",
    "Reporting",
    "SegmentationPlatform",
    "SegmentationPlatformUkmEngine",
    "SpareRendererForSitePerProcess",
    "Translate",
    "WebUIOmniboxAimPopup",
    "WebUIOmniboxFullPopup",
    "WebUIOmniboxPopup",
    "WebUIReloadButton",
)
_FEATURES_ON = (
    "CDPScreenshotNewSurface",
    "SkipListAccountsWithoutGaiaCookies",
    # Ours: network in the browser process, one process fewer for each fork to carry.
    "NetworkServiceInProcess2",
)
_DRIVER_ENVIRONMENT = {
    # A small young generation, since each branch owns what the driver's collector moves about; but with room for what
    # one look brings: what has been moved on out of it is collected late, and takes longer.
    "NODE_OPTIONS": "--max-semi-space-size=2 --v8-pool-size=1 --disable-sigusr1",
    # Fewer threads for each fork to carry.
    "UV_THREADPOOL_SIZE": "1",
}

# What no workspace needs: Chromium holds these files open, each branch gets copies of its own, and no switch tells it
# not to. It does without a folder where there is a file, and without a database whose first file cannot be made because
# there is a folder. (Other failures it would try again, a hundred times a second, for as long as 20 seconds.)
_NO_FOLDERS = ("BrowserMetrics",)  # 4 MiB
_NO_DATABASES = (
    "Default/Extension Rules",
    "Default/Extension Scripts",
    "Default/Extension State",
    "Default/Sync Data/LevelDB",
    "Default/shared_proto_db",
    "Default/shared_proto_db/metadata",
)
_FIRST_FILE = "MANIFEST-000001"

# Chromium would draw into two shared buffers of a screen's size, of which each branch must have its own. Without, it
# draws into memory that branches share, and sends the X server what has changed. (It asks for toolkits' variables.)
_NO_SHARED_BUFFERS = {"QT_X11_NO_MITSHM": "1"}

# Its generator of random numbers lives in its memory: branches draw the same unless they are asked not to (`reseed`).
# Where the processor draws fast, on Intel's, it would mix that in, and branches would differ (RDRAND, bit 62).
_NO_HARDWARE_RANDOM = {"OPENSSL_ia32cap": "~0x4000000000000000"}

_RESIZED_SCRIPT = """
(height) => innerHeight === height || new Promise((done) => {
  addEventListener('resize', () => done(true), {once: true});
  setTimeout(() => done(false), 1000);
})
"""

_ARGS = (
    # Nested namespaces cannot be carried into a branch; the workspace itself is the sandbox.
    "--no-sandbox",
    "--test-type",
    # One renderer for a page and its frames: fewer processes to carry, one accessibility tree.
    "--disable-site-isolation-trials",
    "--allow-file-access-from-files",
    # Covers the screen, so that the agent's picture is the page and coordinates are the page's.
    "--kiosk",
    "--window-position=0,0",
    "--force-device-scale-factor=1",
    # No calls home, no writing without need.
    "--disable-quic",
    "--disable-crash-reporter",
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    "--no-pings",
    "--disk-cache-size=1048576",
    # Nothing that moves or blinks by itself, so that equal states give equal pictures.
    "--disable-smooth-scrolling",
    "--hide-crash-restore-bubble",
    "--disable-notifications",
    # Software rendering in the browser process's own GPU thread.
    "--disable-gpu",
    "--in-process-gpu",
    "--disable-gpu-shader-disk-cache",
    # No crash handlers, and no zygote but the renderers'.
    "--no-unsandboxed-zygote",
    "--disable-crashpad-for-testing",
    "--font-render-hinting=none",
    # Lets a page's script hear when a frame is drawn; images are drawn with it, not when there is time.
    "--enable-gpu-benchmarking",
    "--disable-checker-imaging",
    "--lang=en-US",
    f"--disable-features={','.join(_FEATURES_OFF)}",
    f"--enable-features={','.join(_FEATURES_ON)}",
)
# Shared memory belongs on /dev/shm, which each branch has for itself; Playwright would put it into /tmp.
_NOT_WANTED = ("--disable-dev-shm-usage",)


class BrowserGoneError(Exception):
    """The browser died; `ensure_running` starts it again."""


class Browser:
    """One Chromium with one context; every window and tab is a page of it."""

    def __init__(self, size: ScreenSize) -> None:
        self._size = size
        self._playwright: Playwright | None = None
        self._context: BrowserContext | None = None
        self._traffic: Traffic | None = None
        path = os.environ.get("BUNSHIN_NETWORK_LOG", "")
        self.network = NetworkLog(Path(path)) if path else None
        self._active: Page | None = None
        self._crashed: set[Page] = set()
        self._sessions: WeakKeyDictionary[Page, CDPSession] = WeakKeyDictionary()
        self._letters: WeakKeyDictionary[Page, FrameLetters] = WeakKeyDictionary()
        self._covering: WeakSet[Page] = WeakSet()
        self._notices: list[str] = []

    @property
    def context(self) -> BrowserContext:
        if self._context is None:
            raise BrowserGoneError("the browser died")
        return self._context

    @property
    def traffic(self) -> Traffic:
        if self._traffic is None:
            raise BrowserGoneError("the browser died")
        return self._traffic

    async def start(self) -> None:
        """Starts Playwright's driver and Chromium with an empty profile."""
        os.environ.update(_DRIVER_ENVIRONMENT)
        try:
            self._playwright = await async_playwright().start()
        finally:
            for name in _DRIVER_ENVIRONMENT:
                del os.environ[name]
        shutil.rmtree(_PROFILE, ignore_errors=True)
        for name in _NO_DATABASES:
            # Not empty, or Chromium would remove it.
            (_PROFILE / name / _FIRST_FILE / "none").mkdir(parents=True)
        for name in _NO_FOLDERS:
            (_PROFILE / name).touch()
        await self._launch()

    async def ensure_running(self) -> None:
        """Starts Chromium again if it died, and opens a page if there is none; leaves a notice of either."""
        if self._context is None:
            self._notices.append("the browser died and was started again")
            self._remove_profile_locks()
            await self._launch()
        for page in [page for page in self.pages() if page in self._crashed]:
            self._notices.append("the page crashed and was closed")
            if len(self.pages()) == 1:
                await self.context.new_page()
            await page.close()
        if not self.pages():
            await self.activate(await self.context.new_page())

    def pages(self) -> list[Page]:
        """Open pages in the order in which they were opened."""
        return [page for page in self.context.pages if not page.is_closed()]

    def active_page(self) -> Page:
        """The page that the agent sees and acts on."""
        pages = self.pages()
        if self._active not in pages:
            self._active = pages[-1]
        assert self._active is not None
        return self._active

    async def activate(self, page: Page) -> None:
        """Brings a page to the front, over the whole screen."""
        self._active = page
        await page.bring_to_front()
        if page not in self._covering:
            self._covering.add(page)
            await self._cover_screen(page)

    async def front_page(self) -> Page:
        """The active page, brought to the front if it opened by itself."""
        page = self.active_page()
        if page not in self._covering:
            await self.activate(page)
        return page

    def letters(self, page: Page) -> FrameLetters:
        """The element-id letters of a page's frames."""
        return self._letters.setdefault(page, FrameLetters())

    async def session(self, page: Page) -> CDPSession:
        """The DevTools session of a page; one for its life."""
        found = self._sessions.get(page)
        if found is None:
            found = await self.context.new_cdp_session(page)
            # Told before an action's own end that a window will come; the window itself comes later.
            found.on("Page.windowOpen", lambda _: self.traffic.expect_page())
            self.traffic.watch(page, found)
            await found.send("Page.enable")
            self._sessions[page] = found
        return found

    def take_notices(self) -> list[str]:
        """What happened that nobody asked for, since last time."""
        notices, self._notices = self._notices, []
        return notices

    async def reset(self) -> None:
        """As if started anew: one blank tab, no history, cookies, storage, permissions or dialogs."""
        await self.ensure_running()
        fresh = await self.context.new_page()
        for page in self.pages():
            if page is not fresh:
                await page.close()
        self._active = fresh
        await self.context.clear_cookies()
        await self.context.clear_permissions()
        session = await self.session(fresh)
        await session.send("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"})
        await session.send("Network.clearBrowserCache")
        self._notices.clear()

    async def _cover_screen(self, page: Page) -> None:
        """A window that a page asked for has a bar of its own until it is told to go."""
        session = await self.session(page)
        window = await session.send("Browser.getWindowForTarget")
        if window["bounds"]["windowState"] == "fullscreen":
            return
        bounds = {"windowId": window["windowId"], "bounds": {"windowState": "fullscreen"}}
        await session.send("Browser.setWindowBounds", bounds)
        await page.evaluate(_RESIZED_SCRIPT, self._size.height)

    async def _launch(self) -> None:
        assert self._playwright is not None
        context = await self._playwright.chromium.launch_persistent_context(
            _PROFILE,
            executable_path=_EXECUTABLE,
            headless=False,
            args=[*_ARGS, f"--window-size={self._size.width},{self._size.height}"],
            ignore_default_args=list(_NOT_WANTED),
            no_viewport=True,
            accept_downloads=True,
            timeout=_START_TIMEOUT_MS,
            env={**os.environ, "DBUS_SESSION_BUS_ADDRESS": "disabled:", **_NO_SHARED_BUFFERS, **_NO_HARDWARE_RANDOM},
        )
        context.set_default_timeout(ACTION_TIMEOUT_MS)
        context.set_default_navigation_timeout(NAVIGATION_TIMEOUT_MS)
        self._context = context
        self._traffic = Traffic(context)
        if self.network is not None:
            self.network.attach(context)
        self._active = None
        self._crashed.clear()
        context.on("page", self._opened)
        context.on("close", self._closed)
        for page in context.pages:
            self._watch(page)
        if not context.pages:
            await context.new_page()
        await self.activate(context.pages[0])

    def _opened(self, page: Page) -> None:
        """A new window or tab, opened by us or by a page, is what the agent looks at next."""
        self._watch(page)
        self._active = page
        self.traffic.page_came()

    def _watch(self, page: Page) -> None:
        page.on("crash", self._page_crashed)
        page.on("close", self._page_closed)
        page.on("dialog", self._answer)

    def _page_crashed(self, page: Page) -> None:
        self._crashed.add(page)

    def _page_closed(self, page: Page) -> None:
        self._crashed.discard(page)
        self.traffic.forget(page)

    def _closed(self, context: BrowserContext) -> None:
        if context is self._context:
            self._context = None

    async def _answer(self, dialog: Dialog) -> None:
        """Alerts and leave-the-page questions are confirmed, all others declined: nothing may block."""
        confirm = dialog.type in ("alert", "beforeunload")
        answer = "confirmed" if confirm else "declined"
        self._notices.append(f"a {dialog.type} dialog was {answer}: {dialog.message!r}")
        try:
            if confirm:
                await dialog.accept()
            else:
                await dialog.dismiss()
        except PlaywrightError as error:
            log.warning("dialog not answered: %s", error)

    @staticmethod
    def _remove_profile_locks() -> None:
        """A killed Chromium leaves its profile locked."""
        for path in _PROFILE.glob("Singleton*"):
            path.unlink(missing_ok=True)


def describe_error(error: BaseException) -> str:
    """One error as an agent should read it: the driver's log of what it waited for says each thing once."""
    text: Any = getattr(error, "message", None) or str(error) or type(error).__name__
    what, _, calls = str(text).partition("\nBrowser logs:")[0].partition("\nCall log:")
    steps = dict.fromkeys(line.strip(" -") for line in calls.splitlines() if line.strip(" -"))
    return "; ".join([what.strip(), *list(steps)[:_LOG_LINES]])
