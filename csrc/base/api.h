/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* The public header carries no guard, since cffi reads it verbatim: everything in csrc includes this one instead. */
#include "include/bunshin.h"
