#!/bin/sh
# fake_habanalabs.sh FOLDER COMMAND...: run COMMAND with FOLDER as /usr/lib/habanalabs, where habana-pyhlml looks for its
# library and nowhere else; in a mount namespace of its own, so that the caller's /usr/lib stays as it is.
set -eu
map=""
[ "$(id -u)" = 0 ] || map="--user --map-root-user"
# $map is two words or none on purpose.
# shellcheck disable=SC2086
exec unshare --mount --propagation private $map sh -euc '
  scratch=$(dirname "$1")/overlay
  mkdir -p "$scratch"
  mount -t tmpfs tmpfs "$scratch"
  mkdir -p "$scratch/upper/habanalabs" "$scratch/work"
  cp "$1"/* "$scratch/upper/habanalabs/"
  mount -t overlay overlay -o "lowerdir=/usr/lib,upperdir=$scratch/upper,workdir=$scratch/work" /usr/lib
  shift
  exec "$@"' sh "$@"
