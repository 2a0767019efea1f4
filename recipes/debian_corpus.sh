#!/bin/sh
# Real C and C++ projects from the source packages of this machine's Debian or Ubuntu release.
#
#   recipes/debian_corpus.sh dev FOLDER       the projects that cpplm was developed on  -> FOLDER/dev
#   recipes/debian_corpus.sh blind FOLDER     projects that it is only measured on      -> FOLDER/blind
#   recipes/debian_corpus.sh blind2 FOLDER    and two more such sets, each looked at once, -> FOLDER/blind2
#   recipes/debian_corpus.sh blind3 FOLDER    when the work is done                     -> FOLDER/blind3
#   recipes/debian_corpus.sh blind4 FOLDER    (also blind5 to blind41; wide and wide2: many small
#                                             projects; known: looked at all along)
#   recipes/debian_corpus.sh scale FOLDER     500 MB in 34,000 files                    -> FOLDER/scale
#   recipes/debian_corpus.sh headers FOLDER   third-party headers, also those that the projects fetched so far
#                                             are built with                            -> FOLDER/headers; prints
#                                             the folders for `corpus check --headers`
#   recipes/debian_corpus.sh large FOLDER     60 MB and more, permissive licenses       -> FOLDER/large, and
#                                             a corpus built from them                  -> FOLDER/corpus
#   recipes/debian_corpus.sh tokenizer FOLDER  projects to train, choose and measure tokenizers on, 3 GB unpacked
#                                             -> FOLDER/tok-train, tok-dev, tok-blind, and the tokenizers that come
#                                             with cpplm   -> FOLDER/cpp-32k.json, ...
#   recipes/debian_corpus.sh measure FOLDER   build and check dev and the blind sets, with headers; SETS="blind2" one
#
# Needs no root: package lists and downloads stay in FOLDER/apt. A package that is there already is not fetched
# again, so an interrupted run is simply started again. FOLDER/versions.txt names what was fetched. Options for
# `cpplm corpus build` go into BUILD, such as BUILD="--tokenizer FILE --max_tokens 16384"; cpplm itself is
# CPPLM (from the path, else from .venv here).
set -eu

