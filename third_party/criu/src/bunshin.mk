# SPDX-License-Identifier: GPL-2.0-only
# Our objects in CRIU's build.
obj-y			+= bunshin-rlimit.o
