/* SPDX-License-Identifier: Apache-2.0 */
#include "host/confine.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The newer system calls by number: headers of older systems lack their names. */
enum {
	NR_IO_URING_SETUP = 425,
	NR_IO_URING_ENTER,
	NR_IO_URING_REGISTER,
	NR_OPEN_TREE,
	NR_MOVE_MOUNT,
	NR_FSOPEN,
	NR_FSCONFIG,
	NR_FSMOUNT,
	NR_FSPICK,
	NR_CLONE3 = 435,
	NR_MOUNT_SETATTR = 442,
	NR_QUOTACTL_FD,
	NR_LANDLOCK_CREATE_RULESET,
	NR_LANDLOCK_ADD_RULE,
	NR_LANDLOCK_RESTRICT_SELF,
	NR_MEMFD_SECRET,
	NR_OPEN_TREE_ATTR = 467,
};

#define X32_BIT 0x40000000U
#define NEW_NAMESPACES                                                                                                 \
	(CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET |   \
		CLONE_NEWTIME)

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)
#define ANSWER(code) RETURN(SECCOMP_RET_ERRNO | (code))
#define ALLOW RETURN(SECCOMP_RET_ALLOW)
#define UNLESS_EQUAL_SKIP(value, n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, n)
#define IF_EQUAL_SKIP(value, n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, n, 0)
#define DENY(number, code) UNLESS_EQUAL_SKIP(number, 1), ANSWER(code)

/*
 * Three kinds of refusal. ENOSYS: what no engine can carry into a branch, so that
 * programs fall back (clone3 because a filter cannot see its flags, process_vm_writev because what it writes can be
 * missed by who copies memory that is in use). EPERM: what reaches out of the workspace or makes nested ones.
 * Other architectures' calls would bypass the numbers below.
 */
static const struct sock_filter filter[] = {
	LOAD(arch),
	IF_EQUAL_SKIP(AUDIT_ARCH_X86_64, 1),
	ANSWER(ENOSYS),
	LOAD(nr),
	BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1),
	ANSWER(ENOSYS),

	/* New namespaces hide in the flags of clone and unshare. */
	UNLESS_EQUAL_SKIP(SYS_clone, 4),
	LOAD(args[0]),
	BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NEW_NAMESPACES, 0, 1),
	ANSWER(EPERM),
	ALLOW,
	UNLESS_EQUAL_SKIP(SYS_unshare, 4),
	LOAD(args[0]),
	BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NEW_NAMESPACES, 0, 1),
	ANSWER(EPERM),
	ALLOW,
	/* Sockets: of the families that are confined by the network namespace and can be carried. */
	UNLESS_EQUAL_SKIP(SYS_socket, 7),
	LOAD(args[0]),
	IF_EQUAL_SKIP(AF_UNIX, 4),
	IF_EQUAL_SKIP(AF_INET, 3),
	IF_EQUAL_SKIP(AF_INET6, 2),
	IF_EQUAL_SKIP(AF_NETLINK, 1),
	ANSWER(EAFNOSUPPORT),
	ALLOW,

	DENY(NR_IO_URING_SETUP, ENOSYS),
	DENY(NR_IO_URING_ENTER, ENOSYS),
	DENY(NR_IO_URING_REGISTER, ENOSYS),
	DENY(NR_CLONE3, ENOSYS),
	DENY(NR_LANDLOCK_CREATE_RULESET, ENOSYS),
	DENY(NR_LANDLOCK_ADD_RULE, ENOSYS),
	DENY(NR_LANDLOCK_RESTRICT_SELF, ENOSYS),
	DENY(NR_MEMFD_SECRET, ENOSYS),
	DENY(SYS_process_vm_writev, ENOSYS),

	DENY(SYS_mount, EPERM),
	DENY(SYS_umount2, EPERM),
	DENY(SYS_pivot_root, EPERM),
	DENY(NR_OPEN_TREE, EPERM),
	DENY(NR_OPEN_TREE_ATTR, EPERM),
	DENY(NR_MOVE_MOUNT, EPERM),
	DENY(NR_FSOPEN, EPERM),
	DENY(NR_FSCONFIG, EPERM),
	DENY(NR_FSMOUNT, EPERM),
	DENY(NR_FSPICK, EPERM),
	DENY(NR_MOUNT_SETATTR, EPERM),
	DENY(SYS_setns, EPERM),
	DENY(SYS_init_module, EPERM),
	DENY(SYS_finit_module, EPERM),
	DENY(SYS_delete_module, EPERM),
	DENY(SYS_kexec_load, EPERM),
	DENY(SYS_kexec_file_load, EPERM),
	DENY(SYS_reboot, EPERM),
	DENY(SYS_swapon, EPERM),
	DENY(SYS_swapoff, EPERM),
	DENY(SYS_bpf, EPERM),
	DENY(SYS_perf_event_open, EPERM),
	DENY(SYS_userfaultfd, EPERM),
	DENY(SYS_fanotify_init, EPERM),
	DENY(SYS_keyctl, EPERM),
	DENY(SYS_add_key, EPERM),
	DENY(SYS_request_key, EPERM),
	DENY(SYS_open_by_handle_at, EPERM),
	DENY(SYS_quotactl, EPERM),
	DENY(NR_QUOTACTL_FD, EPERM),
	DENY(SYS_acct, EPERM),
	DENY(SYS_settimeofday, EPERM),
	DENY(SYS_clock_settime, EPERM),
	DENY(SYS_iopl, EPERM),
	DENY(SYS_ioperm, EPERM),
	DENY(SYS_lookup_dcookie, EPERM),
	DENY(SYS_syslog, EPERM),
	DENY(SYS_vhangup, EPERM),
	ALLOW,
};

int bsh_confine_caps(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {
		{.effective = (uint32_t)BSH_CAPS_KEPT, .permitted = (uint32_t)BSH_CAPS_KEPT},
		{.effective = BSH_CAPS_KEPT >> 32, .permitted = BSH_CAPS_KEPT >> 32},
	};

	/* The bounding set first: dropping from it needs what the sets lose after. */
	for (unsigned long cap = 0; cap < 64; cap++) {
		if (BSH_CAPS_KEPT >> cap & 1)
			continue;
		if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0) {
			if (errno == EINVAL) /* beyond the last one this kernel knows */
				break;
			return -errno;
		}
	}
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
		return -errno;
	return syscall(SYS_capset, &header, data) < 0 ? -errno : 0;
}

int bsh_confine_syscalls(void)
{
	const struct sock_fprog program = {
		.len = sizeof(filter) / sizeof(filter[0]),
		.filter = (struct sock_filter *)filter,
	};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -errno;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0 ? -errno : 0;
}

int bsh_become(unsigned int uid, unsigned int gid)
{
	/* The system calls themselves: libc's functions would try to tell threads that a forked child lacks. */
	if (syscall(SYS_setgroups, 0, NULL) < 0)
		return -errno;
	if (syscall(SYS_setresgid, gid, gid, gid) < 0)
		return -errno;
	return syscall(SYS_setresuid, uid, uid, uid) < 0 ? -errno : 0;
}