DEV="fmtlib leveldb re2 snappy libjsoncpp spdlog tinyxml2 abseil box2d catch2 cpp-httplib double-conversion
libyaml lz4"
BLIND="bzip2 cmark glm libsndfile mbedtls rtmidi simdjson soundtouch taglib"
# C with autotools, C++ applications, games, windows and graphics, templates in headers, databases, network, audio.
BLIND2="btop flac gnuchess ledger libpqxx libsfml lighttpd mdds wavpack zeromq3"
BLIND3="chocolate-doom glfw3 hunspell libevent lmdb mosquitto opus pybind11 task tmux"
# Measured once, on 2026-11-25.
BLIND4="chrony clipper galculator glpk jsonnet lame libzip qbittorrent speex"
BLIND5="angelscript dash flex libconfig libcork libqalculate mpg123 nano socat"
# Measured once, later that day, with what those had taught.
BLIND6="cppunit freeglut jansson libgd2 msgpack-c opusfile protobuf-c qpdf yaml-cpp"
BLIND7="bc c-ares dosfstools gengetopt hiredis libexif libmodplug libopenmpt lzip"
# Measured once, on 2026-11-26.
BLIND8="htop libdvdread libebml libmaxminddb libmicrohttpd libogg libsamplerate openjpeg2 uchardet"
BLIND9="gperf libmng libmspack libtasn1-6 libtorrent nasm wabt xxhash zopfli"
BLIND10="kissfft libidn2 libpcap libtheora libvorbis lua5.4 minizip mpfr4 tinyxml zimg"
BLIND11="bsdiff cmark discount figlet libdc1394 libdeflate libfann libjpeg-turbo libmypaint sassc taglib tinyobjloader"
BLIND12="fribidi gsl libgsm libsndfile libspng openh264 portaudio19 proj sqlite3 tinyexr utf8proc zint"
BLIND13="duktape libcue libheif libpsl librdkafka libtommath libusb-1.0 libvpx libyang2 mujs tre wolfssl"
BLIND14="cjson hidapi libarchive libffi libieee1284 libplist libsolv libspiro libvncserver mxml twolame wcslib"
BLIND15="advancecomp cdparanoia gifsicle jpegoptim libnice librevenge libtomcrypt libxmp mksh pv zsh"
BLIND16="bison cpio diffutils file fluxbox gawk gnuplot patch screen tree"
# Measured once, on 2026-11-27: twelve each of a list of 133, in an order drawn by chance.
BLIND17="exempi fasttree fftw3 grep iproute2 leptonlib libbsd libunistring nettle sane-backends stunnel4 wget"
BLIND18="bedtools ethtool giflib libedit libnl3 libonig libunwind procps samtools smartmontools unbound xz-utils"
BLIND19="angband assimp coreutils curl htslib http-parser m4 mafft make-dfsg sed tcl8.6 weechat"
# The last of that list.
BLIND20="attr libassuan libcap-ng libsoxr libwebsockets memcached ncurses nlopt p7zip psmisc readline redis"
BLIND21="e2fsprogs elfutils findutils gmp gzip hmmer libb2 libwps minimap2 nss strace tar"
# Measured once, later that day: of the source packages of Debian 12 that debtags calls implemented in C or C++,
# with 0.1 to 6 MB of archive, those in an order drawn by chance that the mirror had and that have 0.1 MB of code.
BLIND22="bogofilter cproto cvs ddpt epr-api libmaxmind-db-writer-perl man-db nautilus patchutils psignifit raptor2 sparse"
BLIND23="codonw colmap id-utils idzebra libapache2-mod-auth-mellon nfs-utils pacemaker pgbouncer postfix safecopy sord
x264"
BLIND24="acl arj bibtool fastlink makebootfat mathomatic mimalloc sdparm snowball syslinux texinfo units"
# The next of that order, with 60 kB to 3 MB of code: 71 and 146.
WIDE="alsa-utils anthy apparix apr-util avce00 bar bcftools biosquid bitlbee bmake clamsmtp daligner dhcpcd5 fatsort
fort-validator fping gbsplay geoip gjs gtkam htsengine indent iptables jellyfish jgraph jhead judy kmod
libart-lgpl libbit-vector-perl libcairo-perl libcap2 libesmtp libgc libio-aio-perl libisoburn
libmath-clipper-perl libmd libmoose-perl libnet-ssleay-perl libnetaddr-ip-perl libntlm libraw1394
libsereal-decoder-perl libytnef lzma mcpp nagios-nrpe nagios-plugins-contrib nifticlib ossp-uuid pax pcsc-lite
potrace ppp sma sword sxid teg telepathy-idle ucl udisks2 uni2ascii unrtf vpnc wayland x11-xserver-utils xa xdm
xfpt yagiuda"
WIDE2="9base a52dec acme apfsprogs as31 avahi bcpp bibclean binkd bison++ black-box boolector buddy can-utils casync
cflow chktex chmlib chordii cscope cunit cups-filters cxref dialign dialign-t digitemp docbook-to-man dracut
duma ebook-speaker ebtables fig2dev fontconfig freexl fuse gnome-photos gnome-settings-daemon goobox gpp
gtkatlantic hashcash hdparm hello hexchat hnb icecast2 ices2 ifmail ikarus ipset iroffer isync iw jemalloc
jpegpixi kbd kexec-tools keyutils le-dico-de-rene-cougnenc libbackuppc-xs-perl libcaca libcoro-perl libcsv
libdbi-perl libdca libembperl-perl libexttextcat libgpod libhtml-parser-perl libhtml-template-pro-perl
liblist-moreutils-xs-perl libmath-int64-perl libmaxmind-db-reader-xs-perl libmtp libobject-pad-perl
libscalar-list-utils-perl libsereal-encoder-perl libshout libtemplate-perl libtime-moment-perl libtool
libtype-tiny-xs-perl libvoikko libxcb libxml-libxml-perl libxs-object-magic-perl linphone-desktop lksctp-tools
logtool loki lsof lua5.1 lutefisk lzop mailfilter man2html mdadm miniupnpc mlmmj multipath-tools ndisc6
network-manager-pptp original-awk pam paperkey pev pgn-extract policykit-1 polyglot popt procmail proxychains
publib quvi rbldnsd ries rp-pppoe rpki-client rpm rrdtool rtl-433 rtmpdump shadow skalibs smartlist swapspace
tracker tstools uisp unadf usbutils userinfo uucp vilistextum vis vttest wide-dhcpv6 wireless-tools x11-utils
xdelta3 xserver-xorg-input-mouse yasr zinnia zpaq zsync zzuf"
# The first twelve of that order with 3 to 9 MB of code.
BLIND25="amule dwarfutils glew gnome-control-center gpsd ibm-3270 libnova lvm2 nspr pulseaudio puredata squizz"
# Measured once, later that day: the next of that order with 3 to 17 MB of code.
BLIND26="bluez busybox epiphany-browser mpv net-snmp netpbm-free pari rxvt-unicode tiff wpa x11-apps xrdp"
BLIND27="apr btrfs-progs exim4 freetype ibus openldap qtcurve syslog-ng thunar unixodbc weston yaz"
BLIND28="adolc dbus freeradius halibut ipmitool libminc libzstd ofono openssh pcre3 sgt-puzzles splint"
BLIND29="syncevolution libewf tcpdump fldigi fish mapserver opensc libxslt gsoap xmlsec1 teem sg3-utils"
# Measured once, on 2026-11-28: C programs of file systems and networks, C++ libraries and solvers.
BLIND30="bird2 f2fs-tools hfsutils hwloc mtools openvpn squashfs-tools xfsprogs"
BLIND31="clasp geographiclib libabw libcds libkml libmediainfo libmwaw libodfgen libvisio minisat2 xapian-core"
# Measured once, later that day: drawn by chance of the source packages of Debian 12 with C or C++ that the mirror
# had, 23 each with 0.06 to 2.5 MB of archive, then 30, 30, 30 and 10 with 0.15 to 3.5 MB.
BLIND32="belr coinor-cbc cpptest cricket cron direvent downtimed enca foremost glaurung healpix-cxx hyperscan
jose libdivsufsort libdvbcsa librcd libwebm proxsmtp qcustomplot safelease sim4 tree-sitter zydis"
BLIND33="amap-align calc f2c fastml grantlee5 hspell igraph iipimage kakasi liblemon libotf libsecp256k1 libzdb
mmdb mpclib3 netpipes opensmtpd php-msgpack rubiks sharutils slirp ukui-bluetooth wxsqlite3"
BLIND34="adplug aribas armadillo astroidmail bsdmainutils cadical ck cpl-plugin-hawki dasm djvulibre ffcall fyba
gf-complete ginac icom ivykis libavc1394 libiberty libisofs libsmi libxcrypt libxkbcommon love mdf2iso openslide
psi-plugins retry tgt tripwire xsd"
BLIND35="clearcut clucene-core coinor-osi dictconv dnsdist fastcdr flxmlrpc galera-3 google-perftools imgui
kconfig latex2rtf libmspub libqglviewer muscle3 mustang openfst pktools qtwayland-opensource-src rasqal redland
route-rnd scrm sqlitecpp ssed vdr vo-amrwbenc xdg-desktop-portal xerces-c zthreads"
BLIND36="astronomical-almanac autoclass clhep connman cpprest drc ell exonerate farmhash gstreamer-vaapi
igmpproxy jdupes kdb libepubgen libmikmod luabind lucy lzo2 mdocml mhash missfits mlv-smile newmat
noweb openpace pdns pimd sombok squid vkbasalt"
BLIND37="burp clustalw fbb flatpak-builder libemf2svg libev libfyaml libgpiod snap wyhash"
BLIND38="avro-c drumgizmo freediameter freeipmi gavl genometester highway inform6-compiler jikespg kraken2
libbpp-seq libcdr libdrm libhx libuninameslist lookup lwip meshoptimizer metamath mruby orthanc paho.mqtt.cpp
pciutils phalanx qtsvg-opensource-src rdesktop roguenarok sofia-sip xl2tpd"
BLIND39="crashmail dynarmic freerdp2 hexec ircmarkers libsdl1.2 mdk3 newlisp qt6-shadertools rlottie"
# Measured once, on 2026-11-29, drawn as those before: of 4,698 with 0.15 to 3.5 MB of archive the first
# 83 that the mirror had and that have 60 kB to 12 MB of code.
BLIND40="apophenia bart bzrtp clfft di dmalloc dnscap friso gf2x hashrat itcl4 libantlr3c libofa libscca libuser
libusrsctp ostree qqwing sendmail snapraid sprng"
BLIND41="apriltag boxes coinor-cgl dos2unix dwz exuberant-ctags faiss fbreader fparserc++ ftnchek galera-4 i2pd
idba libcreg libetonyek libev-perl libfreehand libfsntfs libnetconf2 libqcow libquazip libqxp libsidplay
libsoup2.4 libuemf liburcu libvmdk liquid-dsp magicrescue msitools muscle nacl nix nixnote2 nulib2 ode osmo-bsc
pacman-package-manager pango1.0 php-redis pigpio pptpd pth qstat qt6-positioning recode serf sidplay spirv-cross
sqliteodbc ssm stm32flash tbox threadweaver timew tinymux tinyssh vulkan-tools wcalc xdg-desktop-portal-gtk
yosys zh-autoconvert"
# Large C and C++ projects, to measure time and memory.
SCALE="ffmpeg gdb git mesa qemu samba vim"
# The failures of these were looked at, beside those of blind3.
KNOWN="cli11 cppcheck gdbm kyotocabinet lcms2 libmodbus mawk nghttp2 pugixml qhull rtorrent tcc tidy-html5 xterm"
# What such projects commonly include, chosen without looking at them; nothing of the blind projects themselves.
HEADERS="libgtest-dev libgmock-dev libbenchmark-dev catch2 doctest-dev libfmt-dev
libboost1.74-dev libasio-dev libeigen3-dev libtbb-dev rapidjson-dev nlohmann-json3-dev libutfcpp-dev libcjson-dev
zlib1g-dev libzstd-dev liblzma-dev libssl-dev libsodium-dev libgmp-dev libmpfr-dev
libexpat1-dev libxml2-dev libicu-dev libpcre2-dev libpcre3-dev libsqlite3-dev libpq-dev liblua5.4-dev libpython3.11-dev
libcurl4-openssl-dev libuv1-dev libwebsockets-dev libglib2.0-dev libdbus-1-dev libsystemd-dev libudev-dev uuid-dev
libncurses-dev libreadline-dev libedit-dev
libx11-dev x11proto-dev libxext-dev libxft-dev libxrender-dev libxrandr-dev libxcursor-dev libxinerama-dev libxfixes-dev
libgl-dev libegl-dev libglu1-mesa-dev libglew-dev libsdl1.2-dev libsdl2-dev libsdl2-image-dev libsdl2-mixer-dev
libsdl2-ttf-dev libpng-dev libjpeg62-turbo-dev libfreetype-dev libfontconfig-dev libcairo2-dev
libopenal-dev libalut-dev libasound2-dev libpulse-dev libjack-jackd2-dev libogg-dev libvorbis-dev
libice-dev libsm-dev libxt-dev libxi-dev libxmu-dev libxpm-dev libxaw7-dev libxkbcommon-dev libtiff-dev libevent-dev
libgtk-3-dev libpango1.0-dev libgdk-pixbuf-2.0-dev libatk1.0-dev libharfbuzz-dev qtbase5-dev"
# The folders of them that pkg-config would name.
HEADER_FOLDERS="include include/*-linux-gnu include/AL include/SDL2 include/cairo include/dbus-1.0 include/eigen3 include/freetype2
include/glib-2.0 include/libxml2 include/lua5.4 include/postgresql include/utf8cpp lib/*-linux-gnu/*-[0-9].*/include
include/python3.11
include/gtk-3.0 include/pango-1.0 include/gdk-pixbuf-2.0 include/atk-1.0 include/harfbuzz include/*-linux-gnu/qt5
include/*-linux-gnu/qt5/QtCore include/*-linux-gnu/qt5/QtGui include/*-linux-gnu/qt5/QtWidgets
include/*-linux-gnu/qt5/QtNetwork include/*-linux-gnu/qt5/QtTest include/*-linux-gnu/qt5/QtXml"
# BSD, MIT, Apache-2.0, BSL, zlib. None of the blind ones.
LARGE="fmtlib leveldb re2 snappy libjsoncpp spdlog tinyxml2 protobuf grpc abseil rocksdb flatbuffers capnproto bullet
onetbb openexr imath catch2 double-conversion google-glog gflags benchmark rapidjson box2d"
# The tokenizer's: no project of one list is in another.
TOK_TRAIN="abseil benchmark box2d bullet cpp-httplib flatbuffers gflags google-glog grpc imath onetbb openexr protobuf
rapidjson libjsoncpp boost1.74 ceres-solver cmake eigen3 ogre-1.12 opencv qtbase-opensource-src
thrift vtk9 z3 googletest llvm-toolchain-14"
TOK_DEV="catch2 fmtlib glm keepassxc leveldb libphonenumber libtorrent-rasterbar ninja-build nlohmann-json3 openscad
poco re2 rocksdb spdlog tinyxml2 yaml-cpp"
TOK_BLIND="aria2 capnproto double-conversion exiv2 mosh snappy taglib"

fail() {
    echo "debian_corpus.sh: $1" >&2
    exit 2
}

usage="usage: recipes/debian_corpus.sh dev|blind|blind2|...|blind41|wide|wide2|known|scale|headers|large|tokenizer|measure FOLDER"
[ $# -eq 2 ] || fail "$usage"
command -v apt-get >/dev/null || fail "there is no apt-get: this recipe needs Debian or Ubuntu"
command -v dpkg-source >/dev/null || fail "there is no dpkg-source. Install it: sudo apt-get install dpkg-dev"
here=$(cd "$(dirname "$0")/.." && pwd)
CPPLM=${CPPLM:-$(command -v cpplm || echo "$here/.venv/bin/cpplm")}
mkdir -p "$2"
folder=$(cd "$2" && pwd)
apt=$folder/apt
# What an interrupted run left half unpacked.
rm -rf "$folder/unpacking"

private_apt() { # apt-get or apt-cache, with lists and downloads in our folder
    program=$1
    shift
    "$program" -qq -o "Dir::State=$apt" -o "Dir::State::status=/var/lib/dpkg/status" -o "Dir::Cache=$apt/cache" \
        -o "APT::Sandbox::User=$(id -un)" "$@"
}

our_apt() { # the same, with our list of sources
    program=$1
    shift
    private_apt "$program" -o "Dir::Etc::sourcelist=$apt/sources.list" -o "Dir::Etc::sourceparts=/dev/null" "$@"
}

prepare() { # the distribution's own archives as sources of packages and of source packages
    [ -e "$apt/ready" ] && return
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    echo "reading the package lists" >&2
    private_apt apt-get update
    private_apt apt-get indextargets --format '$(ORIGIN) $(REPO_URI) $(RELEASE) $(COMPONENT)' \
        'Created-By: Packages' | sort -u | while read -r origin uri release component; do
        case $origin in
        Debian | Ubuntu) printf 'deb %s %s %s\ndeb-src %s %s %s\n' \
            "$uri" "$release" "$component" "$uri" "$release" "$component" ;;
        esac
    done >"$apt/sources.list"
    [ -s "$apt/sources.list" ] || fail "apt knows no archive of Debian or Ubuntu on this machine"
    our_apt apt-get update
    touch "$apt/ready"
}

sources() { # SET PACKAGE...: unpack source packages as FOLDER/SET/PACKAGE
    set_name=$1
    shift
    for package in "$@"; do
        target=$folder/$set_name/$package
        [ -d "$target" ] && continue
        prepare
        echo "$set_name: $package" >&2
        mkdir -p "$folder/unpacking" "$folder/$set_name"
        (cd "$folder/unpacking" && our_apt apt-get source --download-only --only-source "$package") ||
            fail "cannot fetch the source package $package; run it again, or take it out of the list"
        dpkg-source --no-check -x "$folder"/unpacking/*.dsc "$folder/unpacking/tree" >/dev/null
        echo "$set_name $package $(sed -n 's/^Version: //p' "$folder"/unpacking/*.dsc | head -n 1)" \
            >>"$folder/versions.txt"
        mv "$folder/unpacking/tree" "$target"
        rm -rf "$folder/unpacking"
    done
}

depends() { # the -dev packages that the projects of all sets are built with, and what those need, but their own
    awk '/^Package:/ { print $2 }' "$folder"/*/*/debian/control | sort -u >"$folder/own.txt"
    # shellcheck disable=SC2046  # several packages
    our_apt apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
        --no-enhances $(awk '/^Build-Depends/ { on = 1; $1 = "" } /^[A-Z]/ { on = 0 } on' "$folder"/*/*/debian/control |
        tr -s ' ,|()\t' '\n' | grep -E '^[a-z0-9][a-z0-9.+-]*-(dev|headers)$' | sort -u | grep -vxFf "$folder/own.txt") |
        grep -E '^[a-z0-9][a-z0-9.+-]*-(dev|headers)$' | sort -u | grep -vxFf "$folder/own.txt"
}

