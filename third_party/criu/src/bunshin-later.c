// SPDX-License-Identifier: GPL-2.0-only
/*
 * Images of one object that nobody reads while the source stands still, one for each of its threads among them, are
 * written when it runs again: to make a file takes longer than to say what is in it.
 */
#include <string.h>

#include "bunshin-pool.h"
#include "image.h"
#include "log.h"
#include "protobuf.h"
#include "xmalloc.h"

#undef LOG_PREFIX
#define LOG_PREFIX "later: "

struct later {
	struct later *next;
	struct cr_img *img;
	uint32_t size;
	char object[];
};

static struct later *first, **last = &first;

static bool is_of_one_object(int type)
{
	return type == PB_CORE || type == PB_MM || type == PB_FS || type == PB_IDS;
}

/* As it is before it is opened, which closing it leaves to us. */
static struct cr_img *copy_unopened(const struct cr_img *img)
{
	struct cr_img *copy = xmalloc(sizeof(*copy));

	if (!copy)
		return NULL;
	*copy = *img;
	copy->path = xstrdup(img->path);
	if (copy->path)
		return copy;
	xfree(copy);
	return NULL;
}

bool bunshin_write_later(struct cr_img *img, void *object, int type)
{
	struct later *later;
	uint32_t size;

	if (!bunshin_recording() || !lazy_image(img) || !is_of_one_object(type))
		return false;
	size = cr_pb_descs[type].getpksize(object);
	later = xmalloc(sizeof(*later) + size);
	if (!later)
		return false;
	later->img = copy_unopened(img);
	if (!later->img || cr_pb_descs[type].pack(object, (void *)later->object) != size) {
		if (later->img)
			close_image(later->img);
		xfree(later);
		return false;
	}
	later->size = size;
	later->next = NULL;
	*last = later;
	last = &later->next;
	return true;
}

int bunshin_write_now(void)
{
	struct later *later;
	int ret = 0;

	while ((later = first)) {
		first = later->next;
		if (!ret && (open_image_lazy(later->img) || write_img(later->img, &later->size) ||
			     write_img_buf(later->img, later->object, later->size)))
			ret = -1;
		close_image(later->img);
		xfree(later);
	}
	last = &first;
	return ret;
}
