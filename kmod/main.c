// SPDX-License-Identifier: GPL-2.0-only
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/init.h>
#include <linux/module.h>

#include "device.h"
#include "symbols.h"

static int __init bsh_init(void)
{
	int rc;

	rc = bsh_symbols_init();
	if (rc < 0)
		return rc;
	return bsh_device_init();
}

static void __exit bsh_exit(void)
{
	bsh_device_exit();
}

module_init(bsh_init);
module_exit(bsh_exit);

MODULE_LICENSE("GPL");
MODULE_AUTHOR("The BunshinGym developers");
MODULE_DESCRIPTION("Copy-on-write shares of another process's memory");
MODULE_VERSION(BSH_VERSION);
