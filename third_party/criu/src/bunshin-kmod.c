// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages from a frozen source without a copy, where the bunshin module is
 * loaded (kmod/ in this repository): a range is shared copy-on-write at the source's
 * own address, then moved to where the pool wants it.
 *
 * Nothing depends on it. What the module refuses, or what would lie where the
 * pool has something of its own, is copied like everything else.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bunshin-kmod.h"
#include "bunshin-pool.h"
#include "bunshin_kmod.h"
#include "log.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

#define NEEDED (BUNSHIN_FEATURE_COW_RANGE | BUNSHIN_FEATURE_DETACH)

static struct {
	int device;
	int pidfd; /* of the process pulled from last */
	pid_t pid;
	unsigned int refused;
} kmod = { .device = -1, .pidfd = -1 };

/* 0, or the errno value that says why the module is of no use. */
static int open_device(void)
{
	struct bunshin_info info = { .size = sizeof(info) };
	int ret;

	kmod.device = open(BUNSHIN_DEVICE, O_RDWR | O_CLOEXEC);
	if (kmod.device < 0)
		return errno;
	ret = ioctl(kmod.device, BUNSHIN_INFO, &info) ? errno : 0;
	if (!ret && (info.abi != BUNSHIN_ABI || (info.features & NEEDED) != NEEDED))
		ret = EPROTO;
	if (ret)
		bunshin_kmod_end();
	return ret;
}

void bunshin_kmod_begin(void)
{
	int ret = open_device();

	kmod.refused = 0;
	if (!ret)
		return;
	/* The phases are what the core hears of it. */
	bunshin_phase(ret == ENOENT ? "no kmod: copying" : ret == EPROTO ? "other kmod: copying" : "kmod shut: copying");
	pr_warn("%s cannot be used, everything is copied: %s\n", BUNSHIN_DEVICE, strerror(ret));
}

void bunshin_kmod_end(void)
{
	if (kmod.device >= 0)
		close(kmod.device);
	if (kmod.pidfd >= 0)
		close(kmod.pidfd);
	kmod.device = kmod.pidfd = -1;
	kmod.pid = 0;
}

bool bunshin_kmod_ready(void)
{
	return kmod.device >= 0;
}

static int pidfd_of(pid_t pid)
{
	if (kmod.pid == pid)
		return kmod.pidfd;
	if (kmod.pidfd >= 0)
		close(kmod.pidfd);
	kmod.pidfd = syscall(__NR_pidfd_open, pid, 0);
	kmod.pid = kmod.pidfd < 0 ? 0 : pid;
	return kmod.pidfd;
}

static int pull(pid_t pid, const struct bunshin_seg *seg)
{
	struct bunshin_cow_range range = {
		.size = sizeof(range),
		.pidfd = pidfd_of(pid),
		.flags = seg->kind == BUNSHIN_RUN ? BUNSHIN_COW_DETACH : 0,
		.start = seg->start,
		.length = seg->end - seg->start,
	};
	int ret;

	if (range.pidfd < 0)
		return -1;
	do
		ret = ioctl(kmod.device, BUNSHIN_COW_RANGE, &range);
	while (ret && errno == EAGAIN);
	if (ret && !kmod.refused++)
		pr_warn("the module does not share %#" PRIx64 "-%#" PRIx64 " of %d, it is copied: %m (%u at %#llx)\n",
			seg->start, seg->end, pid, range.refusal, (unsigned long long)range.refused_at);
	return ret;
}

int bunshin_kmod_pull(pid_t pid, const struct bunshin_seg *seg)
{
	uint64_t len = seg->end - seg->start;

	if (kmod.device < 0 || pull(pid, seg))
		return 1;
	if (mremap((void *)seg->start, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, seg->addr) != seg->addr) {
		pr_perror("cannot move %#" PRIx64 "-%#" PRIx64 " of %d", seg->start, seg->end, pid);
		return -1;
	}
	/* What is shared is as the source has it; a segment can be written to. */
	if (!(seg->prot & PROT_WRITE) && mprotect(seg->addr, len, seg->prot | PROT_WRITE)) {
		pr_perror("cannot make a segment writable");
		return -1;
	}
	return 0;
}
