/* SPDX-License-Identifier: Apache-2.0 */
/* System V shared memory, semaphores and messages: the ids stay, the contents diverge. */
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#include "guest.h"

struct message {
	long type;
	char tag[TAG_SIZE];
};
static int shm, sem, msg;
static char *memory;

void guest_setup(void)
{
	shm = shmget(0x6001, 65536, IPC_CREAT | 0600);
	sem = semget(0x6002, 2, IPC_CREAT | 0600);
	msg = msgget(0x6003, IPC_CREAT | 0600);
	CHECK(shm >= 0 && sem >= 0 && msg >= 0);
	memory = shmat(shm, NULL, 0);
	CHECK(memory != (void *)-1);
}

void guest_put(const char *tag)
{
	struct message message = {.type = 7};

	strcpy(memory, tag);
	CHECK(semctl(sem, 1, SETVAL, tag[0]) == 0);
	strcpy(message.tag, tag);
	CHECK(msgsnd(msg, &message, sizeof(message.tag), 0) == 0);
}

void guest_check(const char *tag)
{
	struct message message;
	char *again;

	CHECK(shmget(0x6001, 0, 0) == shm && semget(0x6002, 0, 0) == sem && msgget(0x6003, 0) == msg);
	CHECK_TAG(memory, tag);
	again = shmat(shm, NULL, 0);
	CHECK(again != (void *)-1);
	CHECK_TAG(again, tag);
	CHECK(shmdt(again) == 0);
	CHECK(semctl(sem, 1, GETVAL) == tag[0]);
	CHECK(msgrcv(msg, &message, sizeof(message.tag), 7, IPC_NOWAIT) == sizeof(message.tag));
	CHECK_TAG(message.tag, tag);
	CHECK(msgrcv(msg, &message, sizeof(message.tag), 7, IPC_NOWAIT) < 0 && errno == ENOMSG);
}
