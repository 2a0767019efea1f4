#!/bin/sh
# Installs the optional system packages of cpplm on Debian and Ubuntu; does nothing where they are already there.
#   bubblewrap  a second kind of sandbox for generated programs (cpplm also works without it)
set -eu

if command -v bwrap >/dev/null 2>&1; then
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "install-apt.sh: no apt-get here; install bubblewrap with this system's package manager" >&2
    exit 2
fi
as_root=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "install-apt.sh: run this as root: apt-get install bubblewrap" >&2
        exit 2
    fi
    as_root=sudo
fi
$as_root apt-get update -q
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends bubblewrap
