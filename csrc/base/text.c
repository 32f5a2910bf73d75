/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Small allocations only: on Linux they fail when nothing could go on anyway. */
static void *must(void *memory)
{
	if (!memory)
		abort();
	return memory;
}

void *bsh_alloc(size_t size)
{
	return must(calloc(1, size ? size : 1));
}

char *bsh_strdup(const char *text)
{
	return text ? must(strdup(text)) : NULL;
}

char *bsh_format(const char *fmt, ...)
{
	char *text = NULL;
	va_list args;

	va_start(args, fmt);
	if (vasprintf(&text, fmt, args) < 0)
		text = NULL;
	va_end(args);
	return must(text);
}

size_t bsh_strv_len(const char *const *list)
{
	size_t n = 0;

	while (list && list[n])
		n++;
	return n;
}

char **bsh_strv_copy(const char *const *list)
{
	size_t n = bsh_strv_len(list);
	char **copy = bsh_alloc((n + 1) * sizeof(*copy));

	for (size_t i = 0; i < n; i++)
		copy[i] = bsh_strdup(list[i]);
	return copy;
}

void bsh_strv_push(char ***list, char *owned)
{
	size_t n = bsh_strv_len((const char *const *)*list);

	*list = must(realloc(*list, (n + 2) * sizeof(**list)));
	(*list)[n] = owned;
	(*list)[n + 1] = NULL;
}

void bsh_strv_free(char **list)
{
	for (size_t i = 0; list && list[i]; i++)
		free(list[i]);
	free(list);
}

void bsh_strv_release(char ***list)
{
	bsh_strv_free(*list);
	*list = NULL;
}

static void reserve(struct bsh_buffer *buffer, size_t len)
{
	size_t size = buffer->size ? buffer->size : 256;

	while (size < len)
		size *= 2;
	if (size == buffer->size)
		return;
	buffer->text = must(realloc(buffer->text, size));
	buffer->size = size;
}

void bsh_buffer_add(struct bsh_buffer *buffer, const void *bytes, size_t len)
{
	reserve(buffer, buffer->len + len + 1);
	if (len)
		memcpy(buffer->text + buffer->len, bytes, len);
	buffer->len += len;
	buffer->text[buffer->len] = '\0';
}

void bsh_buffer_printf(struct bsh_buffer *buffer, const char *fmt, ...)
{
	char *text = NULL;
	va_list args;
	int len;

	va_start(args, fmt);
	len = vasprintf(&text, fmt, args);
	va_end(args);
	if (len < 0)
		abort();
	bsh_buffer_add(buffer, text, (size_t)len);
	free(text);
}

void bsh_buffer_release(struct bsh_buffer *buffer)
{
	free(buffer->text);
	*buffer = (struct bsh_buffer){0};
}
