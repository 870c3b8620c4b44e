#!/bin/sh
# The first process of the machine: it mounts what programs expect, runs one, and waits for the cut.
# POWERCUT_PYTHON, POWERCUT_JOB and POWERCUT_OUT come from the command line of the kernel.
export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/mnt/home TMPDIR=/mnt/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs none /mnt
mkdir -p /mnt/home /mnt/tmp /mnt/out /mnt/disk
mount -t hostfs none /mnt/out -o "$POWERCUT_OUT"
ip link set lo up 2> /dev/null
export PYTHONPATH="$POWERCUT_ROOT/src:$POWERCUT_ROOT"
"$POWERCUT_PYTHON" -P -m tests.powercut.guest "$POWERCUT_JOB"
code=$?
sync -f /mnt/out
echo "the program ended with code $code"
while :; do sleep 1000; done
