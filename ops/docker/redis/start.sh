#!/bin/sh
# Writes the file of users with the hashes of their passwords, then becomes the Redis server.
# Passwords come from the environment, REDIS_<ROLE>_PASSWORD; only their hashes reach a file, nothing an argument.
set -eu
umask 077

here=${PROMPTMILL_REDIS_FILES:-/etc/promptmill}
users=${PROMPTMILL_REDIS_USERS:-/run/redis/users.acl}

hash_of() {
    printf '%s' "$1" | sha256sum | cut -d ' ' -f 1
}

cp "$here/users.acl.template" "$users.new"
for role in producer consumer collector ops dashboard scaler; do
    name=REDIS_$(printf '%s' "$role" | tr '[:lower:]' '[:upper:]')_PASSWORD
    password=$(printenv "$name") || password=
    if [ -z "$password" ]; then
        echo "$name is not set: run ops/docker/make-env.sh, or set it in .env" >&2
        exit 2
    fi
    hash=$(hash_of "$password")
    sed "s/@$role@/#$hash/" "$users.new" > "$users.next"
    mv "$users.next" "$users.new"
    unset "$name"
done
mv "$users.new" "$users"

exec "${REDIS_SERVER:-redis-server}" "$here/redis.conf" --aclfile "$users" \
    --dir "${REDIS_DATA:-/data}" --maxmemory "${REDIS_MAXMEMORY:-4gb}" "$@"
