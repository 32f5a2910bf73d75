# SPDX-License-Identifier: Apache-2.0
"""One process with threads: its memory is shared by all that it serves, and by the branches."""

from __future__ import annotations

bind = "127.0.0.1:80"
workers = 1
threads = 4
worker_class = "gthread"
timeout = 0
keepalive = 2
preload_app = False
accesslog = None
errorlog = "-"
loglevel = "warning"
worker_tmp_dir = "/dev/shm"
