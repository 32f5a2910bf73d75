# SPDX-License-Identifier: Apache-2.0
"""`bunshin view`: the screens of all workspaces as a local web page. Needs the extra `view`."""
