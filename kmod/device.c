// SPDX-License-Identifier: GPL-2.0-only
/* /dev/bunshin: who may open it, and the copying in and out of its requests. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "device.h"
#include "range.h"
#include "uapi/bunshin_kmod.h"

/*
 * The open descriptor is the authority: who holds it can read the memory of
 * any process it has a pidfd of. So opening asks for what reading such memory
 * by ptrace would ask for, whatever the mode of the node has become.
 */
static int bsh_open(struct inode *inode, struct file *file)
{
	return capable(CAP_SYS_PTRACE) ? 0 : -EPERM;
}

/* Copies in a structure that begins with its size; the caller's size is kept. */
static int bsh_copy_in(void *to, size_t known, const void __user *from,
		       u32 *ret_size)
{
	u32 size;
	int rc;

	if (get_user(size, (u32 __user *)from))
		return -EFAULT;
	if (size < known || size > PAGE_SIZE)
		return -EINVAL;
	rc = copy_struct_from_user(to, known, from, size);
	if (rc < 0)
		return rc;
	*ret_size = size;
	return 0;
}

static int bsh_info(void __user *user)
{
	struct bunshin_info info;
	u32 size;
	int rc;

	rc = bsh_copy_in(&info, sizeof(info), user, &size);
	if (rc < 0)
		return rc;
	if (memchr_inv((u8 *)&info + sizeof(info.size), 0,
		       sizeof(info) - sizeof(info.size)))
		return -EINVAL;
	info.size = size;
	info.abi = BUNSHIN_ABI;
	info.features = BUNSHIN_FEATURE_COW_RANGE | BUNSHIN_FEATURE_DETACH;
	strscpy(info.version, BSH_VERSION, sizeof(info.version));
	return copy_to_user(user, &info, sizeof(info)) ? -EFAULT : 0;
}

static int bsh_cow(void __user *user)
{
	struct bunshin_cow_range range;
	u32 size;
	int rc;

	rc = bsh_copy_in(&range, sizeof(range), user, &size);
	if (rc < 0)
		return rc;
	range.size = size;
	if (range.refusal || range.refused_at || range.reserved)
		return -EINVAL;
	rc = bsh_range_share(&range);
	if (range.refusal && copy_to_user(user, &range, sizeof(range)))
		return -EFAULT;
	return rc;
}

static long bsh_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	void __user *user = (void __user *)arg;

	switch (cmd) {
	case BUNSHIN_INFO:
		return bsh_info(user);
	case BUNSHIN_COW_RANGE:
		return bsh_cow(user);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations bsh_fops = {
	.owner = THIS_MODULE,
	.open = bsh_open,
	.unlocked_ioctl = bsh_ioctl,
};

static struct miscdevice bsh_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "bunshin",
	.fops = &bsh_fops,
	.mode = 0600,
};

int bsh_device_init(void)
{
	int rc = misc_register(&bsh_misc);

	if (rc < 0)
		pr_err("cannot register the device: error %d\n", -rc);
	return rc;
}

void bsh_device_exit(void)
{
	misc_deregister(&bsh_misc);
}
