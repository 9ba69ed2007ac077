#!/usr/bin/env bash
# Install what the lab's tests need, as far as Debian has it: a browser for its page, a load generator to compare its own with, and the
# tools that build and run its targets. Without these the tests that need them are skipped and say so.
# usage: bash install_debian.sh
set -uo pipefail

packages=()
command -v chromium >/dev/null || packages+=(chromium fonts-dejavu-core)
command -v wrk >/dev/null || packages+=(wrk)
command -v strace >/dev/null || packages+=(strace)
[ -e /usr/include/openssl/ssl.h ] || packages+=(libssl-dev)
command -v openssl >/dev/null || packages+=(openssl)
command -v g++ >/dev/null || packages+=(g++)
[ -e /usr/include/asio.hpp ] || packages+=(libasio-dev)
[ -e /usr/include/liburing.h ] || packages+=(liburing-dev)
[ -e /usr/include/ev.h ] || packages+=(libev-dev)
command -v go >/dev/null || packages+=(golang-go)
command -v node >/dev/null || packages+=(nodejs)
command -v javac >/dev/null || packages+=(default-jdk-headless)
command -v mvn >/dev/null || packages+=(maven)
[ ${#packages[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0
echo "installing ${packages[*]}"
apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${packages[@]}" || echo 'cannot install them: the tests that need them are skipped' >&2
