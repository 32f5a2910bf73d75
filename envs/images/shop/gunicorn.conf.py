# SPDX-License-Identifier: Apache-2.0
"""One process that serves one request at a time: a browser is all that asks, and each thread would have a connection to
the database of its own, with a process at its other end, in every branch.
"""

from __future__ import annotations

bind = "127.0.0.1:80"
workers = 1
threads = 1
worker_class = "gthread"
timeout = 0
keepalive = 2
preload_app = False
accesslog = None
errorlog = "-"
loglevel = "warning"
worker_tmp_dir = "/dev/shm"
