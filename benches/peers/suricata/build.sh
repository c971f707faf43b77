#!/bin/sh
# Builds Suricata into a folder: build.sh FOLDER [SOURCE]. SOURCE is a release tarball, a checkout, or nothing: then the
# release is downloaded from the project's address. Takes about 15 minutes on two cores. Nothing in taut needs it: what
# Suricata says of the corpus is recorded in tests/data/suricata.
set -eu

VERSION=8.0.6
NEEDS="autoconf automake libtool make gcc pkg-config cbindgen libpcre2-dev libyaml-dev libjansson-dev libpcap-dev libmagic-dev libnet1-dev zlib1g-dev"

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
	echo "usage: build.sh FOLDER [TARBALL or CHECKOUT]" >&2
	exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
source=${2:-}

for program in cargo cbindgen pkg-config autoconf make cc; do
	command -v $program >/dev/null || { echo "build.sh: needs $program: apt-get install $NEEDS, and Rust" >&2; exit 3; }
done
for library in libpcre2-8 yaml-0.1 jansson libpcap zlib; do
	pkg-config --exists $library || { echo "build.sh: needs $library: apt-get install $NEEDS" >&2; exit 3; }
done
# Without it there are no rules that reject.
[ -e /usr/include/libnet.h ] || { echo "build.sh: needs libnet: apt-get install $NEEDS" >&2; exit 3; }

rm -rf "$folder/source"
mkdir "$folder/source"
if [ -z "$source" ]; then
	source=$folder/suricata-$VERSION.tar.gz
	curl --fail --location --silent --show-error --output "$source" \
		"https://www.openinfosecfoundation.org/download/suricata-$VERSION.tar.gz"
fi
if [ -d "$source" ]; then
	if git -C "$source" rev-parse --git-dir >/dev/null 2>&1; then
		git -C "$source" archive HEAD | tar -x -C "$folder/source"
	else
		cp -a "$source/." "$folder/source"
	fi
else
	tar -xf "$source" -C "$folder/source" --strip-components=1
fi

cd "$folder/source"
# A checkout comes without what autoconf makes.
[ -x configure ] || ./autogen.sh
./configure --prefix="$folder/root" --sysconfdir="$folder/root/etc" --localstatedir="$folder/root/var" --disable-gccmarch-native
unset CARGO_TARGET_DIR
make -j"${JOBS:-2}"
make install
"$folder/root/bin/suricata" -V
