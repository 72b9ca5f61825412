#!/bin/sh
# Makes the bucket, and a user that may list, read and create in it, but not delete. Safe to run again.
# MC_HOST_store holds the administrator's URL, so no key is an argument of a command.
set -eu

mc mb --ignore-existing "store/$S3_BUCKET"
sed "s/@BUCKET@/$S3_BUCKET/g" /etc/promptmill/policy.json > /tmp/policy.json
mc admin policy create store promptmill /tmp/policy.json
printf '%s\n%s\n' "$S3_ACCESS_KEY" "$S3_SECRET_KEY" | mc admin user add store
mc admin policy attach store promptmill --user "$S3_ACCESS_KEY" || mc admin user info store "$S3_ACCESS_KEY"