headers() { # unpack, not install, binary packages; print their folders
    prepare
    for package in $HEADERS $(depends); do
        [ -e "$folder/headers/.$package" ] && continue
        echo "headers: $package" >&2
        mkdir -p "$folder/unpacking" "$folder/headers"
        if ! (cd "$folder/unpacking" && our_apt apt-get download "$package"); then
            echo "debian_corpus.sh: there is no package $package: its headers will be missing" >&2
            touch "$folder/headers/.$package"
            continue
        fi
        dpkg -x "$folder"/unpacking/*.deb "$folder/headers"
        echo "headers $package $(dpkg-deb -f "$folder"/unpacking/*.deb Version)" >>"$folder/versions.txt"
        touch "$folder/headers/.$package"
        rm -rf "$folder/unpacking"
    done
    for path in $HEADER_FOLDERS; do
        ls -d "$folder"/headers/usr/$path 2>/dev/null || true
    done
    cat "$folder"/headers/usr/*/pkgconfig/*.pc "$folder"/headers/usr/lib/*/pkgconfig/*.pc 2>/dev/null |
        sed -n -e 's/^Cflags.*-I\${includedir}\/\([A-Za-z0-9._+/-]*\).*/\1/p' \
            -e 's/^includedir=.*\/include\/\([A-Za-z0-9._+/-]*\)$/\1/p' | sort -u | while read -r path; do
        ls -d "$folder/headers/usr/include/$path" "$folder"/headers/usr/include/*-linux-gnu/"$path" 2>/dev/null || true
    done
}

build() { # SET OUT [OPTION...]
    set_name=$1 out=$2
    shift 2
    # shellcheck disable=SC2086  # BUILD is a list of options
    "$CPPLM" corpus build --projects_dir "$folder/$set_name" --out "$out" "$@" ${BUILD:-}
}

case $1 in
dev | blind | blind[2-9] | blind1[0-9] | blind2[0-9] | blind3[0-9] | blind4[01] | wide | wide2 | known | scale)
    eval "packages=\$$(echo "$1" | tr '[:lower:]' '[:upper:]')"
    # shellcheck disable=SC2086,SC2154  # a list of names
    sources "$1" $packages
    ;;
headers) headers ;;
large)
    # shellcheck disable=SC2086
    sources large $LARGE
    build large "$folder/corpus" --licenses permissive
    ;;
tokenizer)
    # shellcheck disable=SC2086
    sources tok-blind $TOK_BLIND
    # shellcheck disable=SC2086
    sources tok-dev $TOK_DEV
    # shellcheck disable=SC2086
    sources tok-train $TOK_TRAIN
    for size in 32 65; do
        for pieces in lines dense; do
            name=cpp-${size}k
            [ "$pieces" = lines ] || name=$name-$pieces
            "$CPPLM" tokenizer train --projects_dir "$folder/tok-train" --pretokenizer "$pieces" \
                --vocab_size "$((size == 32 ? 32768 : 65536))" --out "$folder/$name.json"
        done
    done
    ;;
measure)
    for set_name in ${SETS:-dev blind blind2 blind3 blind4 blind5 blind6 blind7 blind8 blind9 blind10 blind11 blind12 blind13 blind14 blind15 blind16 blind17 blind18 blind19 blind20 blind21 blind22 blind23 blind24 blind25 blind26 blind27 blind28 blind29 blind30 blind31 blind32 blind33 blind34 blind35 blind36 blind37 blind38 blind39 blind40 blind41 wide wide2}; do
        sh "$0" "$set_name" "$folder"
        build "$set_name" "$folder/corpus-$set_name" --mode compilable
        # shellcheck disable=SC2046  # several folders
        "$CPPLM" corpus check "$folder/corpus-$set_name" --sample 200 --seed 1 --headers $(headers) --json |
            tee "$folder/check-$set_name.txt"
    done
    ;;
*) fail "$usage" ;;
esac
