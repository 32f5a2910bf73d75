# SPDX-License-Identifier: GPL-2.0-only
# Our objects in CRIU's build.
obj-y			+= bunshin-arena.o
obj-y			+= bunshin-branch.o
obj-y			+= bunshin-copy.o
obj-y			+= bunshin-fill.o
obj-y			+= bunshin-ghost.o
obj-y			+= bunshin-kmod.o
obj-y			+= bunshin-mapfile.o
obj-y			+= bunshin-msg.o
obj-y			+= bunshin-pool.o
obj-y			+= bunshin-record.o
obj-y			+= bunshin-rlimit.o
obj-y			+= bunshin-scan.o
obj-y			+= bunshin-shm.o
obj-y			+= bunshin-smaps.o
obj-y			+= bunshin-gzip.o
obj-y			+= bunshin-tar.o
