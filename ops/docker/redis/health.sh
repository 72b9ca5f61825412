#!/bin/sh
# Healthy when the server has loaded its data and answers the least of its users.
set -eu
answer=$(REDISCLI_AUTH=$REDIS_SCALER_PASSWORD redis-cli --no-auth-warning --user scaler ping 2>&1 || true)
[ "$answer" = PONG ] || { echo "$answer" && exit 1; }
