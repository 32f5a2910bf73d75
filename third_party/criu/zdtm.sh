#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# CRIU's own test suite (ZDTM, from the same tarball) against our build: what does not
# pass must be in zdtm.expected, and what is there must not pass. Takes some ten minutes the
# first time (its tests are compiled), then five.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() { echo "usage: zdtm.sh [TEST ...]   (as static/pipe00; default: all)"; exit 2; }
case ${1:-} in -*) usage ;; esac

[ "$(id -u)" = 0 ] || die "the test suite needs root"
# Its scripts want the distribution's Python, with the modules that come as packages.
export PATH=/usr/bin:/usr/sbin:/bin:/sbin
missing=
for module in yaml google.protobuf; do
	/usr/bin/python3 -c "import $module" 2>/dev/null || missing="$missing $module"
done
[ -f /usr/include/libaio.h ] || missing="$missing libaio.h"
[ -z "$missing" ] || die "needed for the test suite and missing:$missing
criu: on Debian or Ubuntu: apt-get install --no-install-recommends python3-yaml python3-protobuf libaio-dev"

"$here/build.sh"
binary=$home/criu/$version-$(recipe_hash)/sbin/criu
tree=$cache/zdtm
exec 9>"$cache/zdtm.lock"
flock -n 9 || die "the test suite is running already"
# The tests are the tarball's: no change of ours makes others of them.
if [ "$(cat "$tree/.built" 2>/dev/null)" != "$version" ]; then
	say "compiling the test suite in $tree"
	unpack "$tree.new"
	rm -rf "$tree"
	mv "$tree.new" "$tree"
	log=$cache/zdtm-build.log
	make -C "$tree" -j2 criu lib >"$log" 2>&1 </dev/null || { tail -n 20 "$log" >&2; die "the build failed; see $log"; }
	make -C "$tree/test/zdtm" -j2 >>"$log" 2>&1 </dev/null || { tail -n 20 "$log" >&2; die "the tests' build failed; see $log"; }
	echo "$version" >"$tree/.built"
fi

out=$cache/zdtm.log report=$cache/zdtm-report
rm -rf "$report"
mkdir -p "$report"
names=()
for name in "$@"; do names+=(-t "zdtm/${name#zdtm/}"); done
[ $# -gt 0 ] || names=(-a)
say "running; log: $out"
cd "$tree/test"
# zdtm.py's own verdict counts what does not start here too: the list decides.
nice /usr/bin/python3 zdtm.py run "${names[@]}" -f ns -k always --keep-going --ignore-taint --parallel 2 \
	--criu-bin "$binary" --report "$report" >"$out" 2>&1 </dev/null || true

"$here/zdtm-verdict" "$report"/*.tap "$here/zdtm.expected" ${1:+--some}
