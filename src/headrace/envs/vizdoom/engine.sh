#!/bin/sh
# Starts the Doom engine for headrace.envs.vizdoom:
# - in a temporary folder, because it makes a folder "_vizdoom" wherever it is started;
# - in a session of its own, so that Ctrl-C reaches the worker, which stops cleanly, and not the engine under its feet;
# - for a match, as often as it takes: an engine that ends before its match has begun is started again on the next port, behind the
#   back of the vizdoom library, whose process crashes when an engine ends while it waits for it to start.
if [ -z "$HEADRACE_VIZDOOM_SESSION" ] && command -v setsid >/dev/null; then
    export HEADRACE_VIZDOOM_SESSION=1
    exec setsid sh "$0" "$@"
fi
cd "$HEADRACE_VIZDOOM_FOLDER" || exit 1
for argument; do
    [ "$before" = -config ] && settings=$argument
    before=$argument
done
[ -e "$settings.port" ] || exec "$HEADRACE_VIZDOOM_ENGINE" "$@"
while [ -e "$settings.port" ]; do # it is removed when the match has begun
    port=$(cat "$settings.port")
    if [ "$port" = "$tried" ]; then
        sleep 0.05
        continue
    fi
    tried=$port
    "$HEADRACE_VIZDOOM_ENGINE" "$@" -port "$port"
    code=$?
    [ -e "$settings.port" ] && : >"$settings.failed"
done
exit "$code"
