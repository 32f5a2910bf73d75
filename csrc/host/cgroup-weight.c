/* SPDX-License-Identifier: Apache-2.0 */
/* Who goes first. A weight of 100 is v1's 1024 shares and BFQ's 100. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "host/cgroup.h"
#include "host/features.h"

static int write_number(const char *dir, const char *file, unsigned long long value, struct bsh_error *err)
{
	auto_free char *path = bsh_format("%s/%s", dir, file), *text = bsh_format("%llu", value);

	return bsh_write_control(AT_FDCWD, path, text, err);
}

static unsigned long long clamp(unsigned long long value, unsigned long long low, unsigned long long high)
{
	return value < low ? low : value > high ? high : value;
}

/*
 * An idle group is preempted at once, where the lowest weight may still finish its time slice; and the kernel
 * takes no weight for an idle group, so it is made one last and unmade first. Before 5.15 there is no such file.
 */
static int weigh_cpu(const struct bsh_features *f, const char *name, unsigned int weight, struct bsh_error *err)
{
	const char *mount = f->v2_cpu ? f->cgroup_v2 : f->cgroup_v1_cpu;
	auto_free char *dir = NULL;
	int rc;

	if (!mount)
		return bsh_fail(err, EOPNOTSUPP, "weigh the CPU: no cgroup hierarchy of this machine does it");
	dir = bsh_format("%s/%s", mount, name);
	write_number(dir, "cpu.idle", 0, NULL);
	rc = f->v2_cpu ? write_number(dir, "cpu.weight", weight, err)
		       : write_number(dir, "cpu.shares", clamp(weight * 1024ULL / 100, 2, 262144), err);
	if (rc == 0 && weight == BSH_WEIGHT_IDLE)
		write_number(dir, "cpu.idle", 1, NULL);
	return rc;
}

/* Which of the files is there depends on the kernel's schedulers; without one, disks treat all alike. */
static int weigh_io(const struct bsh_features *f, const char *name, unsigned int weight, struct bsh_error *err)
{
	const struct {
		const char *file;
		unsigned int high;
	} files[] = {
		{f->v2_io ? "io.weight" : "blkio.weight", f->v2_io ? 10000 : 1000},
		{f->v2_io ? "io.bfq.weight" : "blkio.bfq.weight", 1000},
	};
	const char *mount = f->v2_io ? f->cgroup_v2 : f->cgroup_v1_blkio;
	auto_free char *dir = NULL;

	if (!mount)
		return 0;
	dir = bsh_format("%s/%s", mount, name);
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		int rc = write_number(dir, files[i].file, clamp(weight, f->v2_io ? 1 : 10, files[i].high), err);

		if (rc < 0 && rc != -ENOENT)
			return rc;
	}
	return 0;
}

int bsh_cgroup_weigh(const struct bsh_features *features, const char *name, unsigned int cpu_weight,
	unsigned int io_weight, struct bsh_error *err)
{
	int rc = cpu_weight ? weigh_cpu(features, name, cpu_weight, err) : 0;

	return rc == 0 && io_weight ? weigh_io(features, name, io_weight, err) : rc;
}
