# SPDX-License-Identifier: Apache-2.0
"""The tool server: what an agent sees and does, run inside the workspace and forked with it.

It is copied to /.bunshin/toolserver of each workspace and runs on the workspace's own Python, so it
imports nothing of bunshin_gym but itself, and by relative imports only.
"""
