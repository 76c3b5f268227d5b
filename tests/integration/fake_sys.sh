#!/bin/sh
# fake_sys.sh SYSFS COMMAND...: run COMMAND with the directory SYSFS over /sys, in a mount namespace of its own.
# The caller's /sys is untouched. /dev/shm is private too: librocm_smi64 leaves locks there that others would meet.
set -eu
map=""
[ "$(id -u)" = 0 ] || map="--user --map-root-user"
# $map is two words or none on purpose.
# shellcheck disable=SC2086
exec unshare --mount --propagation private $map sh -euc '
  mount --bind "$1" /sys
  mount -t tmpfs tmpfs /dev/shm
  shift
  exec "$@"' sh "$@"
