#!/bin/sh
# Installs the optional system packages of cpplm on Debian and Ubuntu; does nothing where they are already there.
#   bubblewrap                 a second kind of sandbox for generated programs (cpplm also works without it)
#   libboost-dev, libssl-dev   headers that three of the HumanEval problems include
#   chromium                   tests of the pages in a real browser
#   mold                       a fast linker: problems are judged sooner
set -eu

wanted=
command -v bwrap >/dev/null 2>&1 || wanted="$wanted bubblewrap"
test -e /usr/include/boost/any.hpp || wanted="$wanted libboost-dev"
test -e /usr/include/openssl/md5.h || wanted="$wanted libssl-dev"
command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || wanted="$wanted chromium"
command -v ld.mold >/dev/null 2>&1 || wanted="$wanted mold"
if [ -z "$wanted" ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "install-apt.sh: no apt-get here; install with this system's package manager:$wanted" >&2
    exit 2
fi
as_root=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "install-apt.sh: run this as root: apt-get install$wanted" >&2
        exit 2
    fi
    as_root=sudo
fi
$as_root apt-get update -q
for package in $wanted; do
    case "$package" in
    mold | chromium)
        apt-cache show "$package" >/dev/null 2>&1 || continue # not every release has it
        ;;
    esac
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$package"
done
