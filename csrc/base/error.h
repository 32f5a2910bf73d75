/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Fills *err and returns -code; err may be NULL. Who saw errno calls it. */
struct bsh_error;
int bsh_fail(struct bsh_error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "what: " before the message and returns rc unchanged. */
int bsh_context(struct bsh_error *err, int rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
