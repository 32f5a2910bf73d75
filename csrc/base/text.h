/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Strings, string arrays and whole files. */
#include <stddef.h>

/* Formats into a new string; aborts when memory is out, as all allocation helpers here do. */
char *bsh_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
char *bsh_strdup(const char *text); /* takes NULL */
void *bsh_alloc(size_t size);	    /* zeroed */

/* NULL-terminated arrays of strings. */
size_t bsh_strv_len(const char *const *list);  /* takes NULL */
char **bsh_strv_copy(const char *const *list); /* NULL gives an empty array */
void bsh_strv_push(char ***list, char *owned);
void bsh_strv_free(char **list);
void bsh_strv_release(char ***list);
#define auto_strv __attribute__((cleanup(bsh_strv_release)))

/* A growing text; start from {0}. text is NULL while empty, else NUL-terminated. */
struct bsh_buffer {
	char *text;
	size_t len;
	size_t size;
};
void bsh_buffer_add(struct bsh_buffer *buffer, const void *bytes, size_t len);
void bsh_buffer_printf(struct bsh_buffer *buffer, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void bsh_buffer_release(struct bsh_buffer *buffer);
#define auto_buffer __attribute__((cleanup(bsh_buffer_release)))
