/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * What user space and the bunshin module say to each other over /dev/bunshin.
 *
 * Each structure begins with its size as the caller knows it and may grow at
 * its end: a smaller one than version 1 is refused with EINVAL, a larger one
 * with E2BIG unless the part the kernel does not know is zero. Fields marked
 * "out" and reserved ones must be zero on the way in.
 */
#ifndef _UAPI_BUNSHIN_KMOD_H
#define _UAPI_BUNSHIN_KMOD_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define BUNSHIN_DEVICE "/dev/bunshin"
#define BUNSHIN_ABI 1

/* Bits of bunshin_info.features. */
#define BUNSHIN_FEATURE_COW_RANGE (1ULL << 0)
#define BUNSHIN_FEATURE_DETACH (1ULL << 1)

struct bunshin_info {
	__u32 size;
	__u32 abi;         /* out: BUNSHIN_ABI of the loaded module */
	__u64 features;    /* out: BUNSHIN_FEATURE_* */
	char version[32];  /* out: for people, NUL-terminated */
	__u64 reserved[2];
};

/*
 * The shared part of a private file mapping becomes anonymous memory in the
 * caller, without a tie to the file. Every page of the range that is present
 * must be a private copy already (bit 61 of /proc/PID/pagemap clear), else
 * ENXIO.
 */
#define BUNSHIN_COW_DETACH (1U << 0)

/* bunshin_cow_range.refusal: what stood in the way, at refused_at. */
enum bunshin_refusal {
	BUNSHIN_REFUSED_NOTHING = 0,
	BUNSHIN_REFUSED_HOLE,       /* EFAULT: the source has no mapping there */
	BUNSHIN_REFUSED_OCCUPIED,   /* EEXIST: the caller has one there */
	BUNSHIN_REFUSED_SHARED,     /* EOPNOTSUPP: MAP_SHARED, a copy is needed */
	BUNSHIN_REFUSED_DEVICE,     /* EOPNOTSUPP: device memory, vdso, vvar, DAX */
	BUNSHIN_REFUSED_HUGETLB,    /* EOPNOTSUPP: hugetlbfs pages */
	BUNSHIN_REFUSED_UFFD,       /* EOPNOTSUPP: watched by a userfaultfd */
	BUNSHIN_REFUSED_PKEY,       /* EOPNOTSUPP: behind a protection key */
	BUNSHIN_REFUSED_SPECIAL,    /* EOPNOTSUPP: shadow stack, droppable memory */
	BUNSHIN_REFUSED_HUGE_PAGE,  /* ERANGE: the range cuts the huge page there */
	BUNSHIN_REFUSED_FILE_PAGE,  /* ENXIO: BUNSHIN_COW_DETACH, and a page of the file */
};

/*
 * Map [start, start + length) of the source at the same addresses in the
 * caller, sharing its pages copy-on-write. Each side's later writes are its
 * own. All of the range or nothing is mapped; it may span several mappings of
 * the source but no hole, and nothing may be there in the caller.
 *
 * The source may run on meanwhile: the range is then of one moment. Several
 * ranges of one moment need a source that stands still.
 *
 * Left behind by the new mappings: MADV_DONTFORK, MADV_WIPEONFORK,
 * MADV_MERGEABLE, mlock(), mseal(), memory policies.
 *
 * Errors besides those above: EINVAL a field, or the source is the caller;
 * EBADF not a pidfd; ESRCH the source is gone; EAGAIN a page is on the move,
 * try again; ENOMEM; EINTR killed while waiting.
 */
struct bunshin_cow_range {
	__u32 size;
	__s32 pidfd;       /* of the source */
	__u32 flags;       /* BUNSHIN_COW_* */
	__u32 refusal;     /* out: enum bunshin_refusal */
	__u64 start;       /* page aligned */
	__u64 length;      /* a multiple of the page size, not 0 */
	__u64 refused_at;  /* out: the address, with a refusal */
	__u64 reserved;
};

#define BUNSHIN_IOC_MAGIC 0xBE
#define BUNSHIN_INFO _IOWR(BUNSHIN_IOC_MAGIC, 0, struct bunshin_info)
#define BUNSHIN_COW_RANGE _IOWR(BUNSHIN_IOC_MAGIC, 1, struct bunshin_cow_range)

#endif /* _UAPI_BUNSHIN_KMOD_H */
