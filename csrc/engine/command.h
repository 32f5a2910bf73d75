/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Runs our CRIU as a command, beside the source or inside a branch's place. */
#include <sys/types.h>

struct bsh_error;
struct bsh_place;

/* An argument list in the making; owned strings. */
struct bsh_command {
	char **argv;
	int keep_fd; /* inherited by the command under the same number; -1: none */
};

void bsh_command_init(struct bsh_command *command, const char *program, const char *action);
void bsh_command_release(struct bsh_command *command);
#define auto_command __attribute__((cleanup(bsh_command_release)))
void bsh_command_add(struct bsh_command *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/*
 * Starts it with only keep_fd and a quiet standard stream. With a place it enters the place's
 * mount namespace and cgroups, and a cgroup namespace of its own, first.
 */
int bsh_command_start(
	const struct bsh_command *command, const struct bsh_place *place, int *ret_pidfd, struct bsh_error *err);
/*
 * Waits for its end. When it failed, the errors in its log become the message: what says
 * which command. Kills it and gives -ETIMEDOUT when it takes longer than timeout_ms.
 */
int bsh_command_wait(int pidfd, int timeout_ms, const char *what, const char *log, struct bsh_error *err);
