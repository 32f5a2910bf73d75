// SPDX-License-Identifier: GPL-2.0-only
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/init.h>
#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/moduleparam.h>
#include <linux/printk.h>
#include <linux/utsname.h>

#include "symbols.h"

static bool untested;
module_param(untested, bool, 0444);
MODULE_PARM_DESC(untested, "load on a kernel newer than those tested");

#define BSH_DEFINE(name) DEFINE_STATIC_CALL_NULL(bsh_##name, name);
BSH_SYMBOLS(BSH_DEFINE)
#undef BSH_DEFINE
DEFINE_STATIC_CALL_NULL(bsh_lookup, kallsyms_lookup_name);

/* The way in: kprobes still look names up for modules. */
static int __init bsh_lookup_init(void)
{
	struct kprobe probe = { .symbol_name = "kallsyms_lookup_name" };
	int rc;

	rc = register_kprobe(&probe);
	if (rc < 0) {
		pr_err("cannot look symbols up: a kprobe on kallsyms_lookup_name gives error %d\n",
		       -rc);
		return rc;
	}
	static_call_update(bsh_lookup, (void *)probe.addr);
	unregister_kprobe(&probe);
	return 0;
}

static void *__init bsh_find(const char *name, unsigned int *missing)
{
	unsigned long address = static_call(bsh_lookup)(name);

	if (!address) {
		pr_err("kernel %s has no function %s()\n",
		       init_utsname()->release, name);
		++*missing;
	}
	return (void *)address;
}

int __init bsh_symbols_init(void)
{
	unsigned int missing = 0;
	int rc;

	if (!bsh_kernel_tested() && !untested) {
		pr_err("kernel %s is newer than the last one tested (%s); load with untested=1 to try\n",
		       init_utsname()->release, BSH_TESTED);
		return -EOPNOTSUPP;
	}
	rc = bsh_lookup_init();
	if (rc < 0)
		return rc;
#define BSH_FIND(name)                                                         \
	do {                                                                   \
		void *address = bsh_find(#name, &missing);                     \
		if (address)                                                   \
			static_call_update(bsh_##name, address);               \
	} while (0);
	BSH_SYMBOLS(BSH_FIND)
#undef BSH_FIND
	if (!missing)
		return 0;
	pr_err("%u of the functions it needs are missing, not loaded\n", missing);
	return -ENOENT;
}
