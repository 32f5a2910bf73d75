/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random numbers: the kernel's by system call and device, and by the vDSO, which keeps its state in memory of the
 * process (droppable, and wiped in children). Each draw is new, and is written to /guest-drawn for the test to
 * compare: what comes from the kernel must differ between sides, what the program makes itself must not.
 */
#include <elf.h>
#include <sys/auxv.h>
#include <sys/random.h>

#include "guest.h"

struct state_params {
	uint32_t size, prot, flags, reserved[13];
};
typedef ssize_t (*vdso_getrandom)(void *buffer, size_t len, unsigned int flags, void *state, size_t state_len);

static vdso_getrandom draw_fast;
static void *state;
static size_t state_size;
static uint64_t own = 42, last[3];

/* A function of the vDSO by its name; NULL on kernels that have none. */
static void *vdso_symbol(const char *wanted)
{
	const char *base = (const char *)getauxval(AT_SYSINFO_EHDR);
	const Elf64_Ehdr *head = (const Elf64_Ehdr *)base;
	const Elf64_Shdr *section = base ? (const Elf64_Shdr *)(base + head->e_shoff) : NULL;

	for (int i = 0; base && i < head->e_shnum; i++) {
		const Elf64_Sym *symbols = (const Elf64_Sym *)(base + section[i].sh_offset);

		if (section[i].sh_type != SHT_DYNSYM)
			continue;
		for (size_t k = 0; k < section[i].sh_size / sizeof(*symbols); k++)
			if (!strcmp(base + section[section[i].sh_link].sh_offset + symbols[k].st_name, wanted))
				return (void *)(base + symbols[k].st_value);
	}
	return NULL;
}

void guest_setup(void)
{
	struct state_params params = {0};

	*(void **)&draw_fast = vdso_symbol("__vdso_getrandom");
	if (!draw_fast || draw_fast(NULL, 0, 0, &params, ~0UL) < 0) {
		draw_fast = NULL;
		return;
	}
	state_size = params.size;
	state = mmap(NULL, 4096, (int)params.prot, (int)params.flags, -1, 0);
	CHECK(state != MAP_FAILED);
}

static void draw(uint64_t drawn[3])
{
	int device = open("/dev/urandom", O_RDONLY | O_CLOEXEC);

	CHECK(getrandom(&drawn[0], 8, 0) == 8);
	CHECK(device >= 0 && read(device, &drawn[1], 8) == 8);
	close(device);
	if (draw_fast)
		CHECK(draw_fast(&drawn[2], 8, 0, state, state_size) == 8);
	else
		drawn[2] = drawn[0] ^ drawn[1];
}

void guest_put(const char *tag)
{
	(void)tag;
	draw(last);
}

void guest_check(const char *tag)
{
	char text[128];
	uint64_t now[3];
	int fd, n;

	(void)tag;
	draw(now);
	for (int i = 0; i < 3; i++)
		CHECK(now[i] != last[i]);
	own = own * 6364136223846793005UL + 1442695040888963407UL;
	n = snprintf(text, sizeof(text), "%lx %lx %lx %lx\n", now[0], now[1], now[2], own);
	fd = open("/guest-drawn", O_WRONLY | O_CREAT | O_APPEND, 0600);
	CHECK(fd >= 0 && write(fd, text, (size_t)n) == n);
	close(fd);
}
