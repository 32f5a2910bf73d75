#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Unpacks CRIU's test suite, unless that has been done, and prints where it is. Nothing is compiled.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

tree=$cache/zdtm-programs
mkdir -p "$cache"
exec 9>"$cache/zdtm-programs.lock"
flock 9
if [ "$(cat "$tree/.unpacked" 2>/dev/null)" != "$version" ]; then
	fetch >&2
	unpack "$tree.new"
	rm -rf "$tree"
	mv "$tree.new" "$tree"
	echo "$version" >"$tree/.unpacked"
fi
echo "$tree/test/zdtm"
