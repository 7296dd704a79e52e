#!/bin/sh
# Starts the Doom engine for headrace.envs.vizdoom:
# - in a temporary folder, because it makes a folder "_vizdoom" wherever it is started;
# - with a library that lets it yield its core while it waits for other players, where there is one (native/doom/yield.cpp);
# - in a session of its own, so that Ctrl-C reaches the worker, which stops cleanly, and not the engine under its feet.
cd "$HEADRACE_VIZDOOM_FOLDER" || exit 1
if [ -n "$HEADRACE_VIZDOOM_YIELD" ]; then
    export LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD:}$HEADRACE_VIZDOOM_YIELD"
fi
if command -v setsid >/dev/null; then
    exec setsid "$HEADRACE_VIZDOOM_ENGINE" "$@"
fi
exec "$HEADRACE_VIZDOOM_ENGINE" "$@"
