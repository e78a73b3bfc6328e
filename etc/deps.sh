#!/bin/bash
# Installs those of the packages named as arguments that are missing. Debian with apt-get; never asks anything.
set -euo pipefail

missing=()
for package in "$@"; do
	state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
	[ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

command="apt-get install --no-install-recommends -y ${missing[*]}"
if ! command -v apt-get >/dev/null; then
	echo "deps: these packages are missing (by their Debian names): ${missing[*]}" >&2
	exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "deps: packages are missing; as root: $command" >&2
	exit 1
fi
echo "deps: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >/dev/null || echo "deps: apt-get update failed, trying with the lists that are here" >&2
exec apt-get install -q --no-install-recommends -y -o Dpkg::Use-Pty=0 "${missing[@]}" </dev/null
