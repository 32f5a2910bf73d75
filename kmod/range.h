/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BSH_RANGE_H
#define BSH_RANGE_H

struct bunshin_cow_range;

/* Carries out BUNSHIN_COW_RANGE; on a refusal fills range->refusal, refused_at. */
int bsh_range_share(struct bunshin_cow_range *range);

#endif
