#!/bin/sh
# Starts the Doom engine for headrace.envs.vizdoom, and waits until it ends:
# - in a temporary folder, because it makes a folder "_vizdoom" wherever it is started;
# - with a library that makes it cheaper, where there is one (native/doom/preload.cpp);
# - in a session of its own, so that Ctrl-C reaches the worker, which stops cleanly, and not the engine under its feet;
# - with its messages ("Waiting for players") in a file that HEADRACE_VIZDOOM_LOG names, or nowhere: an error of an engine reaches
#   the library without them, and on the terminal those of all players write over each other and the dashboard.
exec >>"${HEADRACE_VIZDOOM_LOG:-/dev/null}" 2>&1
cd "$HEADRACE_VIZDOOM_FOLDER" || exit 1
previous=
for argument; do
    case $previous in
        +viz_instance_id) instance=$argument ;;
        -config) config=$argument ;;
    esac
    previous=$argument
done
# the files of the engine's shared memory, for who cleans up behind it (game.py, processes/leftovers.py)
for kind in SM MQCtr MQDoom; do echo "/dev/shm/ViZDoom$kind$instance"; done >>shared-memory
if [ -e preload.so ]; then # a link, by a relative path: the list is divided at spaces and colons, which the library's own may have
    export LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD:}./preload.so"
fi
trap '' INT HUP
if command -v setsid >/dev/null; then
    setsid "$HEADRACE_VIZDOOM_ENGINE" "$@"
else
    "$HEADRACE_VIZDOOM_ENGINE" "$@"
fi
code=$?
# Where an engine ends before its first state, the vizdoom library (1.2.4 to 1.3.2) reads memory that it has not mapped yet, and its
# process with it ends by SIGSEGV. It must not learn of this end, so this script goes on, until game.py's watcher ends it.
if [ -e "$config.starting" ] && { [ $code -gt 128 ] || ! [ -e "/dev/shm/ViZDoomSM$instance" ]; }; then
    mkfifo "$config.ended" && read -r _ <"$config.ended"
fi
