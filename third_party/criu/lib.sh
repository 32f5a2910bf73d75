# SPDX-License-Identifier: GPL-2.0-only
# What build.sh and zdtm.sh share: where things are, fetching and unpacking.
# shellcheck shell=bash

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${BUNSHIN_HOME:-/var/lib/bunshin}
cache=$home/cache/criu

say() { printf 'criu: %s\n' "$*"; }
die() { printf 'criu: error: %s\n' "$*" >&2; exit 1; }

upstream() { sed -n "s/^$1 //p" "$here/UPSTREAM"; }
version=$(upstream version)

# Everything that decides what the binary is.
recipe_hash() {
	(cd "$here" && sha256sum UPSTREAM build.sh lib.sh src/* hooks/*.patch ../../kmod/uapi/*) | sha256sum | cut -c1-12
}

# A digest of names and contents, the same however the archive was packed.
tree_sha256() {
	(cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) | sha256sum | cut -d' ' -f1
}

mirrors() {
	command -v apt-get >/dev/null || return 0
	apt-get indextargets --format '$(SITE)' 2>/dev/null | sort -u | grep -E '/debian/?$' | sed 's,/$,,' || true
}

addresses() {
	local url mirror
	upstream url | while read -r url; do
		case $url in
		@MIRROR@*) mirrors | while read -r mirror; do echo "$mirror${url#@MIRROR@}"; done ;;
		*) echo "$url" ;;
		esac
	done | awk '!seen[$0]++'
}

# verified ARCHIVE: does it hold what UPSTREAM says?
verified() {
	local tmp ok=1
	[ "$(sha256sum <"$1" | cut -d' ' -f1)" = "$(upstream sha256)" ] && return 0
	tmp=$(mktemp -d "$cache/verify.XXXXXX")
	if tar -xf "$1" -C "$tmp" --strip-components=1 2>/dev/null &&
		[ "$(tree_sha256 "$tmp")" = "$(upstream tree_sha256)" ]; then
		ok=0
	fi
	rm -rf "$tmp"
	return $ok
}

# Leaves the verified archive at $archive; no network is needed once it is there.
archive=$cache/criu-$version.tar
fetch() {
	local url part=$archive.part
	mkdir -p "$cache"
	if [ -f "$archive" ]; then
		verified "$archive" && return 0
		say "the cached $archive is damaged, fetching it again"
		rm -f "$archive"
	fi
	command -v curl >/dev/null || die "curl is needed to fetch CRIU: apt-get install curl"
	for url in $(addresses); do
		say "fetching $url"
		if ! curl -fsSL --retry 2 --connect-timeout 15 -o "$part" "$url"; then
			say "  not reachable, trying the next address"
			continue
		fi
		if verified "$part"; then
			mv "$part" "$archive"
			return 0
		fi
		say "  its checksum is not the one in UPSTREAM, trying the next address"
	done
	rm -f "$part"
	die "CRIU $version could not be fetched from any address in $here/UPSTREAM.
criu: Put the tarball of version $version at $archive and run this again."
}

# unpack DIR: the patched source tree with our files in place.
unpack() {
	local patch file
	rm -rf "$1" && mkdir -p "$1"
	tar -xf "$archive" -C "$1" --strip-components=1 --no-same-owner
	for patch in "$here"/hooks/*.patch; do
		patch -s -d "$1" -p1 --no-backup-if-mismatch -F0 <"$patch" ||
			die "$(basename "$patch") does not apply to CRIU $version"
	done
	for file in "$here"/src/* "$here"/../../kmod/uapi/*; do
		case $file in
		*.h) cp "$file" "$1/criu/include/" ;;
		*) cp "$file" "$1/criu/" ;;
		esac
	done
}
