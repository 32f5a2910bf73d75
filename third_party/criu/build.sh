#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Builds our CRIU and installs it under $BUNSHIN_HOME/criu, away from any
# other CRIU of the machine. Does nothing when that has been done already.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
	cat <<-'TEXT'
		usage: build.sh [--force | --path | --fetch]
		  --force  build even if this version is installed
		  --path   print where the binary is or would be, and stop
		  --fetch  only fetch and verify the tarball
		BUNSHIN_HOME says where to install (default /var/lib/bunshin).
	TEXT
}

force=
case ${1:-} in
'' | --path | --fetch) ;;
--force) force=1 ;;
*) usage; exit 2 ;;
esac

prefix=$home/criu/$version-$(recipe_hash)
binary=$prefix/sbin/criu
if [ "${1:-}" = --path ]; then
	echo "$binary"
	exit
fi

point_current() {
	[ "$(readlink "$home/criu/current" 2>/dev/null)" = "${prefix##*/}" ] && return
	ln -sfn "${prefix##*/}" "$home/criu/current.$$"
	mv -T "$home/criu/current.$$" "$home/criu/current"
}

# Builds of other versions of this folder, unless something runs from them: a pool lives as long as its snapshot.
remove_unused() {
	local old running
	running=$(readlink /proc/[0-9]*/exe 2>/dev/null || true)
	for old in "$(realpath "$home")"/criu/*-????????????; do
		[ -x "$old/sbin/criu" ] && [ "${old##*/}" != "${prefix##*/}" ] || continue
		grep -qxF "$old/sbin/criu" <<<"$running" || rm -rf "$old"
	done
}

if [ -x "$binary" ] && [ -z "$force" ] && [ "${1:-}" != --fetch ]; then
	point_current
	exit 0
fi

[ "$(uname -m)" = x86_64 ] || die "only x86-64 is supported, this is $(uname -m)"
mkdir -p "$cache" "$home/criu" 2>/dev/null && [ -w "$cache" ] && [ -w "$home/criu" ] ||
	die "cannot write to $home: run this as root, or set BUNSHIN_HOME to a directory of yours"
exec 9>"$cache/lock"
if ! flock -n 9; then
	say "another build is running, waiting for it"
	flock 9
fi
fetch
[ "${1:-}" = --fetch ] && exit 0
if [ -x "$binary" ] && [ -z "$force" ]; then
	point_current
	exit 0
fi

missing=
for tool in make gcc patch pkg-config protoc protoc-c python3; do
	command -v $tool >/dev/null || missing="$missing $tool"
done
for lib in libprotobuf-c libnl-3.0 libcap uuid; do
	pkg-config --exists $lib 2>/dev/null || missing="$missing $lib"
done
[ -f /usr/include/libnet.h ] || missing="$missing libnet"
[ -z "$missing" ] || die "these are needed for the build and missing:$missing
criu: on Debian or Ubuntu: apt-get install --no-install-recommends build-essential pkg-config patch \\
criu:   libprotobuf-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler python3-protobuf \\
criu:   libnl-3-dev libnl-route-3-dev libnet1-dev libcap-dev uuid-dev"

# A tree kept between builds, so that a change of ours compiles in seconds:
# only files that differ from a fresh unpacking are touched.
tree=$cache/tree
fresh=$(mktemp -d "$cache/fresh.XXXXXX")
trap 'rm -rf "$fresh" "$cache"/stage.*' EXIT
unpack "$fresh"
refresh_tree() {
	local list=$tree/.files file
	mkdir -p "$tree"
	if [ -f "$list" ]; then
		(cd "$tree" && while IFS= read -r file; do
			[ -e "$fresh/$file" ] || [ -L "$fresh/$file" ] || rm -f "$file"
		done <"$list")
	fi
	(cd "$fresh" && find . ! -type d | LC_ALL=C sort) >"$list.new"
	while IFS= read -r file; do
		if [ -L "$fresh/$file" ]; then
			[ "$(readlink "$fresh/$file")" = "$(readlink "$tree/$file")" ] && continue
		else
			cmp -s "$fresh/$file" "$tree/$file" && continue
		fi
		mkdir -p "$tree/${file%/*}"
		cp -dT --remove-destination "$fresh/$file" "$tree/$file"
	done <"$list.new"
	mv "$list.new" "$list"
}

log=$cache/build.log
# Libraries that a pool has no use for would be mapped, copied and unmapped again in each task that is restored; and
# functions of the others are looked up once, in the pool, not in each of them.
compile() {
	LIBS=-Wl,-z,now make NO_GNUTLS=1 LIB_NFTABLES=-lnone -C "$tree" -j2 criu PREFIX="$prefix" PLUGINDIR="$prefix/lib/criu" RUNDIR=/run/bunshin >"$log" 2>&1 </dev/null
}

say "building CRIU $version into $prefix (about 40 s the first time; log: $log)"
[ -z "$force" ] || rm -rf "$tree"
refresh_tree
if ! compile; then
	say "building again from a clean tree"
	rm -rf "$tree"
	refresh_tree
	if ! compile; then
		tail -n 30 "$log" >&2
		die "the build failed; the whole log is $log"
	fi
fi

stage=$(mktemp -d "$cache/stage.XXXXXX")
mkdir -p "$stage/sbin"
install -m 755 "$tree/criu/criu" "$stage/sbin/criu"
cp "$tree/COPYING" "$stage/COPYING"
"$stage/sbin/criu" --version >"$stage/VERSION"
chmod 755 "$stage"
rm -rf "$prefix"
mv -T "$stage" "$prefix"
point_current
remove_unused
say "installed $binary"
